//! TOP_K.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for (n, rows, k) in
        [(1, 1, 1), (8, 3, 2), (60, 4, 6), (33, 2, 33), (1000, 2, 40), (32000, 1, 40), (9, 2, 0), (9, 0, 3)]
    {
        s.add(format!("n={n} rows={rows} k={k}"), Check::Exact, |m| {
            let x = m.f32(&[n, rows])?;
            m.push(TopK { k }, &[x])
        });
    }
    s.add("ties", Check::Exact, |m| {
        let x = m.input(DType::F32, &[130, 4, 2], Fill::Integers(-5, 5))?;
        m.push(TopK { k: 50 }, &[x])
    });
    s.add("zeros of both signs are equal", Check::Exact, |m| {
        let x = m.input(DType::F32, &[9, 2], Fill::Floats(vec![0.0, -0.0, -1.0, -0.0, 0.0]))?;
        m.push(TopK { k: 5 }, &[x])
    });
    s.add("padded", Check::Exact, |m| {
        let x = m.padded_f32([70, 3, 2, 1])?;
        m.push(TopK { k: 8 }, &[x])
    });
}
