//! REPEAT: tiles a tensor to a larger shape.

use super::*;

/// Source: x F32 (or I32) with dense rows whose extents divide `ne`. Result: x's type, shape `ne`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeat {
    /// The shape to fill.
    pub ne: [usize; DIMS],
}

impl OpSpec for Repeat {
    const NAMES: &'static [&'static str] = &["REPEAT"];

    fn name(&self) -> &'static str {
        "REPEAT"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.ints("ne", &self.ne);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Repeat { ne: attrs.ints("ne")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.get(0, "x")?;
        check(matches!(x.dtype(), DType::F32 | DType::I32), || format!("x must be F32 or I32, not {x}"))?;
        check(x.has_dense_rows(), || format!("x must have dense rows, not {x}"))?;
        let out = Inferred::new(x.dtype(), self.ne)?;
        check(x.repeats_to(&out.layout), || format!("x {x} does not repeat to {:?}", self.ne))?;
        Ok(out)
    }
}
