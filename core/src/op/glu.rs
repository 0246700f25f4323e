//! Gated linear units: an activation of one source times the other (Shazeer, "GLU Variants Improve Transformer", 2020).

use super::*;

kinds! {
    /// Which activation the gate has.
    GluKind {
        /// relu(gate) * up
        Reglu => "REGLU",
        /// gelu(gate) * up, the tanh form
        Geglu => "GEGLU",
        /// silu(gate) * up
        Swiglu => "SWIGLU",
    }
}

/// `out = act(gate) * up`. Sources: gate, up F32 of one shape with dense rows. Result: F32 of that shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Glu {
    /// Which activation.
    pub kind: GluKind,
}

impl OpSpec for Glu {
    const NAMES: &'static [&'static str] = GluKind::NAMES;

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(name: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Glu { kind: GluKind::from_name(name)? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let gate = srcs.f32_rows(0, "gate")?;
        let up = srcs.f32_rows(1, "up")?;
        check(gate.ne() == up.ne(), || format!("gate {gate} and up {up} differ in shape"))?;
        Inferred::new(DType::F32, gate.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0, 1]
    }

    fn flops(&self, _: &Srcs, out: &Layout) -> u64 {
        8 * out.elements() as u64
    }
}
