//! VIEW, RESHAPE, PERMUTE: other ways to look at the same memory; nothing is computed.

use super::*;

/// A part of a tensor, or the same with other strides. Source: x. Result: x's type, shape `ne`, strides `nb` bytes, `offset`
/// bytes behind x's first element. It must lie within the span of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Shape.
    pub ne: [usize; DIMS],
    /// Strides in bytes.
    pub nb: [usize; DIMS],
    /// Bytes from x's first element; whole elements (blocks).
    pub offset: usize,
}

impl OpSpec for View {
    const NAMES: &'static [&'static str] = &["VIEW"];

    fn name(&self) -> &'static str {
        "VIEW"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.ints("ne", &self.ne).ints("nb", &self.nb).int("offset", self.offset);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(View { ne: attrs.ints("ne")?, nb: attrs.ints("nb")?, offset: attrs.int("offset")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.get(0, "x")?;
        let layout = Layout::strided(x.dtype(), self.ne, self.nb).map_err(|e| e.to_string())?;
        let unit = if x.dtype().is_quantized() { 1 } else { x.dtype().block_bytes() };
        check(self.offset % unit == 0, || format!("offset {} is inside an element of {x}", self.offset))?;
        let end = self.offset.checked_add(layout.span());
        let inside = end.is_some_and(|end| end <= x.span());
        check(inside, || format!("{layout} at byte {} is outside x {x}", self.offset))?;
        Ok(Inferred::alias(layout, 0, self.offset))
    }

    fn flops(&self, _: &Srcs, _: &Layout) -> u64 {
        0
    }
}

/// The same elements in another shape. Source: x contiguous. Result: x's type, shape `ne` of as many elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reshape {
    /// The new shape.
    pub ne: [usize; DIMS],
}

impl OpSpec for Reshape {
    const NAMES: &'static [&'static str] = &["RESHAPE"];

    fn name(&self) -> &'static str {
        "RESHAPE"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.ints("ne", &self.ne);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Reshape { ne: attrs.ints("ne")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.get(0, "x")?;
        check(x.is_contiguous(), || format!("x must be contiguous, not {x}"))?;
        let layout = Layout::contiguous(x.dtype(), self.ne).map_err(|e| e.to_string())?;
        check(layout.elements() == x.elements(), || format!("{:?} has another size than x {x}", self.ne))?;
        Ok(Inferred::alias(layout, 0, 0))
    }

    fn flops(&self, _: &Srcs, _: &Layout) -> u64 {
        0
    }
}

/// Dimensions in another order: dimension `i` of x becomes dimension `axes[i]` of the result (as in ggml).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Permute {
    /// A permutation of 0, 1, 2, 3.
    pub axes: [usize; DIMS],
}

impl OpSpec for Permute {
    const NAMES: &'static [&'static str] = &["PERMUTE"];

    fn name(&self) -> &'static str {
        "PERMUTE"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.ints("axes", &self.axes);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Permute { axes: attrs.ints("axes")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        let x = srcs.get(0, "x")?;
        let mut sorted = self.axes;
        sorted.sort_unstable();
        check(sorted == [0, 1, 2, 3], || format!("{:?} is not a permutation", self.axes))?;
        let (mut ne, mut nb) = ([1; DIMS], [0; DIMS]);
        for (d, &axis) in self.axes.iter().enumerate() {
            ne[axis] = x.ne()[d];
            nb[axis] = x.nb()[d];
        }
        let layout = Layout::strided(x.dtype(), ne, nb).map_err(|e| e.to_string())?;
        Ok(Inferred::alias(layout, 0, 0))
    }

    fn flops(&self, _: &Srcs, _: &Layout) -> u64 {
        0
    }
}
