//! Gated linear units: an activation of one source times the other (Shazeer, "GLU Variants Improve Transformer", 2020).

use super::*;

/// Which activation the gate has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GluKind {
    /// relu(gate) * up
    Reglu,
    /// gelu(gate) * up, the tanh form
    Geglu,
    /// silu(gate) * up
    Swiglu,
    /// gate * sigmoid(alpha * gate) * (1 + up), of gate = min(gate, limit) and up = min(max(up, -limit), limit). NaN stays.
    SwigluOai {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of both sources, not negative.
        limit: f32,
    },
}

impl GluKind {
    /// SWIGLU_OAI with the parameters of gpt-oss.
    pub const SWIGLU_OAI: GluKind = GluKind::SwigluOai { alpha: 1.702, limit: 7.0 };
    /// Every function of the family, with usual parameters.
    pub const ALL: &'static [GluKind] = &[GluKind::Reglu, GluKind::Geglu, GluKind::Swiglu, GluKind::SWIGLU_OAI];

    /// Name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            GluKind::Reglu => "REGLU",
            GluKind::Geglu => "GEGLU",
            GluKind::Swiglu => "SWIGLU",
            GluKind::SwigluOai { .. } => "SWIGLU_OAI",
        }
    }
}

/// `out = act(gate) * up`, see [`GluKind`]. Sources: gate, up F32 of one shape with dense rows. Result: F32 of that shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Glu {
    /// Which activation.
    pub kind: GluKind,
}

impl OpSpec for Glu {
    const NAMES: &'static [&'static str] = &["REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI"];

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn attrs(&self, attrs: &mut Attrs) {
        if let GluKind::SwigluOai { alpha, limit } = self.kind {
            attrs.float("alpha", alpha).float("limit", limit);
        }
    }

    fn from_attrs(name: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        let usual = GluKind::ALL.iter().copied().find(|kind| kind.name() == name);
        let kind = match usual.ok_or_else(|| format!("unknown op {name}"))? {
            GluKind::SwigluOai { .. } => {
                GluKind::SwigluOai { alpha: attrs.float("alpha")?, limit: attrs.float("limit")? }
            }
            kind => kind,
        };
        Ok(Glu { kind })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        if let GluKind::SwigluOai { limit, .. } = self.kind {
            check(limit >= 0.0, || format!("limit {limit} is negative"))?;
        }
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
