//! CLAMP: `out = min(max(x, min), max)`; NaN stays.

use super::*;

/// Source: x F32 with dense rows. Result: F32 of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// Lower bound.
    pub min: f32,
    /// Upper bound, not below `min`.
    pub max: f32,
}

impl OpSpec for Clamp {
    const NAMES: &'static [&'static str] = &["CLAMP"];

    fn name(&self) -> &'static str {
        "CLAMP"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.float("min", self.min).float("max", self.max);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Clamp { min: attrs.float("min")?, max: attrs.float("max")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        check(self.min <= self.max, || format!("min {} is above max {}", self.min, self.max))?;
        Inferred::new(DType::F32, srcs.f32_rows(0, "x")?.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }
}
