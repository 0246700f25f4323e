//! Normalisation of rows: RMS_NORM (Zhang and Sennrich, 2019), NORM (layer norm without weights), L2_NORM.

use super::*;

kinds! {
    /// Which norm.
    NormKind {
        /// x / sqrt(mean(x^2) + eps)
        RmsNorm => "RMS_NORM",
        /// (x - mean(x)) / sqrt(var(x) + eps)
        Norm => "NORM",
        /// x / max(|x|_2, eps)
        L2Norm => "L2_NORM",
    }
}

/// Source: x F32 `[n, ..]` with dense rows. Result: F32 of the same shape, each row normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which norm.
    pub kind: NormKind,
    /// Keeps the divisor from zero; not negative.
    pub eps: f32,
}

impl OpSpec for Norm {
    const NAMES: &'static [&'static str] = NormKind::NAMES;

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs.float("eps", self.eps);
    }

    fn from_attrs(name: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Norm { kind: NormKind::from_name(name)?, eps: attrs.float("eps")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        check(self.eps >= 0.0, || format!("eps {} is negative", self.eps))?;
        Inferred::new(DType::F32, srcs.f32_rows(0, "x")?.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn flops(&self, _: &Srcs, out: &Layout) -> u64 {
        3 * out.elements() as u64
    }
}
