//! What panels of weight rows have in common, whatever the instruction set: their memory, and the way over the columns.

use super::act::ActBlock;
use super::ahead::Ahead;
use super::mul_mat::{Out, Rows};

/// Floats of a panel's step: 256 elements of `rows` rows in bytes, then scales, then minimums by group.
pub(super) const fn step_floats(rows: usize, span: usize) -> usize {
    (64 + 2 * (256 / span)) * rows
}

/// A panel times as many columns as the function is for: the panel, its groups, the first column's blocks, blocks from one column
/// to the next, the first column's output, floats from one column's output to the next, rows to be written.
pub(super) type Tile = unsafe fn(*const f32, usize, *const ActBlock, usize, *mut f32, usize, usize);

/// Tiles of 1 to 4 columns.
macro_rules! tiles {
    ($f:ident $(, $arg:tt)*) => {
        [$f::<1 $(, $arg)*>, $f::<2 $(, $arg)*>, $f::<3 $(, $arg)*>, $f::<4 $(, $arg)*>]
    };
}
pub(super) use tiles;

/// What is asked for before the first column, as if so many had been gone over: unpacking a panel takes as long.
const BEFORE: usize = 8;

/// The first `n` of `rows`, of `bytes` each, that are unpacked after a panel meets `columns` columns. Asks for the first lines.
pub(super) fn ahead(rows: Rows, n: usize, bytes: usize, columns: usize) -> Ahead {
    let mut ahead = Ahead::new(rows.data, rows.stride, n, bytes, BEFORE + columns);
    ahead.more(BEFORE);
    ahead
}

/// A panel and the columns that it meets.
pub(super) struct Columns {
    pub(super) panel: *const f32,
    /// Groups of 32 weights of a row.
    pub(super) groups: usize,
    pub(super) x: *const ActBlock,
    pub(super) n: usize,
    /// The first row's results.
    pub(super) out: Out,
    /// Rows that are written: the last panel of a matrix may have fewer than it is made for.
    pub(super) rows: usize,
    pub(super) ahead: Ahead,
}

impl Columns {
    /// Goes over the columns in tiles of `width`, then of 4, then of what is left, asking for what is ahead on the way.
    ///
    /// # Safety
    /// As the tiles.
    #[inline]
    pub(super) unsafe fn each(mut self, wide: Tile, width: usize, tiles: [Tile; 4]) {
        let blocks = self.groups.div_ceil(8);
        let mut c = 0;
        while c < self.n {
            let left = self.n - c;
            let (tile, n) = if left >= width { (wide, width) } else { (tiles[left.min(4) - 1], left.min(4)) };
            self.ahead.more(n);
            // SAFETY: columns c..c + n are the caller's.
            unsafe {
                let (x, out) = (self.x.add(c * blocks), self.out.data.add(c * self.out.stride));
                tile(self.panel, self.groups, x, blocks, out, self.out.stride, self.rows);
            }
            c += n;
        }
    }
}
