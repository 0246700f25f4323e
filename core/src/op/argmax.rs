//! ARGMAX: the index of the largest element of each row; the first one of equals.

use super::*;

/// Source: x F32 `[n, rows]` with dense rows, n at least 1 and below 2^31. Result: I32 `[rows]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Argmax;

impl OpSpec for Argmax {
    const NAMES: &'static [&'static str] = &["ARGMAX"];

    fn name(&self) -> &'static str {
        "ARGMAX"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Argmax)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.f32_rows(0, "x")?;
        let [n, rows, x2, x3] = x.ne();
        check(x2 == 1 && x3 == 1, || format!("x must be a matrix, not {x}"))?;
        check((1..=i32::MAX as usize).contains(&n), || format!("rows of {x} have no index of their largest element"))?;
        Inferred::new(DType::I32, [rows, 1, 1, 1])
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}
