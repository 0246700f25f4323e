//! Shapes with byte strides.
//!
//! As in ggml, `ne[0]` is the fastest dimension: a row-major matrix of `rows x cols` is `[cols, rows, 1, 1]`. Strides
//! `nb` are in bytes; `nb[0]` is the size of an element, or of a block for quantized types. All arithmetic on values
//! that come from outside is checked: a [`Layout`] that exists has a span that fits in `usize`.

use crate::dtype::DType;
use std::fmt;

/// Number of dimensions of every tensor; unused ones are 1.
pub const DIMS: usize = 4;

/// Largest span of one tensor in bytes (16 TiB): far above real ones, far below overflow of sums of sizes.
pub const MAX_TENSOR_BYTES: usize = 1 << 44;

/// Most elements of a tensor whose elements lie on one another (a stride of 0). What a device computes is bounded by the memory that
/// it takes, except here: this many take a device a second or so, and no broadcast of real models has more.
pub const MAX_OVERLAPPING: usize = 1 << 28;

/// Extent of a tensor in elements and the distance between its elements in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    ne: [usize; DIMS],
    nb: [usize; DIMS],
    span: usize,
    dtype: DType,
}

/// What is wrong with a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Rows of quantized types hold whole blocks.
    #[error("rows of {dtype} must be a multiple of {} elements, not {ne0}", dtype.block_len())]
    Block {
        /// The element type.
        dtype: DType,
        /// The length of a row that was asked for.
        ne0: usize,
    },
    /// The size does not fit.
    #[error("{dtype} {ne:?} is larger than {MAX_TENSOR_BYTES} bytes")]
    TooLarge {
        /// The element type.
        dtype: DType,
        /// The shape that was asked for.
        ne: [usize; DIMS],
    },
    /// Strides of quantized types, or strides smaller than an element.
    #[error("strides {nb:?} do not suit {dtype} {ne:?}")]
    Strides {
        /// The element type.
        dtype: DType,
        /// The shape.
        ne: [usize; DIMS],
        /// The strides in bytes.
        nb: [usize; DIMS],
    },
}

/// Fills a shape of up to four dimensions with ones. `None` if there are more than four.
pub fn dims(shape: &[usize]) -> Option<[usize; DIMS]> {
    let mut ne = [1; DIMS];
    ne.get_mut(..shape.len())?.copy_from_slice(shape);
    Some(ne)
}

impl Layout {
    /// A contiguous tensor of shape `ne`.
    pub fn contiguous(dtype: DType, ne: [usize; DIMS]) -> Result<Layout, ShapeError> {
        let row = match dtype.row_bytes(ne[0]) {
            Some(row) => row,
            None if ne[0] % dtype.block_len() != 0 => return Err(ShapeError::Block { dtype, ne0: ne[0] }),
            None => return Err(ShapeError::TooLarge { dtype, ne }),
        };
        let mut nb = [dtype.block_bytes(), row, 0, 0];
        for d in 2..DIMS {
            nb[d] = nb[d - 1].checked_mul(ne[d - 1].max(1)).ok_or(ShapeError::TooLarge { dtype, ne })?;
        }
        Layout::strided(dtype, ne, nb)
    }

    /// A tensor with the given strides. Elements may overlap (a stride of 0 repeats), which only reads may use.
    pub fn strided(dtype: DType, ne: [usize; DIMS], nb: [usize; DIMS]) -> Result<Layout, ShapeError> {
        let too_large = ShapeError::TooLarge { dtype, ne };
        let row = dtype.row_bytes(ne[0]).ok_or_else(|| match ne[0] % dtype.block_len() {
            0 => too_large.clone(),
            _ => ShapeError::Block { dtype, ne0: ne[0] },
        })?;
        if dtype.is_quantized() && nb[0] != dtype.block_bytes() {
            return Err(ShapeError::Strides { dtype, ne, nb });
        }
        let aligned = if dtype.is_quantized() { 1 } else { dtype.block_bytes() };
        if nb.iter().any(|n| n % aligned != 0) {
            return Err(ShapeError::Strides { dtype, ne, nb });
        }
        // The count of elements is bounded as well as the span: strides of 0 must not make endless work.
        // So are the extents of a tensor that has none, whose rows are counted all the same.
        let most = ne.iter().try_fold(1usize, |n, &e| n.checked_mul(e.max(1))).ok_or(too_large.clone())?;
        let count = if ne.contains(&0) { 0 } else { most };
        if most > MAX_TENSOR_BYTES || nb.iter().any(|&n| n > MAX_TENSOR_BYTES) {
            return Err(too_large);
        }
        let mut span = 0usize;
        if count > 0 {
            span = if dtype.is_quantized() {
                row
            } else {
                (ne[0] - 1)
                    .checked_mul(nb[0])
                    .and_then(|n| n.checked_add(dtype.block_bytes()))
                    .ok_or(too_large.clone())?
            };
            for d in 1..DIMS {
                span = (ne[d] - 1).checked_mul(nb[d]).and_then(|n| n.checked_add(span)).ok_or(too_large.clone())?;
            }
        }
        // An element takes a byte at least, or half of one in a block: where fewer bytes are spanned, elements overlap.
        if span > MAX_TENSOR_BYTES || count > MAX_OVERLAPPING && span < count / 8 {
            return Err(too_large);
        }
        Ok(Layout { ne, nb, span, dtype })
    }

    /// Elements per dimension.
    pub fn ne(&self) -> [usize; DIMS] {
        self.ne
    }

    /// Strides in bytes.
    pub fn nb(&self) -> [usize; DIMS] {
        self.nb
    }

    /// The element type that the strides are for.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes from the first to behind the last element; 0 for an empty tensor.
    pub fn span(&self) -> usize {
        self.span
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Number of rows: elements of the dimensions above the first.
    pub fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.ne.contains(&0)
    }

    /// Whether elements lie behind one another without gaps (strides of dimensions of one element do not matter).
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous_above(0)
    }

    /// Whether each row is dense: element `i` at `i * size of an element`.
    pub fn has_dense_rows(&self) -> bool {
        self.ne[0] <= 1 || self.nb[0] == self.dtype.block_bytes()
    }

    /// Whether dimensions from `dim` up follow one another without gaps, given the stride of `dim` itself.
    fn is_contiguous_above(&self, dim: usize) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut next = self.dtype.block_bytes();
        for d in 0..DIMS {
            if d >= dim && self.ne[d] != 1 && self.nb[d] != next {
                return false;
            }
            next = if d == 0 { next * (self.ne[0] / self.dtype.block_len()) } else { next * self.ne[d] };
        }
        true
    }

    /// Whether no two elements share bytes, so that the tensor may be written.
    pub fn is_disjoint(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut order: Vec<(usize, usize)> = (0..DIMS)
            .filter(|&d| self.ne[d] > 1)
            .map(|d| (self.nb[d], if d == 0 { self.ne[0] / self.dtype.block_len() } else { self.ne[d] }))
            .collect();
        order.sort_unstable();
        let mut next = self.dtype.block_bytes();
        for (stride, count) in order {
            if stride < next {
                return false;
            }
            next = stride * count;
        }
        true
    }

    /// Whether a tensor of this shape can be repeated to fill `to` (each extent divides).
    pub fn repeats_to(&self, to: &Layout) -> bool {
        (0..DIMS).all(|d| self.ne[d] != 0 && to.ne[d] % self.ne[d] == 0) || to.is_empty()
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Layout {
    /// `F32[576, 5]`, with strides only where they are not the contiguous ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = (1..DIMS).rev().find(|&d| self.ne[d] != 1).map_or(1, |d| d + 1);
        write!(f, "{}{:?}", self.dtype, &self.ne[..used])?;
        if !self.is_contiguous() {
            write!(f, " strides {:?}", &self.nb[..used])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_strides() {
        let l = Layout::contiguous(DType::Q4_1, [64, 3, 2, 1]).unwrap();
        assert_eq!(l.nb(), [20, 40, 120, 240]);
        assert_eq!(l.span(), 240);
        assert!(l.is_contiguous() && l.is_disjoint());
    }

    #[test]
    fn views_and_overlap() {
        let t = Layout::strided(DType::F32, [3, 4, 1, 1], [16, 4, 48, 48]).unwrap();
        assert!(!t.is_contiguous() && t.is_disjoint());
        assert_eq!(t.span(), 2 * 16 + 3 * 4 + 4);
        let b = Layout::strided(DType::F32, [4, 4, 1, 1], [4, 0, 0, 0]).unwrap();
        assert!(!b.is_disjoint());
    }

    #[test]
    fn sizes_that_do_not_fit() {
        assert!(Layout::contiguous(DType::F32, [usize::MAX, 2, 1, 1]).is_err());
        assert!(Layout::contiguous(DType::F32, [1 << 32, 1 << 32, 1, 1]).is_err());
        assert!(Layout::contiguous(DType::Q4_0, [33, 1, 1, 1]).is_err());
        assert!(Layout::strided(DType::F32, [2, 2, 1, 1], [4, usize::MAX - 3, 0, 0]).is_err());
        assert!(Layout::strided(DType::F32, [2, 2, 1, 1], [2, 8, 16, 16]).is_err());
        assert!(Layout::strided(DType::F32, [1 << 20, 1 << 20, 1 << 20, 1], [0, 0, 0, 0]).is_err());
    }

    #[test]
    fn little_memory_is_little_work() {
        let all_one = |ne| Layout::strided(DType::F32, ne, [0; 4]);
        assert!(all_one([1 << 14, 1 << 14, 1, 1]).is_ok());
        assert!(all_one([1 << 14, 1 << 14, 2, 1]).is_err());
        assert!(Layout::strided(DType::F32, [1 << 10, 1 << 30, 1, 1], [4, 4, 0, 0]).is_err());
        assert!(Layout::contiguous(DType::Q2_K, [1 << 20, 1 << 20, 1, 1]).is_ok());
    }

    #[test]
    fn empty_has_no_span() {
        let l = Layout::contiguous(DType::F32, [4, 0, 3, 1]).unwrap();
        assert_eq!((l.span(), l.elements()), (0, 0));
        assert!(Layout::contiguous(DType::F32, [0, 1 << 40, 1 << 40, 1]).is_err());
    }
}
