//! FLASH_ATTN_EXT: pieces of tokens of one key/value head, all query heads of it together.

use super::mul_mat::SendPtr;
use super::*;
use crate::kernels::attn::{Heads, MaskRow, QUERIES, Query, attention};
use crate::kernels::mul_mat::Rows;
use crate::tensor::checked;
use outboard_core::DType;
use outboard_core::op::FlashAttn;

/// Pieces for each thread, so that all end at about the same time. With more, keys and values are prepared for each of them.
const PIECES: usize = 2;
/// Queries of a piece that are worth going through the keys for.
const FEW: usize = 32;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &FlashAttn) -> Result<(), String> {
    let (q, k, v, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let (mask, pos, sinks) = (node.opt(3), node.opt(4), node.opt(5));
    let [_, n_tokens, n_head, _] = q.ne();
    let [_, n_kv, n_head_kv, _] = k.ne();
    let group = n_head / n_head_kv;
    let seen: Result<Vec<Range<usize>>, String> = (0..n_tokens)
        .map(|i| match pos {
            None => Ok(0..n_kv),
            Some(pos) => {
                let end = checked(pos.int([i, 0, 0, 0]), n_kv, "position")? + 1;
                let first = if op.window > 0 { end.saturating_sub(op.window) } else { 0 };
                Ok(first..end)
            }
        })
        .collect();
    let seen = seen?;
    if n_kv == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    // Few large pieces are less work, but each of several threads is to get some, and as many as the others.
    let pieces = match cx.pool.threads() {
        1 => 1,
        threads => {
            let least = (PIECES * threads).div_ceil(n_head_kv);
            let even = (least..least + threads).find(|pieces| (pieces * n_head_kv).is_multiple_of(threads));
            even.unwrap_or(least)
        }
    };
    let most = n_tokens.div_ceil(pieces).max(FEW / group).clamp(1, (QUERIES / group).max(1));
    let tokens = n_tokens.div_ceil(n_tokens.div_ceil(most));
    let blocks = n_tokens.div_ceil(tokens);
    let rows =
        |t: &T, head: usize| Rows { data: t.row([0, head, 0]), stride: t.nb()[1], dtype: t.dtype(), k: t.ne()[0] };
    let (isa, shared) = (cx.isa, SendPtr((q, k, v, out)));
    cx.pool.run(n_head_kv * blocks, &|piece| {
        let (q, k, v, out) = shared.get();
        // Later tokens see more keys: they go first, so that the pieces at the end are small.
        let (head, block) = (piece % n_head_kv, blocks - 1 - piece / n_head_kv);
        let many = n_tokens > 1;
        let heads = Heads { k: rows(k, head), v: rows(v, head), scale: op.scale, softcap: op.softcap, many };
        let mut queries = Vec::with_capacity(tokens * group);
        for (i, keys) in seen.iter().enumerate().skip(block * tokens).take(tokens) {
            for h in head * group..(head + 1) * group {
                queries.push(Query {
                    q: q.row([i, h, 0]).cast(),
                    out: out.row([h, i, 0]).cast(),
                    keys: keys.clone(),
                    mask: mask.map(|m| match m.dtype() {
                        DType::F32 => MaskRow::F32(m.row([i, 0, 0]).cast()),
                        _ => MaskRow::F16(m.row([i, 0, 0]).cast()),
                    }),
                    sink: sinks.map(|s| s.f32s([0, 0, 0])[h]),
                });
            }
        }
        // SAFETY: shapes are checked by the op's rule and positions above; each query's result is its own.
        with_scratch(|scratch| unsafe { attention(isa, &heads, &queries, scratch) });
    });
    Ok(())
}
