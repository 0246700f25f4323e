//! FLASH_ATTN_EXT: pieces of tokens of one key/value head, all query heads of it together.

use super::mul_mat::SendPtr;
use super::*;
use crate::kernels::attn::{Heads, MaskRow, Phase, QUERIES, Query, attention, scratch_floats};
use crate::kernels::mul_mat::Rows;
use crate::paging::Table;
use crate::scratch::Plain;
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
/// of them only make pieces smaller. Of a paged cache, spans of any length make pieces of any size.
pub(crate) fn need(node: &Node, op: &FlashAttn) -> Need {
    let (Some(q), Some(k), Some(v)) = (node.opt(0), node.opt(1), node.opt(2)) else { return Need::default() };
    let [d, n_tokens, n_head, _] = q.ne();
    let Pieces { group, tokens, .. } = Pieces::new(1, n_tokens, n_head, k.ne()[2]);
    let floats = |n_tokens: usize, queries: usize| scratch_floats(phase(n_tokens), d, v.ne()[0], queries);
    let shared = bytes_of::<Piece>(n_tokens);
    if op.block == 0 {
        let floats = floats(n_tokens, tokens.saturating_mul(group));
        return Need { thread: bytes_of::<f32>(floats), shared, ..Need::default() };
    }
    let most = n_tokens.saturating_mul(group).min(QUERIES.max(group));
    let floats = floats(n_tokens, most).max(floats(1, group));
    Need { thread: bytes_of::<f32>(floats), shared, ..Need::default() }
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
        let positions = self.paging.map_or(self.n_kv, |(table, _)| Table::positions(table, self.op.block));
        let end = checked(pos.int([i, 0, 0, 0]), positions, "position")? + 1;
        Ok(if self.op.window > 0 { end.saturating_sub(self.op.window) } else { 0 }..end)
    }

    /// Where the keys of query `i` lie, if the cache is paged.
    fn table(&self, i: usize) -> Result<Option<Table>, String> {
        self.paging.map(|(table, seqs)| Table::of(table, seqs, i, self.op.block, self.n_kv)).transpose()
    }

    /// How many queries from `start` on are of one sequence; an error if one of them sees what is not there.
    fn span(&self, start: usize, n_tokens: usize) -> Result<usize, String> {
        let mut seen = self.keys(start)?;
        let same = |i: &usize| match self.paging {
            Some((_, seqs)) => seqs.int([*i, 0, 0, 0]) == seqs.int([start, 0, 0, 0]),
            None => true,
        };
        let mut end = start;
        while end < n_tokens && same(&end) {
            let keys = self.keys(end)?;
            seen = seen.start.min(keys.start)..seen.end.max(keys.end);
            end += 1;
        }
        if let Some(table) = self.table(start)? {
            let blocks = seen.start / self.op.block..seen.end.div_ceil(self.op.block);
            blocks.into_iter().try_for_each(|i| table.block(i).map(drop))?;
        }
        Ok(end - start)
    }
}

/// Some tokens of one sequence that follow one another, and how many of it there are in all.
#[derive(Clone, Copy)]
#[repr(C)]
struct Piece {
    start: usize,
    end: usize,
    span: usize,
}

// SAFETY: numbers, in the order of C.
unsafe impl Plain for Piece {}

/// Divides the queries into pieces, sequence by sequence: what one gets does not depend on others. Later tokens see more keys: they go first,
/// so that the pieces at the end are small. Gives their number.
fn divide(
    sight: &Sight<'_>,
    n_tokens: usize,
    pieces_of: &dyn Fn(usize) -> Pieces,
    pieces: &mut [Piece],
    aborted: &dyn Fn() -> bool,
) -> Result<usize, String> {
    let (mut start, mut n) = (0, 0);
    while start < n_tokens && !aborted() {
        let span = sight.span(start, n_tokens)?;
        let Pieces { tokens, blocks, .. } = pieces_of(span);
        for block in (0..blocks).rev() {
            let (first, end) = (start + block * tokens, start + ((block + 1) * tokens).min(span));
            *pieces.get_mut(n).ok_or("more pieces than tokens")? = Piece { start: first, end, span };
            n += 1;
        }
        start += span;
    }
    Ok(n)
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &FlashAttn) -> Result<(), String> {
    let (q, k, v, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let (mask, sinks) = (node.opt(3), node.opt(5));
    let [_, n_tokens, n_head, _] = q.ne();
    let [_, n_kv, n_head_kv, _] = k.ne();
    let sight = Sight { op, pos: node.opt(4), paging: node.opt(6).zip(node.opt(7)), n_kv };
    let threads = cx.pool.threads();
    let (isa, abort, workers) = (cx.isa, cx.watch.abort, cx.workers());
    let pieces = cx.shared.borrow().take::<Piece>(n_tokens)?;
    // Before anything is written.
    let pieces_of = |n_tokens: usize| Pieces::new(threads, n_tokens, n_head, n_head_kv);
    let n = divide(&sight, n_tokens, &pieces_of, pieces, &|| workers.aborted())?;
    if n_kv == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    let pieces = &pieces[..n];
    let group = n_head / n_head_kv.max(1);
    let rows =
        |t: &T, head: usize| Rows { data: t.row([0, head, 0]), stride: t.nb()[1], dtype: t.dtype(), k: t.ne()[0] };
    let shared = SendPtr((q, k, v, out));
    let failed = FirstError::default();
    workers.run(n_head_kv * pieces.len(), &|n, memory| {
        let (q, k, v, out) = shared.get();
        let (head, piece) = (n % n_head_kv, &pieces[n / n_head_kv]);
        let attend = || -> Result<(), String> {
            let (k, v, table) = (rows(k, head), rows(v, head), sight.table(piece.start)?);
            let (phase, table) = (phase(piece.span), table.as_ref());
            let heads = Heads { k, v, scale: op.scale, softcap: op.softcap, phase, table, abort };
            let mut scratch = memory.rest()?;
            // Bounded, whatever the shapes: as many as go through the keys together.
            let mut queries = Vec::with_capacity(((piece.end - piece.start) * group).min(QUERIES));
            for i in piece.start..piece.end {
                let keys = sight.keys(i)?;
                let mask = mask.map(|m| match m.dtype() {
                    DType::F32 => MaskRow::F32(m.row([i, 0, 0]).cast()),
                    _ => MaskRow::F16(m.row([i, 0, 0]).cast()),
                });
                for h in head * group..(head + 1) * group {
                    let (q, out) = (q.row([i, h, 0]).cast(), out.row([h, i, 0]).cast());
                    let sink = sinks.map(|s| s.f32s([0, 0, 0])[h]);
                    queries.push(Query { q, out, keys: keys.clone(), mask, sink });
                    let last = (i + 1, h + 1) == (piece.end, (head + 1) * group);
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
