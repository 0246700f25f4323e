//! LOG_PROB: the log-probability of chosen elements under the softmax of a row.

use super::*;

/// `out[i] = x[ids[i], i] - log(sum_j exp(x[j, i]))`. Sources: x F32 `[n, rows]` with dense rows, ids I32 `[rows]`. An id
/// outside `0..n` fails the node. Result: F32 `[rows]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogProb;

impl OpSpec for LogProb {
    const NAMES: &'static [&'static str] = &["LOG_PROB"];

    fn name(&self) -> &'static str {
        "LOG_PROB"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(LogProb)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let x = srcs.f32_rows(0, "x")?;
        let ids = srcs.typed(1, "ids", DType::I32)?;
        let [n, rows, x2, x3] = x.ne();
        check(n > 0 && x2 == 1 && x3 == 1, || format!("x must be a matrix with columns, not {x}"))?;
        check(ids.ne() == [rows, 1, 1, 1], || format!("ids {ids} do not suit x {x}"))?;
        Inferred::new(DType::F32, [rows, 1, 1, 1])
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        4 * srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}
