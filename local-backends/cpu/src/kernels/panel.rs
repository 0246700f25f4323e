//! What panels of weight rows have in common, whatever the instruction set: their memory, and the way over the columns.

use super::act::ActBlock;

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

/// Goes over the columns in tiles of `width`, then of 4, then of what is left.
///
/// # Safety
/// As the tiles.
#[inline]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn columns(
    wide: Tile,
    width: usize,
    tiles: [Tile; 4],
    panel: *const f32,
    groups: usize,
    x: *const ActBlock,
    n_cols: usize,
    out: *mut f32,
    out_stride: usize,
    rows: usize,
) {
    let blocks = groups.div_ceil(8);
    let mut c = 0;
    while c < n_cols {
        let left = n_cols - c;
        let (tile, n) = if left >= width { (wide, width) } else { (tiles[left.min(4) - 1], left.min(4)) };
        // SAFETY: columns c..c + n are the caller's.
        unsafe { tile(panel, groups, x.add(c * blocks), blocks, out.add(c * out_stride), out_stride, rows) };
        c += n;
    }
}
