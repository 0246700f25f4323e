//! The functions of one element.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for &kind in UnaryKind::ALL {
        let (usual, edge): (Fill, Fill) = match kind {
            UnaryKind::Log | UnaryKind::Sqrt => {
                (Fill::Uniform(1e-3, 10.0), Fill::Floats(vec![0.0, 1e-30, 1.0, 1e30, f32::INFINITY]))
            }
            UnaryKind::Sin | UnaryKind::Cos => (Fill::Uniform(-10.0, 10.0), Fill::Uniform(-100.0, 100.0)),
            UnaryKind::Exp => {
                (Fill::Uniform(-10.0, 5.0), Fill::Floats(vec![-200.0, -87.0, 0.0, 88.0, f32::NEG_INFINITY]))
            }
            _ => (Fill::Uniform(-6.0, 6.0), Fill::Floats(vec![-1e4, -89.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 89.0, 1e4])),
        };
        let exact = matches!(kind, UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu);
        let check = if exact { Check::Exact } else { Check::DEFAULT };
        rowwise(s, "usual", Unary { kind }, check, usual);
        s.add("edges", check, |m| {
            let x = m.input(DType::F32, &[50], edge)?;
            m.push(Unary { kind }, &[x])
        });
        s.add("infinities and NaN", check, |m| {
            let odd = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
            let x = m.input(DType::F32, &[37], Fill::Floats(odd))?;
            m.push(Unary { kind }, &[x])
        });
    }
}
