//! SAMPLE.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    let all = Sample { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
    let usual = Sample { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: u64::MAX - 3 };
    let ops = [
        ("greedy", Sample { temperature: 0.0, ..usual }),
        ("all", all),
        ("usual", usual),
        ("hot", Sample { temperature: 5.0, ..all }),
        ("cold", Sample { temperature: 0.1, ..all }),
        ("top_k 1", Sample { top_k: 1, ..all }),
        ("top_k above n", Sample { top_k: 1 << 20, ..all }),
        ("top_p 0.5", Sample { top_p: 0.5, ..all }),
        ("top_p 0", Sample { top_p: 0.0, ..all }),
        ("min_p 0.3", Sample { min_p: 0.3, ..all }),
        ("min_p 1", Sample { min_p: 1.0, ..all }),
    ];
    for (name, op) in ops {
        for (n, rows) in [(1, 1), (7, 4), (1000, 9), (32000, 2), (5, 0)] {
            s.add(format!("{name} n={n} rows={rows}"), Check::Exact, |m| {
                let x = m.input(DType::F32, &[n, rows], Fill::Uniform(-8.0, 8.0))?;
                let step = m.i32(&[rows], Fill::Integers(0, 10000))?;
                m.push(op, &[x, step])
            });
        }
        s.add(format!("{name} ties"), Check::Exact, |m| {
            let x = m.input(DType::F32, &[60, 5], Fill::Integers(0, 3))?;
            let step = m.i32(&[5], Fill::Integers(0, 10000))?;
            m.push(op, &[x, step])
        });
        s.add(format!("{name} NaN and infinity"), Check::Exact, |m| {
            let list = vec![1.0, f32::NAN, f32::NEG_INFINITY, 2.5, -1.0];
            let x = m.input(DType::F32, &[5, 3], Fill::Floats(list))?;
            let step = m.i32(&[3], Fill::Ints(vec![0, i32::MAX, -1]))?;
            m.push(op, &[x, step])
        });
        s.add(format!("{name} padded"), Check::Exact, |m| {
            let x = m.padded(LeafKind::Input, DType::F32, [101, 4, 1, 1], Fill::Uniform(-8.0, 8.0))?;
            let step = m.spread_i32([4, 1, 1, 1], Fill::Integers(0, 10000))?;
            m.push(op, &[x, step])
        });
    }
}
