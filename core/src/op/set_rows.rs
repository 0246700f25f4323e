//! SET_ROWS: writes rows of a table by index, converting to its type. This is how the KV cache is written.

use super::*;

/// `dst[.., ids[i, j % i1, k % i2], j, k] = src[.., i, j, k]`. Sources: dst `[n, rows, d2, d3]` with dense rows, src F32
/// `[n, count, d2, d3]` with dense rows (I32 if dst is), ids I32 `[count, i1, i2]`, where i1 divides d2 and i2 divides d3 (one list may
/// serve all heads), each id once in its list. An index outside `0..rows` fails the
/// node before anything is written. Result: dst, after the write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetRows;

impl OpSpec for SetRows {
    const NAMES: &'static [&'static str] = &["SET_ROWS"];

    fn name(&self) -> &'static str {
        "SET_ROWS"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(SetRows)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(3, 3)?;
        let dst = srcs.get(0, "dst")?;
        let whole = dst.dtype() == DType::I32;
        let src = srcs.typed(1, "src", if whole { DType::I32 } else { DType::F32 })?;
        check(src.has_dense_rows(), || format!("src must have dense rows, not {src}"))?;
        let ids = srcs.typed(2, "ids", DType::I32)?;
        check(whole || mul_mat::is_weight_type(dst.dtype()), || format!("dst cannot be {dst}"))?;
        check(dst.has_dense_rows() && dst.is_disjoint(), || format!("dst must have dense, separate rows, not {dst}"))?;
        let [n, _, d2, d3] = dst.ne();
        let [count, i1, i2, i3] = ids.ne();
        check(src.ne() == [n, count, d2, d3], || format!("src {src} does not suit dst {dst} and ids {ids}"))?;
        let repeats = |i: usize, d: usize| i == d || i != 0 && d % i == 0;
        check(repeats(i1, d2) && repeats(i2, d3) && i3 == 1, || format!("ids {ids} do not suit dst {dst}"))?;
        Ok(Inferred::alias(dst, 0, 0))
    }

    fn writes(&self) -> Option<usize> {
        Some(0)
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        srcs.opt(1).map_or(0, |s| s.elements() as u64)
    }
}
