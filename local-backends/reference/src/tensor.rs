//! Element by element access to tensors in memory, the only unsafe code of this device. It is also where a run that is not wanted any
//! more ends: every loop of an op comes by here.

use outboard_core::DType;
use outboard_core::quant::{dequantize_row, quantize_row};
use outboard_host::TensorPtr;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tensor; indices are checked against its shape.
#[derive(Clone, Copy)]
pub(crate) struct T<'a> {
    at: TensorPtr,
    abort: &'a AtomicBool,
}

/// What unwinds an op whose run was aborted.
pub(crate) struct Aborted;

/// An index per dimension.
pub(crate) type Index = [usize; 4];

impl<'a> T<'a> {
    /// The tensor at this place, for a run that ends when `abort` is set: by unwinding with [`Aborted`].
    pub(crate) fn new(at: TensorPtr, abort: &'a AtomicBool) -> T<'a> {
        T { at, abort }
    }

    fn check(&self) {
        if self.abort.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Aborted));
        }
    }

    pub(crate) fn ne(&self) -> [usize; 4] {
        self.at.layout.ne()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at.layout.is_empty()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.at.layout.dtype()
    }

    /// All indices in order, the first dimension fastest.
    pub(crate) fn indices(&self) -> impl Iterator<Item = Index> + use<> {
        let ne = self.ne();
        rows(ne).flat_map(move |[_, i1, i2, i3]| (0..ne[0]).map(move |i0| [i0, i1, i2, i3]))
    }

    /// The first index of every row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Index> + use<> {
        rows(self.ne())
    }

    fn offset(&self, i: Index) -> usize {
        self.check();
        let ne = self.ne();
        assert!((0..4).all(|d| i[d] < ne[d]), "index {i:?} is outside {}", self.at.layout);
        i.iter().zip(self.at.layout.nb()).map(|(i, nb)| i * nb).sum()
    }

    fn load<const N: usize>(&self, i: Index) -> [u8; N] {
        assert!(
            !self.dtype().is_quantized() && self.dtype().block_bytes() == N,
            "{} has no elements of {N} bytes",
            self.dtype()
        );
        // SAFETY: the element is inside the layout (checked in `offset`), which is inside the tensor's memory.
        unsafe { self.at.ptr.add(self.offset(i)).cast::<[u8; N]>().read_unaligned() }
    }

    fn store<const N: usize>(&self, i: Index, value: [u8; N]) {
        assert!(
            !self.dtype().is_quantized() && self.dtype().block_bytes() == N,
            "{} has no elements of {N} bytes",
            self.dtype()
        );
        // SAFETY: as in `load`; results and targets of writes are in writable memory (checked by `Placement`).
        unsafe { self.at.ptr.add(self.offset(i)).cast::<[u8; N]>().write_unaligned(value) }
    }

    /// An element of a float tensor.
    pub(crate) fn get(&self, i: Index) -> f64 {
        match self.dtype() {
            DType::F32 => f32::from_le_bytes(self.load(i)).into(),
            DType::I32 => i32::from_le_bytes(self.load(i)).into(),
            dtype => {
                let mut x = [0.0];
                dequantize_row(dtype, &self.load::<2>(i), &mut x).unwrap_or_default();
                x[0].into()
            }
        }
    }

    /// An element of an I32 tensor.
    pub(crate) fn int(&self, i: Index) -> i32 {
        i32::from_le_bytes(self.load(i))
    }

    /// Sets an element of a float tensor.
    pub(crate) fn set(&self, i: Index, value: f64) {
        match self.dtype() {
            DType::F32 => self.store(i, (value as f32).to_le_bytes()),
            dtype => {
                let mut bytes = [0; 2];
                quantize_row(dtype, &[value as f32], &mut bytes).unwrap_or_default();
                self.store(i, bytes);
            }
        }
    }

    /// Sets an element of an I32 tensor.
    pub(crate) fn set_int(&self, i: Index, value: i32) {
        self.store(i, value.to_le_bytes());
    }

    /// The row that starts at `i`, of any type but I32, as real numbers.
    pub(crate) fn row(&self, i: Index) -> Vec<f64> {
        let [n, ..] = self.ne();
        if !self.dtype().is_quantized() {
            return (0..n).map(|i0| self.get([i0, i[1], i[2], i[3]])).collect();
        }
        let mut out = vec![0.0f32; n];
        if n > 0 {
            let len = self.dtype().row_bytes(n).unwrap_or(0);
            let start = self.offset([0, i[1], i[2], i[3]]);
            // SAFETY: a row of a quantized tensor is dense and inside the layout.
            let bytes = unsafe { std::slice::from_raw_parts(self.at.ptr.add(start), len) };
            dequantize_row(self.dtype(), bytes, &mut out).unwrap_or_default();
        }
        out.into_iter().map(f64::from).collect()
    }

    /// Writes the row that starts at `i`.
    pub(crate) fn set_row(&self, i: Index, values: &[f64]) {
        let [n, ..] = self.ne();
        assert!(values.len() == n, "{} values for a row of {n}", values.len());
        if !self.dtype().is_quantized() {
            values.iter().enumerate().for_each(|(i0, &v)| self.set([i0, i[1], i[2], i[3]], v));
            return;
        }
        let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let mut bytes = vec![0u8; self.dtype().row_bytes(n).unwrap_or(0)];
        quantize_row(self.dtype(), &values, &mut bytes).unwrap_or_default();
        if n > 0 {
            let start = self.offset([0, i[1], i[2], i[3]]);
            // SAFETY: as in `row`, and writable as in `store`; `bytes` is not part of a buffer.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.ptr.add(start), bytes.len()) };
        }
    }
}

fn rows(ne: [usize; 4]) -> impl Iterator<Item = Index> {
    let none = ne.contains(&0);
    let [_, n1, n2, n3] = if none { [0; 4] } else { ne };
    (0..n3).flat_map(move |i3| (0..n2).flat_map(move |i2| (0..n1).map(move |i1| [0, i1, i2, i3])))
}
