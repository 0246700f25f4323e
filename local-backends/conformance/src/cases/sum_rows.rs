//! SUM_ROWS, MEAN, CUMSUM.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for &kind in ReduceKind::ALL {
        for ne in ROWS.into_iter().filter(|ne| kind != ReduceKind::Mean || ne[0] > 0) {
            s.add(format!("{ne:?}"), Check::DEFAULT, |m| {
                let x = m.input(DType::F32, &ne, Fill::Uniform(-0.5, 1.0))?;
                m.push(Reduce { kind }, &[x])
            });
        }
        s.add("long", Check::DEFAULT, |m| {
            let x = m.input(DType::F32, &[50000, 2], Fill::Uniform(-0.5, 1.0))?;
            m.push(Reduce { kind }, &[x])
        });
        s.add("padded", Check::DEFAULT, |m| {
            let x = m.padded_f32([37, 3, 2, 2])?;
            m.push(Reduce { kind }, &[x])
        });
    }
}
