//! CAST: a contiguous copy in another type.

use super::*;

/// Source: x F32, F16 or BF16 of any strides (I32 only to I32), or a quantized type with dense rows to F32. Result: `dtype`, x's
/// shape, contiguous.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cast {
    /// The type to convert to.
    pub dtype: DType,
}

/// Whether elements of `src` can be converted to `to`.
pub(super) fn check_conversion(src: &Layout, to: DType) -> Result<(), String> {
    let ok = match (src.dtype(), to) {
        (DType::I32, DType::I32) => true,
        (DType::I32, _) | (_, DType::I32 | DType::Q8_K) => false,
        (from, _) if from.is_float() => !to.is_quantized() || src.has_dense_rows(),
        (from, to) => from != DType::Q8_K && to == DType::F32,
    };
    check(ok, || format!("cannot convert {src} to {to}"))
}

impl OpSpec for Cast {
    const NAMES: &'static [&'static str] = &["CAST"];

    fn name(&self) -> &'static str {
        "CAST"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.text("dtype", self.dtype.name());
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        let name = attrs.text("dtype")?;
        let dtype = DType::from_name(&name).ok_or_else(|| format!("unknown dtype {name}"))?;
        Ok(Cast { dtype })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.get(0, "x")?;
        check_conversion(&x, self.dtype)?;
        Inferred::new(self.dtype, x.ne())
    }
}
