//! LOG_PROB.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for (n, rows) in [(1, 1), (7, 3), (100, 5), (32000, 2), (9, 0)] {
        s.add(format!("n={n} rows={rows}"), Check::DEFAULT, |m| {
            let x = m.input(DType::F32, &[n, rows], Fill::Uniform(-10.0, 10.0))?;
            let ids = m.i32(&[rows], Fill::Integers(0, n as i32))?;
            m.push(LogProb, &[x, ids])
        });
    }
    s.add("large logits", Check::DEFAULT, |m| {
        let x = m.input(DType::F32, &[50, 4], Fill::Uniform(-1000.0, 1000.0))?;
        let ids = m.i32(&[4], Fill::Integers(0, 50))?;
        m.push(LogProb, &[x, ids])
    });
    s.add("excluded elements", Check::DEFAULT, |m| {
        let x = m.input(DType::F32, &[4, 2], Fill::Floats(vec![1.0, f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY]))?;
        let ids = m.i32(&[2], Fill::Ints(vec![2, 1]))?;
        m.push(LogProb, &[x, ids])
    });
    s.add("padded", Check::DEFAULT, |m| {
        let x = m.padded_f32([100, 4, 1, 1])?;
        let ids = m.spread_i32([4, 1, 1, 1], Fill::Integers(0, 100))?;
        m.push(LogProb, &[x, ids])
    });
    for id in [10, -1, i32::MIN, i32::MAX] {
        s.fails(format!("id {id} of 10"), |m| {
            let x = m.f32(&[10, 3])?;
            let ids = m.i32(&[3], Fill::Ints(vec![9, 0, id]))?;
            m.push(LogProb, &[x, ids])
        });
    }
}
