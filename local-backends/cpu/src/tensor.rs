//! Tensors as kernels see them: addresses of rows.

use outboard_core::DType;
use outboard_host::TensorPtr;

/// A tensor in memory. Everything here relies on what `outboard_host` promises: each element that the layout describes is
/// inside the tensor's buffer, and results are in memory that may be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct T(TensorPtr);

impl T {
    pub(crate) fn new(ptr: TensorPtr) -> T {
        T(ptr)
    }

    pub(crate) fn ne(&self) -> [usize; 4] {
        self.0.layout.ne()
    }

    pub(crate) fn nb(&self) -> [usize; 4] {
        self.0.layout.nb()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.0.layout.dtype()
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.0.layout.rows()
    }

    pub(crate) fn has_dense_rows(&self) -> bool {
        self.0.layout.has_dense_rows()
    }

    /// Bytes of a dense row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.dtype().row_bytes(self.ne()[0]).unwrap_or(0)
    }

    /// The first byte of the row at this index.
    pub(crate) fn row(&self, [i1, i2, i3]: [usize; 3]) -> *mut u8 {
        let ([_, n1, n2, n3], [_, b1, b2, b3]) = (self.ne(), self.nb());
        debug_assert!(i1 < n1 && i2 < n2 && i3 < n3, "row {i1} {i2} {i3} of {}", self.0.layout);
        // SAFETY: the row is inside the tensor, see the type.
        unsafe { self.0.ptr.add(i1 * b1 + i2 * b2 + i3 * b3) }
    }

    /// A dense F32 row to read.
    pub(crate) fn f32s(&self, at: [usize; 3]) -> &[f32] {
        debug_assert!(self.dtype() == DType::F32 && self.has_dense_rows());
        // SAFETY: a dense row inside the tensor, aligned because buffers, offsets and strides are.
        unsafe { std::slice::from_raw_parts(self.row(at).cast(), self.ne()[0]) }
    }

    /// A dense F32 row to write. The caller is the only one who uses that row meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn f32s_mut(&self, at: [usize; 3]) -> &mut [f32] {
        debug_assert!(self.dtype() == DType::F32 && self.has_dense_rows());
        // SAFETY: as in `f32s`; no two pieces of work have the same row of a result, and within a piece sources that share
        // it are copied from before this is called.
        unsafe { std::slice::from_raw_parts_mut(self.row(at).cast(), self.ne()[0]) }
    }

    /// An element of an I32 tensor.
    pub(crate) fn int(&self, i: [usize; 4]) -> i32 {
        let offset: usize = i.iter().zip(self.nb()).map(|(i, nb)| i * nb).sum();
        // SAFETY: an element of the tensor.
        unsafe { self.0.ptr.add(offset).cast::<i32>().read_unaligned() }
    }

    /// Sets an element of an I32 tensor.
    pub(crate) fn set_int(&self, i: [usize; 4], value: i32) {
        let offset: usize = i.iter().zip(self.nb()).map(|(i, nb)| i * nb).sum();
        // SAFETY: an element of a result.
        unsafe { self.0.ptr.add(offset).cast::<i32>().write_unaligned(value) }
    }

    /// Sets an element of an F32 tensor.
    pub(crate) fn set_float(&self, i: [usize; 4], value: f32) {
        let offset: usize = i.iter().zip(self.nb()).map(|(i, nb)| i * nb).sum();
        // SAFETY: an element of a result.
        unsafe { self.0.ptr.add(offset).cast::<f32>().write_unaligned(value) }
    }

    /// Index of the `r`-th row.
    pub(crate) fn unravel(&self, r: usize) -> [usize; 3] {
        let [_, n1, n2, _] = self.ne();
        [r % n1, r / n1 % n2, r / (n1 * n2)]
    }

    /// Index of the row of this tensor that is repeated to a row of a larger one.
    pub(crate) fn wrap(&self, at: [usize; 3]) -> [usize; 3] {
        let [_, n1, n2, n3] = self.ne();
        [at[0] % n1, at[1] % n2, at[2] % n3]
    }
}

/// A row index that comes from data, checked.
pub(crate) fn checked(index: i32, n: usize, what: &str) -> Result<usize, String> {
    usize::try_from(index).ok().filter(|&i| i < n).ok_or_else(|| format!("{what} {index} is outside 0..{n}"))
}
