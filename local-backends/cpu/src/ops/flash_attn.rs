//! FLASH_ATTN_EXT: pieces of tokens of one key/value head, all query heads of it together.

use super::mul_mat::SendPtr;
use super::*;
use crate::kernels::attn::{Heads, MaskRow, Phase, QUERIES, Query, attention, scratch_floats};
use crate::kernels::mul_mat::Rows;
use crate::paging::Table;
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
/// of them only make pieces smaller. Of a paged cache, sequences may have one token each, or one of them all.
pub(crate) fn need(node: &Node, op: &FlashAttn) -> Need {
    let (Some(q), Some(k), Some(v)) = (node.opt(0), node.opt(1), node.opt(2)) else { return Need::default() };
    let [d, n_tokens, n_head, _] = q.ne();
    let floats = |n_tokens: usize| {
        let Pieces { group, tokens, .. } = Pieces::new(1, n_tokens, n_head, k.ne()[2]);
        scratch_floats(phase(n_tokens), d, v.ne()[0], tokens.saturating_mul(group))
    };
    let most = if op.block > 0 { floats(n_tokens).max(floats(n_tokens.min(1))) } else { floats(n_tokens) };
    Need { thread: bytes_of::<f32>(most), ..Need::default() }
}

/// The sources that say what queries see.
struct Sight<'a> {
    op: &'a FlashAttn,
    pos: Option<&'a T>,
    /// Blocks of sequences, and the sequence of each query.
    paging: Option<(&'a T, &'a T)>,
    n_kv: usize,
}

impl Sight<'_> {
    /// Positions that query `i` sees.
    fn keys(&self, i: usize) -> Result<Range<usize>, String> {
        let Some(pos) = self.pos else { return Ok(0..self.n_kv) };
        let positions = self.paging.map_or(self.n_kv, |(table, _)| table.ne()[0] * self.op.block);
        let end = checked(pos.int([i, 0, 0, 0]), positions, "position")? + 1;
        Ok(if self.op.window > 0 { end.saturating_sub(self.op.window) } else { 0 }..end)
    }

    /// The queries in spans of one sequence, everything checked.
    fn spans(&self, n_tokens: usize) -> Result<Vec<Span>, String> {
        let Some((table, seqs)) = self.paging else {
            (0..n_tokens).try_for_each(|i| self.keys(i).map(drop))?;
            return Ok(vec![Span { tokens: 0..n_tokens, table: None }]);
        };
        let mut spans = Vec::new();
        let mut start = 0;
        while start < n_tokens {
            let seq = seqs.int([start, 0, 0, 0]);
            let same = (start..n_tokens).take_while(|&i| seqs.int([i, 0, 0, 0]) == seq).count();
            let mut seen = self.keys(start)?;
            for i in start..start + same {
                let keys = self.keys(i)?;
                seen = seen.start.min(keys.start)..seen.end.max(keys.end);
            }
            let seq = checked(seq, table.ne()[1], "sequence")?;
            let table = Some(Table::new(table, seq, self.op.block, &seen, self.n_kv)?);
            spans.push(Span { tokens: start..start + same, table });
            start += same;
        }
        Ok(spans)
    }
}

/// Queries of one sequence that follow one another. What each gets does not depend on other sequences.
struct Span {
    tokens: Range<usize>,
    /// Where their keys lie, if the cache is paged.
    table: Option<Table>,
}

/// Some tokens of a span.
struct Piece {
    span: usize,
    tokens: Range<usize>,
}

/// The pieces of all spans. Later tokens see more keys: they go first, so that the pieces at the end are small.
fn pieces(spans: &[Span], threads: usize, n_head: usize, n_head_kv: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (i, span) in spans.iter().enumerate() {
        let Pieces { tokens, blocks, .. } = Pieces::new(threads, span.tokens.len(), n_head, n_head_kv);
        let Range { start, end } = span.tokens;
        let piece = |block: usize| start + block * tokens..(start + (block + 1) * tokens).min(end);
        pieces.extend((0..blocks).rev().map(|block| Piece { span: i, tokens: piece(block) }));
    }
    pieces
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &FlashAttn) -> Result<(), String> {
    let (q, k, v, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let (mask, sinks) = (node.opt(3), node.opt(5));
    let [_, n_tokens, n_head, _] = q.ne();
    let [_, n_kv, n_head_kv, _] = k.ne();
    let sight = Sight { op, pos: node.opt(4), paging: node.opt(6).zip(node.opt(7)), n_kv };
    // Before anything is written.
    let spans = sight.spans(n_tokens)?;
    if n_kv == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    let pieces = pieces(&spans, cx.pool.threads(), n_head, n_head_kv);
    let group = n_head / n_head_kv.max(1);
    let rows =
        |t: &T, head: usize| Rows { data: t.row([0, head, 0]), stride: t.nb()[1], dtype: t.dtype(), k: t.ne()[0] };
    let (isa, abort, shared) = (cx.isa, cx.watch.abort, SendPtr((q, k, v, out)));
    let failed = FirstError::default();
    cx.workers().run(n_head_kv * pieces.len(), &|n, memory| {
        let (q, k, v, out) = shared.get();
        let (head, piece) = (n % n_head_kv, &pieces[n / n_head_kv]);
        let Span { tokens, table } = &spans[piece.span];
        let (k, v, phase, table) = (rows(k, head), rows(v, head), phase(tokens.len()), table.as_ref());
        let heads = Heads { k, v, scale: op.scale, softcap: op.softcap, phase, table, abort };
        let attend = || -> Result<(), String> {
            let mut scratch = memory.rest()?;
            // Bounded, whatever the shapes: as many as go through the keys together.
            let mut queries = Vec::with_capacity((piece.tokens.len() * group).min(QUERIES));
            for i in piece.tokens.clone() {
                let keys = sight.keys(i)?;
                let mask = mask.map(|m| match m.dtype() {
                    DType::F32 => MaskRow::F32(m.row([i, 0, 0]).cast()),
                    _ => MaskRow::F16(m.row([i, 0, 0]).cast()),
                });
                for h in head * group..(head + 1) * group {
                    let (q, out) = (q.row([i, h, 0]).cast(), out.row([h, i, 0]).cast());
                    let sink = sinks.map(|s| s.f32s([0, 0, 0])[h]);
                    queries.push(Query { q, out, keys: keys.clone(), mask, sink });
                    let last = (i + 1, h + 1) == (piece.tokens.end, (head + 1) * group);
                    if last || queries.len() == QUERIES {
                        // SAFETY: shapes are checked by the op's rule, positions by `keys` and blocks by the table; each query's result
                        // is its own.
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
