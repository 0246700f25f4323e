//! What panels of weight rows have in common, whatever the instruction set: where things lie in them, and the loops over rows and columns, in
//! parts that stay in the nearest cache.

use super::act::{ActBlock, act_blocks};
use super::ahead::Ahead;
use super::mul_mat::{Out, Rows, Scratch};
use std::ops::Range;

/// The most rows that a panel can have.
pub(super) const MAX_ROWS: usize = 16;

/// Columns from which unpacking rows into panels is better than unpacking them for each column: faster on x86-64, measured with weights
/// in memory, which panels read less evenly than rows; fewer instructions on aarch64.
pub(crate) const PANEL_COLUMNS: usize = 3;

/// With few columns, bytes of a panel that meet them before it goes on along the rows: 768 elements of 16 rows, or twice as many of 8. Two of
/// them stay in a nearest cache of 48 KiB, one in one of 32.
const PART_BYTES: usize = 18 * 1024;
/// The most columns that are few; more of them would go by too often (measured, with weights in memory).
const PART_COLUMNS: usize = 64;

/// Floats of a panel's step, of 256 elements of `rows` rows: first their bytes, four elements of each row beside one another and then the next
/// four; then the scales of the first span of each row and of the next; then minimums in the same order.
pub(super) const fn step_floats(rows: usize, span: usize) -> usize {
    mins_at(rows, span) + 256 / span * rows
}

/// Where scales begin in a panel's step, in floats.
pub(super) const fn scales_at(rows: usize) -> usize {
    256 / size_of::<f32>() * rows
}

/// Where minimums begin in a panel's step, in floats.
pub(super) const fn mins_at(rows: usize, span: usize) -> usize {
    scales_at(rows) + 256 / span * rows
}

/// Unpacks a part of rows, of so many groups, as a panel, and prefetches for [`FILL_COLUMNS`] at every step. Of the rows, as many as a panel has.
pub(super) type Fill = unsafe fn(&[*const u8; MAX_ROWS], usize, *mut f32, &mut Ahead);

/// Panels times as many columns as the function is for, from this one on.
pub(super) type Tile = unsafe fn(&Part, usize, &mut Ahead);

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

/// Columns that a panel could meet in the time that unpacking it takes: so much is prefetched meanwhile.
pub(super) const FILL_COLUMNS: usize = 4;

/// How an instruction set makes panels of a format, and multiplies them.
pub(super) struct Panels {
    /// Rows of a panel.
    pub(super) rows: usize,
    /// Bytes of a row's step of 256 elements, and floats of a panel's ([`step_floats`]).
    pub(super) step: usize,
    pub(super) floats: usize,
    pub(super) fill: Fill,
    /// For one column, two, and so on.
    pub(super) tiles: &'static [Tile],
    /// The same for two panels beside one another, if columns meet two at a time.
    pub(super) pairs: Option<&'static [Tile]>,
}

/// A part of panels that lie behind one another, and all columns.
pub(super) struct Part {
    pub(super) panel: *const f32,
    /// Groups of 32 weights of a row in this part.
    pub(super) groups: usize,
    /// The first column's blocks of this part, and blocks from one column to the next.
    pub(super) x: *const ActBlock,
    pub(super) blocks: usize,
    /// The first row's results.
    pub(super) out: Out,
    /// Rows that are written: the last panel of a matrix may have fewer than it is made for.
    pub(super) rows: usize,
    /// Whether results begin with what is there, of the parts before, and not with zero.
    pub(super) accumulate: bool,
}

impl Part {
    /// The blocks and the results of column `c`.
    ///
    /// # Safety
    /// There is such a column.
    #[inline]
    pub(super) unsafe fn column(&self, c: usize) -> (*const ActBlock, *mut f32) {
        // SAFETY: the caller's.
        unsafe { (self.x.add(c * self.blocks), self.out.data.add(c * self.out.stride)) }
    }

    /// Block `b` of each of `N` columns, of which the first is `x`.
    ///
    /// # Safety
    /// There are such columns, and they have the block.
    #[inline(always)]
    pub(super) unsafe fn blocks_of<const N: usize>(&self, x: *const ActBlock, b: usize) -> [*const ActBlock; N] {
        let mut blocks = [x; N];
        for (c, block) in blocks.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *block = unsafe { x.add(c * self.blocks + b) };
        }
        blocks
    }
}

impl Panels {
    /// Panels that are unpacked beside one another.
    fn beside(&self) -> usize {
        1 + usize::from(self.pairs.is_some())
    }

    /// Parts that panels of so many blocks are unpacked in. One at least: a row without elements gives zero.
    fn parts(&self, blocks: usize, n_cols: usize) -> usize {
        let steps = if n_cols <= PART_COLUMNS { PART_BYTES / (4 * self.floats) } else { blocks };
        blocks.div_ceil(steps.max(1)).max(1)
    }

    /// Floats of scratch memory for rows of so many blocks.
    pub(super) fn scratch_floats(&self, blocks: usize, n_cols: usize) -> usize {
        self.beside() * blocks.div_ceil(self.parts(blocks, n_cols)) * self.floats
    }

    /// The product of some rows with `n_cols` columns. How they are cut into parts does not change a bit.
    ///
    /// # Safety
    /// As [`super::mul_mat::mul_mat`]; the processor has what the functions need.
    pub(super) unsafe fn product(
        &self,
        w: Rows,
        rows: Range<usize>,
        x: &[ActBlock],
        n_cols: usize,
        out: Out,
        scratch: &mut Scratch<'_>,
    ) {
        let (groups, blocks, bytes) = (w.k / 32, act_blocks(w.k), w.bytes());
        debug_assert_eq!(self.floats % 16, 0, "steps are as aligned as the first");
        let parts = self.parts(blocks, n_cols);
        let panel = scratch.floats(self.scratch_floats(blocks, n_cols)).as_mut_ptr();
        let rows_beside = self.beside() * self.rows;
        for first in rows.clone().step_by(rows_beside) {
            let n = (rows.end - first).min(rows_beside);
            let panels = n.div_ceil(self.rows);
            let tiles = self.pairs.filter(|_| panels == 2).unwrap_or(self.tiles);
            let row = |r: usize| w.data.wrapping_add(r * w.stride);
            // The next rows from end to end, whatever the parts: memory is fastest as one stream.
            let next = (rows.end - first - n).min(rows_beside);
            let steps = (panels * FILL_COLUMNS + n_cols) * blocks;
            let mut ahead = Ahead::new(row(first + n), w.stride, next, bytes, steps);
            for part in 0..parts {
                // Steps before this part and the next.
                let [start, end] = [part, part + 1].map(|part| part * blocks / parts);
                let groups = (groups - 8 * start).min(8 * (end - start));
                for p in 0..panels {
                    let of_row = row(first + p * self.rows).wrapping_add(start * self.step);
                    let pointers = self.pointers(of_row, w.stride, n - p * self.rows);
                    let to = panel.wrapping_add(p * (end - start) * self.floats);
                    // SAFETY: groups of the caller's rows, and memory for as many panels.
                    unsafe { (self.fill)(&pointers, groups, to, &mut ahead) };
                }
                // SAFETY: the caller's columns and results.
                let (x, data) = unsafe { (x.as_ptr().add(start), out.data.add(first)) };
                let out = Out { data, ..out };
                let part = Part { panel, groups, x, blocks, out, rows: n, accumulate: start > 0 };
                // SAFETY: as above.
                unsafe { multiply(tiles, &part, n_cols, &mut ahead) };
            }
        }
    }

    /// Where the rows of a panel lie, `n` of them from `first` on. A panel that has fewer repeats its last; what comes of that is not written.
    fn pointers(&self, first: *const u8, stride: usize, n: usize) -> [*const u8; MAX_ROWS] {
        let mut pointers = [std::ptr::null(); MAX_ROWS];
        for (r, pointer) in pointers.iter_mut().enumerate().take(self.rows) {
            *pointer = first.wrapping_add(r.min(n - 1) * stride);
        }
        pointers
    }
}

/// A part times all columns: as few tiles as can be, all of about the same width.
///
/// # Safety
/// The part has so many columns; the processor has what the tiles need.
unsafe fn multiply(tiles: &[Tile], part: &Part, n_cols: usize, ahead: &mut Ahead) {
    let count = n_cols.div_ceil(tiles.len());
    for i in 0..count {
        // So many columns lie before this tile and the next.
        let [c, next] = [i, i + 1].map(|i| i * n_cols / count);
        // SAFETY: columns c..next are the caller's, and no more than there are tiles.
        unsafe { tiles[next - c - 1](part, c, ahead) };
    }
}
