//! Rows of a paged cache ([`outboard_core::op::FlashAttn`]).

use crate::tensor::{T, checked};
use std::ops::Range;

/// Where the positions of a sequence lie. It has its own copy of the blocks, which were checked.
#[derive(Clone, Debug)]
pub struct Table {
    block: usize,
    /// The number of the first block that is known.
    first: usize,
    /// The first row of each known block.
    rows: Vec<usize>,
}

impl Table {
    /// The blocks of `positions`, in a cache of `n_rows`. The table has them; an error if one of them is not in the cache.
    pub(crate) fn new(
        table: &T,
        seq: usize,
        block: usize,
        positions: &Range<usize>,
        n_rows: usize,
    ) -> Result<Table, String> {
        let blocks = positions.start / block..positions.end.div_ceil(block);
        let first = blocks.start;
        let row = |i: usize| Ok(checked(table.int([i, seq, 0, 0]), n_rows / block, "block")? * block);
        Ok(Table { block, first, rows: blocks.map(row).collect::<Result<_, String>>()? })
    }

    /// The row of a position. One that the table does not know is in its first block: tiles are prefetched beyond the last key.
    pub(crate) fn row(&self, position: usize) -> usize {
        let known = (position / self.block).checked_sub(self.first).and_then(|i| self.rows.get(i));
        known.or(self.rows.first()).copied().unwrap_or(0) + position % self.block
    }
}
