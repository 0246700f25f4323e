//! REGLU, GEGLU, SWIGLU.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for &kind in GluKind::ALL {
        for ne in ROWS {
            s.add(format!("{ne:?}"), Check::DEFAULT, |m| {
                let (gate, up) = (m.input(DType::F32, &ne, Fill::Uniform(-6.0, 6.0))?, m.f32(&ne)?);
                m.push(Glu { kind }, &[gate, up])
            });
        }
        s.add("large gates", Check::DEFAULT, |m| {
            let (gate, up) = (m.input(DType::F32, &[100], Fill::Uniform(-200.0, 200.0))?, m.f32(&[100])?);
            m.push(Glu { kind }, &[gate, up])
        });
        s.add("halves of one tensor", Check::DEFAULT, |m| {
            let x = m.input(DType::F32, &[66, 5], Fill::Uniform(-6.0, 6.0))?;
            let half = |offset| View { ne: [33, 5, 1, 1], nb: [4, 264, 1320, 1320], offset };
            let (gate, up) = (m.push(half(0), &[x])?, m.push(half(132), &[x])?);
            m.push(Glu { kind }, &[gate, up])
        });
        for of in [0, 1] {
            s.add(format!("in place of source {of}"), Check::DEFAULT, |m| {
                let (gate, up) = (m.input(DType::F32, &[67, 3], Fill::Uniform(-6.0, 6.0))?, m.f32(&[67, 3])?);
                m.push_in_place(Glu { kind }, &[gate, up], of)
            });
        }
    }
}
