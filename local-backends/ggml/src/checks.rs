//! What the host looks at before ggml computes: numbers in memory that choose rows, experts and positions, which ggml does not check.
//!
//! They are read once, checked, and written into memory of the executable, which nobody else can write to: what was checked is what is used.

use crate::tensors::T;
use outboard_core::quant::quantize_row;
use outboard_core::{DType, Layout, TensorId};
use std::ops::Range;

/// What is done before a piece runs.
#[derive(Debug)]
pub(crate) enum Job {
    /// Row numbers are checked and copied. The tensor is the copy.
    Indices(Indices, T),
    /// A mask is made of positions. The tensor is where it lies.
    Mask(Mask, T),
}

/// Row numbers of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices {
    pub(crate) node: TensorId,
    pub(crate) source: TensorId,
    /// They are below this.
    pub(crate) bound: usize,
    /// What there are so many of.
    pub(crate) of: &'static str,
    /// Where they are written, in memory of the executable.
    pub(crate) to: u64,
}

/// Which keys the queries of an attention see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    pub(crate) node: TensorId,
    pub(crate) pos: TensorId,
    /// The table of blocks and the sequence of each query.
    pub(crate) paging: Option<(TensorId, TensorId)>,
    pub(crate) window: usize,
    pub(crate) block: usize,
    /// Rows of the cache.
    pub(crate) keys: usize,
    /// Queries.
    pub(crate) tokens: usize,
    /// Where it is written, in memory of the executable.
    pub(crate) to: u64,
}

/// Minus infinity as F16.
const HIDDEN: [u8; 2] = [0, 0xfc];

impl Mask {
    /// What it is made of.
    pub(crate) fn sources(&self) -> impl Iterator<Item = TensorId> {
        let (table, seqs) = self.paging.unzip();
        [Some(self.pos), table, seqs].into_iter().flatten()
    }

    /// Rows of the cache up to the last one that somebody sees; `None` if a position, a block or a sequence is not there, and if nobody wants it
    /// any more.
    pub(crate) fn used(
        &self,
        pos: &[i32],
        paging: Option<(&[i32], usize, &[i32])>,
        is_wanted: impl Fn() -> bool,
    ) -> Option<usize> {
        let mut most = 0;
        for i in 0..self.tokens {
            if !is_wanted() {
                return None;
            }
            let (first, last) = self.positions(i, pos, paging).ok()?;
            most = most.max(match paging {
                None => last + 1,
                Some((table, blocks, seqs)) => {
                    let seen = &blocks_of(table, blocks, seqs, i).ok()?[first / self.block..=last / self.block];
                    let last = |most: usize, &block| Some(most.max(below(block, self.keys / self.block)?));
                    (seen.iter().try_fold(0, last)? + 1) * self.block
                }
            });
        }
        Some(most)
    }

    /// The first and the last position that query `i` sees.
    fn positions(
        &self,
        i: usize,
        pos: &[i32],
        paging: Option<(&[i32], usize, &[i32])>,
    ) -> Result<(usize, usize), String> {
        let p = pos.get(i).copied().unwrap_or(-1);
        let most = paging.map_or(self.keys, |(_, blocks, _)| blocks * self.block);
        let last = below(p, most).ok_or_else(|| format!("position {p} is outside 0..{most}"))?;
        Ok((if self.window == 0 { 0 } else { (last + 1).saturating_sub(self.window) }, last))
    }

    /// Whether both come out the same.
    pub(crate) fn is_like(&self, other: &Mask) -> bool {
        let of = |m: &Mask| (m.pos, m.paging, m.window, m.block, m.keys, m.tokens);
        of(self) == of(other)
    }

    /// How many rows are made at once, of queries that see up to so many positions: a megabyte of them, and not for long, or one.
    pub(crate) fn rows_at_once(&self, positions: usize) -> usize {
        ((1 << 20) / (2 * self.keys.max(positions)).max(1)).max(1)
    }

    /// These rows of F16 `[keys, tokens]`, or what is wrong with the positions, the table (with its blocks for each sequence) or the sequences.
    pub(crate) fn make(
        &self,
        rows: Range<usize>,
        pos: &[i32],
        paging: Option<(&[i32], usize, &[i32])>,
    ) -> Result<Vec<u8>, String> {
        let mut mask = HIDDEN.repeat(self.keys * rows.len());
        // How often a query sees each key.
        let mut seen = vec![0u16; self.keys];
        for (i, row) in rows.zip(mask.chunks_exact_mut(2 * self.keys)) {
            let (first, last) = self.positions(i, pos, paging)?;
            seen.fill(0);
            match paging {
                None => seen[first..=last].fill(1),
                Some((table, blocks, seqs)) => {
                    self.see_blocks(&mut seen, first..last + 1, blocks_of(table, blocks, seqs, i)?)?
                }
            }
            for (to, &times) in row.as_chunks_mut::<2>().0.iter_mut().zip(&seen).filter(|(_, times)| **times > 0) {
                *to = weight(times);
            }
        }
        Ok(mask)
    }

    /// Notes that these positions of a sequence that has these blocks are seen.
    fn see_blocks(&self, seen: &mut [u16], positions: Range<usize>, blocks: &[i32]) -> Result<(), String> {
        let count = self.keys / self.block;
        let (first, end) = (positions.start / self.block, positions.end.div_ceil(self.block));
        for (b, &block) in blocks.iter().enumerate().take(end).skip(first) {
            let start = below(block, count).ok_or_else(|| format!("block {block} is outside 0..{count}"))? * self.block;
            let from = positions.start.max(b * self.block) - b * self.block;
            let to = positions.end.min((b + 1) * self.block) - b * self.block;
            seen[start + from..start + to].iter_mut().for_each(|times| *times = times.saturating_add(1));
        }
        Ok(())
    }
}

/// What the mask adds for a key that is seen so often, as F16: a block may be several times in a sequence, and twice the
/// exponential is that of a logit with ln 2 more.
fn weight(times: u16) -> [u8; 2] {
    let mut out = [0; 2];
    // One number is a whole row of F16.
    let written = quantize_row(DType::F16, &[f32::from(times).ln()], &mut out);
    debug_assert!(written.is_ok());
    out
}

/// The blocks of the sequence of query `i`.
fn blocks_of<'a>(table: &'a [i32], blocks: usize, seqs: &[i32], i: usize) -> Result<&'a [i32], String> {
    let seq = seqs.get(i).copied().unwrap_or(-1);
    let count = table.len().checked_div(blocks).unwrap_or(0);
    let at = below(seq, count).ok_or_else(|| format!("sequence {seq} is outside 0..{count}"))?;
    Ok(&table[at * blocks..][..blocks])
}

fn below(value: i32, bound: usize) -> Option<usize> {
    usize::try_from(value).ok().filter(|&value| value < bound)
}

impl Indices {
    /// Whether all are below the bound.
    pub(crate) fn check(&self, values: &[i32]) -> Result<(), String> {
        match values.iter().find(|&&value| below(value, self.bound).is_none()) {
            Some(wrong) => Err(format!("{wrong} is outside 0..{} {}", self.bound, self.of)),
            None => Ok(()),
        }
    }
}

/// The elements of an I32 tensor, from the bytes that it spans, in order of their index.
pub(crate) fn elements(layout: &Layout, bytes: &[u8]) -> Vec<i32> {
    let ([n0, n1, n2, n3], [b0, b1, b2, b3]) = (layout.ne(), layout.nb());
    let mut out = Vec::with_capacity(layout.elements());
    let rows = (0..n3).flat_map(|l| (0..n2).flat_map(move |k| (0..n1).map(move |j| j * b1 + k * b2 + l * b3)));
    for row in rows {
        let at = |i: usize| bytes.get(row + i * b0..)?.first_chunk::<4>();
        // What is not there is a number that no check lets pass.
        out.extend((0..n0).map(|i| at(i).map_or(i32::MIN, |b| i32::from_le_bytes(*b))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(window: usize, block: usize, keys: usize, tokens: usize) -> Mask {
        let id = TensorId::from_index(0);
        Mask { node: id, pos: id, paging: None, window, block, keys, tokens, to: 0 }
    }

    /// What each query sees: how often.
    fn seen(mask: &[u8], keys: usize) -> Vec<String> {
        let times =
            |b: &[u8; 2]| (0..3u16).find(|&n| *b == if n == 0 { HIDDEN } else { weight(n) }).unwrap().to_string();
        mask.chunks(2 * keys).map(|row| row.as_chunks::<2>().0.iter().map(times).collect()).collect()
    }

    #[test]
    fn positions_see_what_is_not_behind_them() {
        let made = mask(0, 0, 5, 2).make(0..2, &[0, 3], None).unwrap();
        assert_eq!(seen(&made, 5), ["10000", "11110"]);
        let made = mask(2, 0, 5, 2).make(1..2, &[0, 3], None).unwrap();
        assert_eq!(seen(&made, 5), ["00110"]);
        for wrong in [5, -1, i32::MIN, i32::MAX] {
            assert_eq!(
                mask(0, 0, 5, 1).make(0..1, &[wrong], None).unwrap_err(),
                format!("position {wrong} is outside 0..5")
            );
        }
    }

    #[test]
    fn blocks_are_found_in_the_table() {
        // Sequence 0 has blocks 2 and 0, sequence 1 has 1, and one that is not there, sequence 2 has 1 twice.
        let table = [2, 0, 1, 9, 1, 1];
        let paged = |window, pos: i32, seq: i32| mask(window, 2, 6, 1).make(0..1, &[pos], Some((&table, 2, &[seq])));
        assert_eq!(seen(&paged(0, 2, 0).unwrap(), 6), ["100011"]);
        assert_eq!(seen(&paged(2, 2, 0).unwrap(), 6), ["100001"]);
        assert_eq!(seen(&paged(0, 1, 1).unwrap(), 6), ["001100"]);
        assert_eq!(paged(0, 2, 1).unwrap_err(), "block 9 is outside 0..3");
        assert_eq!(paged(0, 4, 0).unwrap_err(), "position 4 is outside 0..4");
        assert_eq!(seen(&paged(0, 2, 2).unwrap(), 6), ["002100"]);
        assert_eq!(paged(0, 0, 3).unwrap_err(), "sequence 3 is outside 0..3");
        assert_eq!(paged(0, 0, -1).unwrap_err(), "sequence -1 is outside 0..3");
    }

    #[test]
    fn rows_are_used_up_to_the_last_that_is_seen() {
        assert_eq!(mask(0, 0, 5, 2).used(&[0, 3], None, || true), Some(4));
        assert_eq!(mask(0, 0, 5, 2).used(&[0, 5], None, || true), None);
        let table = [2, 0, 1, 9];
        let paged = |window, pos: i32, seq: i32| mask(window, 2, 6, 1).used(&[pos], Some((&table, 2, &[seq])), || true);
        assert_eq!(
            [paged(0, 1, 0), paged(0, 3, 0), paged(1, 3, 0), paged(0, 1, 1)],
            [Some(6), Some(6), Some(2), Some(4)]
        );
        assert_eq!([paged(0, 2, 1), paged(0, 4, 0), paged(0, 0, 2)], [None; 3]);
        assert_eq!(mask(0, 0, 5, 2).used(&[0, 3], None, || false), None);
    }

    #[test]
    fn elements_come_in_order_of_their_index() {
        let layout = Layout::strided(DType::I32, [2, 2, 1, 1], [8, 4, 0, 0]).unwrap();
        let bytes: Vec<u8> = (1..=4i32).flat_map(i32::to_le_bytes).collect();
        assert_eq!(elements(&layout, &bytes), [1, 3, 2, 4]);
        assert_eq!(elements(&layout, &bytes[..12]), [1, 3, 2, i32::MIN]);
    }
}
