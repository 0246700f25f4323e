//! SCALE: `out = scale * x + bias`.

use super::*;

/// Source: x F32 with dense rows. Result: F32 of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Factor.
    pub scale: f32,
    /// Added afterwards.
    pub bias: f32,
}

impl OpSpec for Scale {
    const NAMES: &'static [&'static str] = &["SCALE"];

    fn name(&self) -> &'static str {
        "SCALE"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.float("scale", self.scale).float("bias", self.bias);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Scale { scale: attrs.float("scale")?, bias: attrs.float("bias")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        Inferred::new(DType::F32, srcs.f32_rows(0, "x")?.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }
}
