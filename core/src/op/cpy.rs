//! CPY: copies into an existing tensor, converting its type.

use super::*;

/// `dst = src`. Sources: src F32, F16, BF16 or I32 of any strides, dst of as many elements, disjoint; I32 only to I32, quantized dst
/// with dense rows of src's length. Elements go over in order of their index. Result: dst, after the write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cpy;

impl OpSpec for Cpy {
    const NAMES: &'static [&'static str] = &["CPY"];

    fn name(&self) -> &'static str {
        "CPY"
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Cpy)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let src = srcs.get(0, "src")?;
        let dst = srcs.get(1, "dst")?;
        check(dst.is_disjoint(), || format!("elements of dst {dst} overlap"))?;
        check(src.elements() == dst.elements(), || format!("src {src} and dst {dst} differ in size"))?;
        cast::check_conversion(&src, dst.dtype())?;
        let rows_match = !dst.dtype().is_quantized() || src.ne()[0] == dst.ne()[0];
        check(rows_match, || format!("rows of src {src} and dst {dst} differ in length"))?;
        Ok(Inferred::alias(dst, 1, 0))
    }

    fn writes(&self) -> Option<usize> {
        Some(1)
    }
}
