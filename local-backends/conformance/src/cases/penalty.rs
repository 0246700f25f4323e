//! PENALTY.

use super::*;
use outboard_core::op::Penalties;

pub(super) fn cases(s: &mut Suite) {
    let none = Penalties { last_n: 64, repeat: 1.0, frequency: 0.0, presence: 0.0 };
    let ops = [
        ("none", none),
        ("repeat", Penalties { repeat: 1.3, ..none }),
        ("repeat below 1", Penalties { repeat: 0.5, ..none }),
        ("frequency", Penalties { frequency: 0.7, ..none }),
        ("presence", Penalties { presence: -0.4, ..none }),
        ("all", Penalties { last_n: 5, repeat: 1.1, frequency: 0.2, presence: 0.3 }),
        ("nothing counts", Penalties { last_n: 0, repeat: 2.0, ..none }),
        ("everything counts", Penalties { last_n: 1 << 40, repeat: 2.0, ..none }),
    ];
    for (name, penalties) in ops {
        for (n, rows, count) in [(1, 1, 1), (9, 3, 20), (1000, 2, 300), (7, 0, 4)] {
            s.add(format!("{name} n={n} rows={rows} count={count}"), Check::DEFAULT, |m| {
                let x = m.input(DType::F32, &[n, rows], Fill::Uniform(-8.0, 8.0))?;
                let history = m.i32(&[count], Fill::Integers(0, n as i32))?;
                let steps = m.i32(&[rows], Fill::Integers(0, count as i32))?;
                let params = m.input(DType::F32, &[4, rows], Fill::Floats(penalties.params().to_vec()))?;
                m.push(Penalty { block: 0 }, &[x, history, steps, params])
            });
        }
        s.add(format!("{name} padded"), Check::DEFAULT, |m| {
            let x = m.padded_f32([30, 4, 1, 1])?;
            let history = m.spread_i32([12, 1, 1, 1], Fill::Integers(0, 30))?;
            let steps = m.spread_i32([4, 1, 1, 1], Fill::Integers(0, 12))?;
            let params =
                m.padded(LeafKind::Input, DType::F32, [4, 4, 1, 1], Fill::Floats(penalties.params().to_vec()))?;
            m.push(Penalty { block: 0 }, &[x, history, steps, params])
        });
        s.add(format!("{name} paged"), Check::DEFAULT, |m| {
            let (x, history) = (m.f32(&[30, 3])?, m.i32(&[5 * 4], Fill::Integers(0, 30))?);
            let steps = m.i32(&[3], Fill::Ints(vec![11, 0, 6]))?;
            let params = m.input(DType::F32, &[4, 3], Fill::Floats(penalties.params().to_vec()))?;
            let (table, seqs) =
                (m.i32(&[3, 2], Fill::Ints(vec![4, 0, 2, 3, 4, 1]))?, m.i32(&[3], Fill::Ints(vec![1, 0, 0]))?);
            m.push(Penalty { block: 4 }, &[x, history, steps, params, table, seqs])
        });
    }
    s.add("penalties of each row".to_owned(), Check::DEFAULT, |m| {
        let (x, history) = (m.f32(&[30, 8])?, m.i32(&[12], Fill::Integers(0, 30))?);
        let steps = m.i32(&[8], Fill::Integers(0, 12))?;
        let params = ops.iter().flat_map(|(_, penalties)| penalties.params()).collect();
        let params = m.input(DType::F32, &[4, 8], Fill::Floats(params))?;
        m.push(Penalty { block: 0 }, &[x, history, steps, params])
    });
    s.add("parameters that make no sense".to_owned(), Check::DEFAULT, |m| {
        let (x, history) = (m.f32(&[30, 6])?, m.i32(&[12], Fill::Integers(0, 30))?);
        let steps = m.i32(&[6], Fill::Integers(0, 12))?;
        let wrong = vec![f32::NAN, f32::INFINITY, -1.0, f32::NEG_INFINITY, 1e30, 0.0, 3.0];
        let params = m.input(DType::F32, &[4, 6], Fill::Floats(wrong))?;
        m.push(Penalty { block: 0 }, &[x, history, steps, params])
    });
    for (token, step) in [(9, 5), (-1, 5), (i32::MIN, 5), (3, 8), (3, -1), (3, i32::MAX)] {
        s.fails(format!("token {token} of 9, step {step} of 8"), |m| {
            let x = m.f32(&[9, 1])?;
            let history = m.i32(&[8], Fill::Ints(vec![token]))?;
            let steps = m.i32(&[1], Fill::Ints(vec![step]))?;
            let params = m.input(DType::F32, &[4, 1], Fill::Floats(none.params().to_vec()))?;
            m.push(Penalty { block: 0 }, &[x, history, steps, params])
        });
    }
    for (step, seq, block) in [(8, 0, 1), (-1, 0, 1), (3, 2, 1), (3, -1, 1), (5, 1, 2), (5, 1, i32::MIN)] {
        s.fails(format!("paged: step {step}, sequence {seq}, block {block} of 2"), |m| {
            let (x, history) = (m.f32(&[9, 1])?, m.i32(&[8], Fill::Ints(vec![3]))?);
            let steps = m.i32(&[1], Fill::Ints(vec![step]))?;
            let params = m.input(DType::F32, &[4, 1], Fill::Floats(none.params().to_vec()))?;
            let (table, seqs) =
                (m.i32(&[2, 2], Fill::Ints(vec![0, 1, 0, block]))?, m.i32(&[1], Fill::Ints(vec![seq]))?);
            m.push(Penalty { block: 4 }, &[x, history, steps, params, table, seqs])
        });
    }
}
