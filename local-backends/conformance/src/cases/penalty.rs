//! PENALTY.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    let none = Penalty { last_n: 64, repeat: 1.0, frequency: 0.0, presence: 0.0 };
    let ops = [
        ("none", none),
        ("repeat", Penalty { repeat: 1.3, ..none }),
        ("repeat below 1", Penalty { repeat: 0.5, ..none }),
        ("frequency", Penalty { frequency: 0.7, ..none }),
        ("presence", Penalty { presence: -0.4, ..none }),
        ("all", Penalty { last_n: 5, repeat: 1.1, frequency: 0.2, presence: 0.3 }),
        ("nothing counts", Penalty { last_n: 0, repeat: 2.0, ..none }),
        ("everything counts", Penalty { last_n: 1 << 40, repeat: 2.0, ..none }),
    ];
    for (name, op) in ops {
        for (n, rows, count) in [(1, 1, 1), (9, 3, 20), (1000, 2, 300), (7, 0, 4)] {
            s.add(format!("{name} n={n} rows={rows} count={count}"), Check::DEFAULT, |m| {
                let x = m.input(DType::F32, &[n, rows], Fill::Uniform(-8.0, 8.0))?;
                let history = m.i32(&[count], Fill::Integers(0, n as i32))?;
                let steps = m.i32(&[rows], Fill::Integers(0, count as i32))?;
                m.push(op, &[x, history, steps])
            });
        }
        s.add(format!("{name} padded"), Check::DEFAULT, |m| {
            let x = m.padded_f32([30, 4, 1, 1])?;
            let history = m.spread_i32([12, 1, 1, 1], Fill::Integers(0, 30))?;
            let steps = m.spread_i32([4, 1, 1, 1], Fill::Integers(0, 12))?;
            m.push(op, &[x, history, steps])
        });
    }
    for (token, step) in [(9, 5), (-1, 5), (i32::MIN, 5), (3, 8), (3, -1), (3, i32::MAX)] {
        s.fails(format!("token {token} of 9, step {step} of 8"), |m| {
            let x = m.f32(&[9, 1])?;
            let history = m.i32(&[8], Fill::Ints(vec![token]))?;
            let steps = m.i32(&[1], Fill::Ints(vec![step]))?;
            m.push(none, &[x, history, steps])
        });
    }
}
