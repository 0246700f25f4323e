//! ARGSORT: the indices that sort each row. Equal elements keep their order, so the result is the same everywhere.

use super::*;
use std::cmp::Ordering;

/// Direction of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Smallest first.
    Ascending,
    /// Largest first.
    Descending,
}

impl Order {
    /// How two values compare: NaN comes above everything, 0 and -0 are equal (their indices then decide).
    pub fn compare(self, a: f32, b: f32) -> Ordering {
        let ascending = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
        match self {
            Order::Ascending => ascending,
            Order::Descending => ascending.reverse(),
        }
    }
}

/// Source: x F32 `[n, ..]` with dense rows, n below 2^31. Result: I32 of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Argsort {
    /// Direction.
    pub order: Order,
}

impl OpSpec for Argsort {
    const NAMES: &'static [&'static str] = &["ARGSORT"];

    fn name(&self) -> &'static str {
        "ARGSORT"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.int("descending", usize::from(self.order == Order::Descending));
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        match attrs.int("descending")? {
            0 => Ok(Argsort { order: Order::Ascending }),
            1 => Ok(Argsort { order: Order::Descending }),
            other => Err(format!("descending must be 0 or 1, not {other}")),
        }
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.f32_rows(0, "x")?;
        check(x.ne()[0] <= i32::MAX as usize, || format!("rows of {x} are too long"))?;
        Inferred::new(DType::I32, x.ne())
    }

    fn flops(&self, _: &Srcs, out: &Layout) -> u64 {
        out.elements() as u64 * u64::from(out.ne()[0].max(2).ilog2())
    }
}
