//! FLASH_ATTN_EXT: pieces of tokens of one key/value head, all query heads of it together.

use super::mul_mat::SendPtr;
use super::*;
use crate::kernels::attn::{Heads, MaskRow, Phase, QUERIES, Query, attention, scratch_floats};
use crate::kernels::mul_mat::Rows;
use crate::tensor::checked;
use outboard_core::DType;
use outboard_core::op::FlashAttn;

/// Pieces for each thread, so that all end at about the same time. With more, keys and values are prepared for each of them.
const PIECES: usize = 2;
/// Fewest queries of a piece that are worth going through the keys for.
const MIN_QUERIES: usize = 32;

/// How the work is divided: pieces of tokens of one key/value head.
struct Pieces {
    /// Query heads of a key/value head.
    group: usize,
    /// Tokens of a piece, but for the last one of each head.
    tokens: usize,
    /// Pieces of each head.
    blocks: usize,
}

impl Pieces {
    fn new(threads: usize, n_tokens: usize, n_head: usize, n_head_kv: usize) -> Pieces {
        let group = n_head / n_head_kv.max(1);
        // Few large pieces are less work, but each of several threads is to get some, and as many as the others.
        let pieces = match threads {
            1 => 1,
            threads => {
                let least = (PIECES * threads).div_ceil(n_head_kv.max(1));
                let even = (least..least + threads).find(|pieces| (pieces * n_head_kv).is_multiple_of(threads));
                even.unwrap_or(least)
            }
        };
        let most = n_tokens.div_ceil(pieces).max(MIN_QUERIES / group.max(1)).clamp(1, (QUERIES / group.max(1)).max(1));
        let tokens = n_tokens.div_ceil(n_tokens.div_ceil(most).max(1));
        Pieces { group, tokens, blocks: n_tokens.div_ceil(tokens.max(1)) }
    }
}

fn phase(n_tokens: usize) -> Phase {
    if n_tokens > 1 { Phase::Prefill } else { Phase::Decode }
}

/// Room for the queries that go through the keys together: at most [`QUERIES`], or those of one token. Threads do not matter: more
/// of them only make pieces smaller.
pub(crate) fn need(node: &Node) -> Need {
    let (Some(q), Some(k), Some(v)) = (node.opt(0), node.opt(1), node.opt(2)) else { return Need::default() };
    let [d, n_tokens, n_head, _] = q.ne();
    let Pieces { group, tokens, .. } = Pieces::new(1, n_tokens, n_head, k.ne()[2]);
    let floats = scratch_floats(phase(n_tokens), d, v.ne()[0], tokens.saturating_mul(group));
    Need { thread: bytes_of::<f32>(floats), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &FlashAttn) -> Result<(), String> {
    let (q, k, v, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let (mask, pos, sinks) = (node.opt(3), node.opt(4), node.opt(5));
    let [_, n_tokens, n_head, _] = q.ne();
    let [_, n_kv, n_head_kv, _] = k.ne();
    let keys = |i: usize| -> Result<Range<usize>, String> {
        let Some(pos) = pos else { return Ok(0..n_kv) };
        let end = checked(pos.int([i, 0, 0, 0]), n_kv, "position")? + 1;
        Ok(if op.window > 0 { end.saturating_sub(op.window) } else { 0 }..end)
    };
    // Before anything is written.
    (0..n_tokens).try_for_each(|i| keys(i).map(drop))?;
    if n_kv == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    let Pieces { group, tokens, blocks } = Pieces::new(cx.pool.threads(), n_tokens, n_head, n_head_kv);
    let rows =
        |t: &T, head: usize| Rows { data: t.row([0, head, 0]), stride: t.nb()[1], dtype: t.dtype(), k: t.ne()[0] };
    let (isa, abort, shared) = (cx.isa, cx.watch.abort, SendPtr((q, k, v, out)));
    let failed = FirstError::default();
    cx.workers().run(n_head_kv * blocks, &|piece, memory| {
        let (q, k, v, out) = shared.get();
        // Later tokens see more keys: they go first, so that the pieces at the end are small.
        let (head, block) = (piece % n_head_kv, blocks - 1 - piece / n_head_kv);
        let (k, v, phase) = (rows(k, head), rows(v, head), phase(n_tokens));
        let heads = Heads { k, v, scale: op.scale, softcap: op.softcap, phase, abort };
        let tokens = block * tokens..((block + 1) * tokens).min(n_tokens);
        let attend = || -> Result<(), String> {
            let mut scratch = memory.rest()?;
            // Bounded, whatever the shapes: as many as go through the keys together.
            let mut queries = Vec::with_capacity((tokens.len() * group).min(QUERIES));
            for i in tokens.clone() {
                let keys = keys(i)?;
                let mask = mask.map(|m| match m.dtype() {
                    DType::F32 => MaskRow::F32(m.row([i, 0, 0]).cast()),
                    _ => MaskRow::F16(m.row([i, 0, 0]).cast()),
                });
                for h in head * group..(head + 1) * group {
                    let (q, out) = (q.row([i, h, 0]).cast(), out.row([h, i, 0]).cast());
                    let sink = sinks.map(|s| s.f32s([0, 0, 0])[h]);
                    queries.push(Query { q, out, keys: keys.clone(), mask, sink });
                    let last = (i + 1, h + 1) == (tokens.end, (head + 1) * group);
                    if last || queries.len() == QUERIES {
                        // SAFETY: shapes are checked by the op's rule and positions by `keys`; each query's result is its own.
                        unsafe { attention(isa, &heads, &queries, &mut scratch) };
                        queries.clear();
                    }
                }
            }
            Ok(())
        };
        failed.note(attend());
    });
    failed.result()
}
