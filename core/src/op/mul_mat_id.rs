//! MUL_MAT_ID: matrix products with chosen matrices, the experts of a mixture.

use super::*;

/// `out[m, s, t] = sum_k a[k, m, ids[s, t]] * b[k, s or 0, t]`. Sources: a `[k, m, n_expert]` weights with dense rows, b F32
/// `[k, 1 or n_used, n_tokens]` with dense rows, ids I32 `[n_used, n_tokens]`. An id outside `0..n_expert` fails the node.
/// Result: F32 `[m, n_used, n_tokens]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MulMatId;

impl OpSpec for MulMatId {
    const NAMES: &'static [&'static str] = &["MUL_MAT_ID"];

    fn name(&self) -> &'static str {
        "MUL_MAT_ID"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(MulMatId)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(3, 3)?;
        let a = srcs.get(0, "a")?;
        let b = srcs.f32_rows(1, "b")?;
        let ids = srcs.typed(2, "ids", DType::I32)?;
        check(mul_mat::is_weight_type(a.dtype()), || format!("a must hold weights, not {a}"))?;
        check(a.has_dense_rows() && a.ne()[3] == 1, || format!("a must be [k, m, experts] with dense rows, not {a}"))?;
        let [used, tokens, i2, i3] = ids.ne();
        check(i2 == 1 && i3 == 1, || format!("ids must be [used, tokens], not {ids}"))?;
        let [k, b_used, b_tokens, b3] = b.ne();
        check(k == a.ne()[0], || format!("rows of a {a} and b {b} differ in length"))?;
        let fits = b_tokens == tokens && b3 == 1 && (b_used == used || b_used == 1);
        check(fits, || format!("b {b} does not suit ids {ids}"))?;
        Inferred::new(DType::F32, [a.ne()[1], used, tokens, 1])
    }

    fn flops(&self, srcs: &Srcs, out: &Layout) -> u64 {
        2 * (srcs.opt(0).map_or(0, |a| a.ne()[0]) as u64) * out.elements() as u64
    }
}
