//! Rows of a paged cache ([`outboard_core::op::FlashAttn`]).

use crate::tensor::{T, checked};

/// Where the positions of a sequence lie. Blocks are looked up when they are needed, and checked each time, so that none is outside the cache
/// whatever becomes of the table meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    blocks: T,
    seq: usize,
    block: usize,
    /// Blocks of the cache.
    n_blocks: usize,
}

impl Table {
    /// That of the sequence of row `i`, for blocks of a cache of `n_rows`; an error if the table does not have it.
    pub(crate) fn of(blocks: &T, seqs: &T, i: usize, block: usize, n_rows: usize) -> Result<Table, String> {
        let seq = checked(seqs.int([i, 0, 0, 0]), blocks.ne()[1], "sequence")?;
        Ok(Table { blocks: *blocks, seq, block, n_blocks: n_rows / block })
    }

    /// Positions that a sequence of a table may have.
    pub(crate) fn positions(blocks: &T, block: usize) -> usize {
        blocks.ne()[0].saturating_mul(block)
    }

    /// The block number `i` of the sequence; an error if it is not in the cache. The table has so many.
    pub(crate) fn block(&self, i: usize) -> Result<usize, String> {
        checked(self.blocks.int([i, self.seq, 0, 0]), self.n_blocks, "block")
    }

    /// The row of a position that the table has.
    pub(crate) fn checked_row(&self, position: usize) -> Result<usize, String> {
        Ok(self.block(position / self.block)? * self.block + position % self.block)
    }

    /// The row of a position whose block was checked. Any other is in the first block: tiles are prefetched beyond the last key.
    pub(crate) fn row(&self, position: usize) -> usize {
        let i = position / self.block;
        let block = if i < self.blocks.ne()[0] { self.block(i).unwrap_or(0) } else { 0 };
        block * self.block + position % self.block
    }
}
