//! Functions of one element: activations and the like.

use super::*;

kinds! {
    /// The function.
    UnaryKind {
        /// -x
        Neg => "NEG",
        /// |x|
        Abs => "ABS",
        /// x^2
        Sqr => "SQR",
        /// square root
        Sqrt => "SQRT",
        /// e^x
        Exp => "EXP",
        /// natural logarithm
        Log => "LOG",
        /// sine
        Sin => "SIN",
        /// cosine
        Cos => "COS",
        /// hyperbolic tangent
        Tanh => "TANH",
        /// max(x, 0); NaN stays
        Relu => "RELU",
        /// 1 / (1 + e^-x)
        Sigmoid => "SIGMOID",
        /// x * sigmoid(x)
        Silu => "SILU",
        /// Gaussian error linear unit, the tanh form
        Gelu => "GELU",
        /// Gaussian error linear unit, the exact form with erf
        GeluErf => "GELU_ERF",
        /// x * sigmoid(1.702 x)
        GeluQuick => "GELU_QUICK",
        /// log(1 + e^x)
        Softplus => "SOFTPLUS",
    }
}

/// `out = f(x)`. Source: x F32 `[..]` with dense rows. Result: F32 of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unary {
    /// Which function.
    pub kind: UnaryKind,
}

impl OpSpec for Unary {
    const NAMES: &'static [&'static str] = UnaryKind::NAMES;

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(name: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Unary { kind: UnaryKind::from_name(name)? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(1, 1)?;
        Inferred::new(DType::F32, srcs.f32_rows(0, "x")?.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }
}
