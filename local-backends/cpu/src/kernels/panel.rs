//! What panels of weight rows have in common, whatever the instruction set: their memory, and the way over the columns.

use super::act::ActBlock;
use super::ahead::Ahead;
use super::mul_mat::{Out, Rows};

/// Floats of a panel's step: 256 elements of `rows` rows in bytes, then scales, then minimums by group.
pub(super) const fn step_floats(rows: usize, span: usize) -> usize {
    (64 + 2 * (256 / span)) * rows
}

/// A panel times as many columns as the function is for: the panel, its groups, the first column's blocks, blocks from one column
/// to the next, the first column's output, floats from one column's output to the next, rows to be written, what to ask for at every step.
pub(super) type Tile = unsafe fn(*const f32, usize, *const ActBlock, usize, *mut f32, usize, usize, &mut Ahead);

/// Tiles of one column, of two, and so on, up to the number.
macro_rules! tiles {
    (2, $f:ident $(, $arg:tt)*) => {
        &[$f::<1 $(, $arg)*>, $f::<2 $(, $arg)*>]
    };
    (3, $f:ident $(, $arg:tt)*) => {
        &[$f::<1 $(, $arg)*>, $f::<2 $(, $arg)*>, $f::<3 $(, $arg)*>]
    };
    (4, $f:ident $(, $arg:tt)*) => {
        &[$f::<1 $(, $arg)*>, $f::<2 $(, $arg)*>, $f::<3 $(, $arg)*>, $f::<4 $(, $arg)*>]
    };
    (6, $f:ident $(, $arg:tt)*) => {
        &[
            $f::<1 $(, $arg)*>, $f::<2 $(, $arg)*>, $f::<3 $(, $arg)*>, $f::<4 $(, $arg)*>, $f::<5 $(, $arg)*>,
            $f::<6 $(, $arg)*>,
        ]
    };
    (8, $f:ident $(, $arg:tt)*) => {
        &[
            $f::<1 $(, $arg)*>, $f::<2 $(, $arg)*>, $f::<3 $(, $arg)*>, $f::<4 $(, $arg)*>, $f::<5 $(, $arg)*>,
            $f::<6 $(, $arg)*>, $f::<7 $(, $arg)*>, $f::<8 $(, $arg)*>,
        ]
    };
}
pub(super) use tiles;

/// What is asked for at every step of unpacking a panel, as if it met so many columns: it takes as long.
pub(super) const FILL: usize = 4;

/// What is asked for of `rows`, of `bytes` in `steps` steps each, while `panels` panels are unpacked and meet `columns` columns: the first `n`
/// of them. [`FILL`] is due at every step of a panel, then something at every step of every column.
pub(super) fn ahead(rows: Rows, n: usize, bytes: usize, steps: usize, panels: usize, columns: usize) -> Ahead {
    Ahead::new(rows.data, rows.stride, n, bytes, (panels * FILL + columns) * steps)
}

/// A panel, or two, and the columns that they meet.
pub(super) struct Columns {
    /// One, or two behind one another if there are more `rows` than one has.
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
    /// Goes over the columns in as few tiles as can be, all of about the same width. The tiles are for one column, two, and so on.
    ///
    /// # Safety
    /// As the tiles.
    #[inline]
    pub(super) unsafe fn each(mut self, tiles: &[Tile]) {
        let blocks = self.groups.div_ceil(8);
        let count = self.n.div_ceil(tiles.len());
        for i in 0..count {
            // So many columns lie before this tile and the next.
            let [c, next] = [i, i + 1].map(|i| i * self.n / count);
            // SAFETY: columns c..next are the caller's, and no more than there are tiles.
            unsafe {
                let (x, out) = (self.x.add(c * blocks), self.out.data.add(c * self.out.stride));
                tiles[next - c - 1](
                    self.panel,
                    self.groups,
                    x,
                    blocks,
                    out,
                    self.out.stride,
                    self.rows,
                    &mut self.ahead,
                );
            }
        }
    }
}
