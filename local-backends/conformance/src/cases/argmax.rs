//! ARGMAX.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for (n, rows) in [(1, 1), (2, 3), (7, 5), (33, 2), (1000, 3), (49152, 2), (5, 0)] {
        s.add(format!("[{n}, {rows}]"), Check::Exact, |m| {
            let x = m.f32(&[n, rows])?;
            m.push(Argmax, &[x])
        });
    }
    s.add("ties", Check::Exact, |m| {
        let x = m.input(DType::F32, &[100, 9], Fill::Integers(-3, 3))?;
        m.push(Argmax, &[x])
    });
    s.add("all equal", Check::Exact, |m| {
        let x = m.input(DType::F32, &[70, 2], Fill::Floats(vec![-2.5]))?;
        m.push(Argmax, &[x])
    });
    s.add("minus infinity", Check::Exact, |m| {
        let x = m.input(DType::F32, &[3, 2], Fill::Floats(vec![f32::NEG_INFINITY, -7.0, f32::NEG_INFINITY]))?;
        m.push(Argmax, &[x])
    });
    s.add("padded", Check::Exact, |m| {
        let x = m.padded_f32([100, 6, 1, 1])?;
        m.push(Argmax, &[x])
    });
}
