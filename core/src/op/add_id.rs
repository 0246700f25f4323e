//! ADD_ID: adds chosen rows of a table, the biases of the experts of a mixture.

use super::*;

/// `out[.., s, t] = a[.., s, t] + b[.., ids[s, t]]`. Sources: a F32 `[n, n_used, n_tokens]` and b F32 `[n, n_expert]`, both with
/// dense rows, ids I32 `[n_used, n_tokens]`. An id outside `0..n_expert` fails the node. Result: F32 of a's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddId;

impl OpSpec for AddId {
    const NAMES: &'static [&'static str] = &["ADD_ID"];

    fn name(&self) -> &'static str {
        "ADD_ID"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(AddId)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(3, 3)?;
        let a = srcs.f32_rows(0, "a")?;
        let b = srcs.f32_rows(1, "b")?;
        let ids = srcs.typed(2, "ids", DType::I32)?;
        let [n, used, tokens, a3] = a.ne();
        let [b_n, _, b2, b3] = b.ne();
        check(a3 == 1, || format!("a must be [n, used, tokens], not {a}"))?;
        check(b2 == 1 && b3 == 1, || format!("b must be [n, experts], not {b}"))?;
        check(b_n == n, || format!("rows of a {a} and b {b} differ in length"))?;
        check(ids.ne() == [used, tokens, 1, 1], || format!("ids {ids} do not suit a {a}"))?;
        Inferred::new(DType::F32, a.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }
}
