//! Rows reduced to one number, or summed as they go: SUM_ROWS, MEAN, CUMSUM.

use super::*;

kinds! {
    /// The reduction.
    ReduceKind {
        /// Sum of each row, `[1, ..]`.
        SumRows => "SUM_ROWS",
        /// Mean of each row, `[1, ..]`.
        Mean => "MEAN",
        /// Running sums of each row, of x's shape.
        Cumsum => "CUMSUM",
    }
}

/// Source: x F32 `[n, ..]` with dense rows. Result: F32, see [`ReduceKind`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduce {
    /// Which reduction.
    pub kind: ReduceKind,
}

impl OpSpec for Reduce {
    const NAMES: &'static [&'static str] = ReduceKind::NAMES;

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(name: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Reduce { kind: ReduceKind::from_name(name)? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let mut ne = srcs.f32_rows(0, "x")?.ne();
        match self.kind {
            ReduceKind::Cumsum => {}
            ReduceKind::SumRows => ne[0] = 1,
            ReduceKind::Mean => {
                check(ne[0] > 0, || "the mean of empty rows is not defined".into())?;
                ne[0] = 1;
            }
        }
        Inferred::new(DType::F32, ne)
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}
