//! MUL_MAT: the matrix product, weights on the left.

use super::*;

/// `out[m, n] = sum_k a[k, m] * b[k, n]`. Sources: a `[k, m, a2, a3]` of any type but I32 and Q8_K with dense rows, b F32
/// `[k, n, b2, b3]` with dense rows, where a2 divides b2 and a3 divides b3 (a is repeated: grouped heads).
/// Result: F32 `[m, n, b2, b3]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MulMat;

/// Whether a type may stand on the weights' side of a product.
pub(super) fn is_weight_type(dtype: DType) -> bool {
    !matches!(dtype, DType::I32 | DType::Q8_K)
}

impl OpSpec for MulMat {
    const NAMES: &'static [&'static str] = &["MUL_MAT"];

    fn name(&self) -> &'static str {
        "MUL_MAT"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(MulMat)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let a = srcs.get(0, "a")?;
        let b = srcs.f32_rows(1, "b")?;
        check(is_weight_type(a.dtype()), || format!("a must hold weights, not {a}"))?;
        check(a.has_dense_rows(), || format!("a must have dense rows, not {a}"))?;
        let ([k, m, a2, a3], [bk, n, b2, b3]) = (a.ne(), b.ne());
        check(k == bk, || format!("rows of a {a} and b {b} differ in length"))?;
        let fits = a2 != 0 && a3 != 0 && b2 % a2 == 0 && b3 % a3 == 0;
        check(fits || b.is_empty(), || format!("a {a} does not repeat to b {b}"))?;
        Inferred::new(DType::F32, [m, n, b2, b3])
    }

    fn flops(&self, srcs: &Srcs, out: &Layout) -> u64 {
        2 * (srcs.opt(0).map_or(0, |a| a.ne()[0]) as u64) * out.elements() as u64
    }
}
