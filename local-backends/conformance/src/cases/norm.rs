//! RMS_NORM, NORM, L2_NORM.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for &kind in NormKind::ALL {
        for (name, eps, fill) in [
            ("eps=1e-5", 1e-5, Fill::Uniform(-1.0, 1.0)),
            ("eps=1e-6 small", 1e-6, Fill::Uniform(-1e-3, 1e-3)),
            ("eps=1e-6 large", 1e-6, Fill::Uniform(-1e4, 1e4)),
        ] {
            rowwise(s, name, Norm { kind, eps }, Check::DEFAULT, fill);
        }
        s.add("off centre", Check::DEFAULT, |m| {
            let x = m.input(DType::F32, &[576, 3], Fill::Uniform(4.0, 6.0))?;
            m.push(Norm { kind, eps: 1e-5 }, &[x])
        });
        s.add("zeros", Check::DEFAULT, |m| {
            let x = m.input(DType::F32, &[64, 2], Fill::Floats(vec![0.0]))?;
            m.push(Norm { kind, eps: 1e-5 }, &[x])
        });
        s.add("heads between tokens", Check::DEFAULT, |m| {
            let x = m.permuted(LeafKind::Input, DType::F32, [64, 5, 3, 1], [0, 2, 1, 3])?;
            m.push(Norm { kind, eps: 1e-5 }, &[x])
        });
    }
}
