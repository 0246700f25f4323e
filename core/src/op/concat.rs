//! CONCAT: two tensors behind one another along a dimension.

use super::*;

/// Sources: a, b F32 (or both I32) with dense rows, equal extents except along `dim`. Result: their type, extents of `dim` added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat {
    /// The dimension, 0 to 3.
    pub dim: usize,
}

impl OpSpec for Concat {
    const NAMES: &'static [&'static str] = &["CONCAT"];

    fn name(&self) -> &'static str {
        "CONCAT"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.int("dim", self.dim);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Concat { dim: attrs.int("dim")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        check(self.dim < DIMS, || format!("there is no dimension {}", self.dim))?;
        let (a, b) = (srcs.get(0, "a")?, srcs.get(1, "b")?);
        let typed = a.dtype() == b.dtype() && matches!(a.dtype(), DType::F32 | DType::I32);
        check(typed, || format!("a {a} and b {b} must both be F32 or both I32"))?;
        check(a.has_dense_rows() && b.has_dense_rows(), || format!("a {a} and b {b} must have dense rows"))?;
        let mut ne = a.ne();
        ne[self.dim] = ne[self.dim].checked_add(b.ne()[self.dim]).ok_or("the result is too large")?;
        let same = (0..DIMS).all(|d| d == self.dim || a.ne()[d] == b.ne()[d]);
        check(same, || format!("a {a} and b {b} differ beside dimension {}", self.dim))?;
        Inferred::new(a.dtype(), ne)
    }
}
