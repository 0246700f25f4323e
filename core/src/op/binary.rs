//! ADD, SUB, MUL, DIV: element by element, the second source repeated to the first.

use super::*;

kinds! {
    /// The function.
    BinaryKind {
        /// a + b
        Add => "ADD",
        /// a - b
        Sub => "SUB",
        /// a * b
        Mul => "MUL",
        /// a / b
        Div => "DIV",
    }
}

/// `out = a OP b`. Sources: a F32 `[..]`, b F32 whose extents divide a's. Result: F32 of a's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Binary {
    /// Which function.
    pub kind: BinaryKind,
}

impl OpSpec for Binary {
    const NAMES: &'static [&'static str] = BinaryKind::NAMES;

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(name: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Binary { kind: BinaryKind::from_name(name)? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let a = srcs.f32_rows(0, "a")?;
        let b = srcs.f32_rows(1, "b")?;
        check(b.repeats_to(&a), || format!("b {b} does not repeat to a {a}"))?;
        Inferred::new(DType::F32, a.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }
}
