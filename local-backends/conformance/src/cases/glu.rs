//! REGLU, GEGLU, SWIGLU, SWIGLU_OAI.

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
    swiglu_oai(s);
}

fn swiglu_oai(s: &mut Suite) {
    for (alpha, limit) in [(1.702, 7.0), (1.0, 0.5), (0.0, 3.0), (-0.5, f32::INFINITY), (1.702, 0.0)] {
        s.add(format!("alpha {alpha}, limit {limit}"), Check::DEFAULT, |m| {
            let wide = || Fill::Uniform(-20.0, 20.0);
            let (gate, up) = (m.input(DType::F32, &[77, 3], wide())?, m.input(DType::F32, &[77, 3], wide())?);
            m.push(Glu { kind: GluKind::SwigluOai { alpha, limit } }, &[gate, up])
        });
    }
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for limit in [7.0, f32::INFINITY] {
        // Lengths without a common divisor: every gate meets every up.
        let gates = [&odd[..], &[-1.0, 7.0]].concat();
        let ups = [&odd[..], &[7.0]].concat();
        s.add(format!("infinities and NaN, limit {limit}"), Check::DEFAULT, |m| {
            let gate = m.input(DType::F32, &[20], Fill::Floats(gates))?;
            let up = m.input(DType::F32, &[20], Fill::Floats(ups))?;
            m.push(Glu { kind: GluKind::SwigluOai { alpha: 1.702, limit } }, &[gate, up])
        });
    }
}
