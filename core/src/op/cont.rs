//! CONT: a contiguous copy.

use super::*;

/// Source: x F32, F16, BF16 or I32 of any strides. Result: x's type and shape, contiguous.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cont;

impl OpSpec for Cont {
    const NAMES: &'static [&'static str] = &["CONT"];

    fn name(&self) -> &'static str {
        "CONT"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Cont)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.get(0, "x")?;
        check(!x.dtype().is_quantized(), || format!("x must not be quantized, but is {x}"))?;
        Inferred::new(x.dtype(), x.ne())
    }
}
