//! SOFT_MAX: softmax of rows, with a scale and a mask.

use super::*;

/// `out = softmax(scale * x + mask)` per row. Sources: x F32 `[n, rows, heads, x3]` with dense rows, mask (optional) F32 or F16
/// `[n, rows, 1 or heads, 1 or x3]` with dense rows; a mask of minus infinity excludes. A row that is excluded entirely gives zeros. Result: F32 of x's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftMax {
    /// Factor of x before the mask is added.
    pub scale: f32,
}

impl OpSpec for SoftMax {
    const NAMES: &'static [&'static str] = &["SOFT_MAX"];

    fn name(&self) -> &'static str {
        "SOFT_MAX"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.float("scale", self.scale);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(SoftMax { scale: attrs.float("scale")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 2)?;
        let x = srcs.f32_rows(0, "x")?;
        if let Some(mask) = srcs.opt(1) {
            let typed = matches!(mask.dtype(), DType::F32 | DType::F16) && mask.has_dense_rows();
            let fits = mask.ne()[..2] == x.ne()[..2] && mask.repeats_to(&x);
            check(typed && fits, || format!("mask {mask} does not suit x {x}"))?;
        }
        Inferred::new(DType::F32, x.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn flops(&self, _: &Srcs, out: &Layout) -> u64 {
        5 * out.elements() as u64
    }
}
