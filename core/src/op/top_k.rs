//! TOP_K: the indices of the k largest elements of each row, largest first; the first one of equals comes first.

use super::*;

/// Source: x F32 `[n, ..]` with dense rows, k at most n. Result: I32 `[k, ..]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    /// How many.
    pub k: usize,
}

impl OpSpec for TopK {
    const NAMES: &'static [&'static str] = &["TOP_K"];

    fn name(&self) -> &'static str {
        "TOP_K"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.int("k", self.k);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(TopK { k: attrs.int("k")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.f32_rows(0, "x")?;
        let [n, x1, x2, x3] = x.ne();
        check(self.k <= n && n <= i32::MAX as usize, || format!("cannot take {} of rows of {x}", self.k))?;
        Inferred::new(DType::I32, [self.k, x1, x2, x3])
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}
