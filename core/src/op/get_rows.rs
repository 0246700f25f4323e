//! GET_ROWS: rows of a table by index, dequantized.

use super::*;

/// `out[.., i, j, k] = a[.., ids[i, j, k], j, k]`. Sources: a `[n, rows, a2, a3]` of any type with dense rows, ids I32
/// `[count, a2, a3]`. An index outside `0..rows` fails the node. Result: F32 (I32 if a is) `[n, count, a2, a3]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GetRows;

impl OpSpec for GetRows {
    const NAMES: &'static [&'static str] = &["GET_ROWS"];

    fn name(&self) -> &'static str {
        "GET_ROWS"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(GetRows)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let a = srcs.get(0, "a")?;
        let ids = srcs.typed(1, "ids", DType::I32)?;
        check(a.has_dense_rows(), || format!("a must have dense rows, not {a}"))?;
        let [n, _, a2, a3] = a.ne();
        let [count, i1, i2, i3] = ids.ne();
        check(i1 == a2 && i2 == a3 && i3 == 1, || format!("ids {ids} do not suit a {a}"))?;
        let dtype = if a.dtype() == DType::I32 { DType::I32 } else { DType::F32 };
        Inferred::new(dtype, [n, count, a2, a3])
    }
}
