//! SAMPLE.

use super::*;
use outboard_core::TensorId;
use outboard_core::op::Sampler;

pub(super) fn cases(s: &mut Suite) {
    let all = Sampler { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
    let usual = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: u64::MAX - 3 };
    let ops = [
        ("greedy", Sampler { temperature: 0.0, ..usual }),
        ("all", all),
        ("usual", usual),
        ("hot", Sampler { temperature: 5.0, ..all }),
        ("cold", Sampler { temperature: 0.1, ..all }),
        ("top_k 1", Sampler { top_k: 1, ..all }),
        ("top_k above n", Sampler { top_k: 1 << 20, ..all }),
        ("top_p 0.5", Sampler { top_p: 0.5, ..all }),
        ("top_p 0", Sampler { top_p: 0.0, ..all }),
        ("min_p 0.3", Sampler { min_p: 0.3, ..all }),
        ("min_p 1", Sampler { min_p: 1.0, ..all }),
    ];
    for (name, sampler) in ops {
        for (n, rows) in [(1, 1), (7, 4), (1000, 9), (32000, 2), (5, 0)] {
            s.add(format!("{name} n={n} rows={rows}"), Check::Exact, |m| {
                let x = m.input(DType::F32, &[n, rows], Fill::Uniform(-8.0, 8.0))?;
                draw(m, x, rows, sampler)
            });
        }
        s.add(format!("{name} ties"), Check::Exact, |m| {
            let x = m.input(DType::F32, &[60, 5], Fill::Integers(0, 3))?;
            draw(m, x, 5, sampler)
        });
        s.add(format!("{name} NaN and infinity"), Check::Exact, |m| {
            let list = vec![1.0, f32::NAN, f32::NEG_INFINITY, 2.5, -1.0];
            let x = m.input(DType::F32, &[5, 3], Fill::Floats(list))?;
            draw(m, x, 3, sampler)
        });
        s.add(format!("{name} padded"), Check::Exact, |m| {
            let x = m.padded(LeafKind::Input, DType::F32, [101, 4, 1, 1], Fill::Uniform(-8.0, 8.0))?;
            let params =
                m.padded(LeafKind::Input, DType::F32, [4, 4, 1, 1], Fill::Floats(sampler.params().to_vec()))?;
            let draws = m.spread_i32([3, 4, 1, 1], Fill::Integers(0, 10000))?;
            m.push(Sample, &[x, params, draws])
        });
    }
    s.add("a large vocabulary".to_owned(), Check::Exact, |m| {
        let x = m.input(DType::F32, &[152_064, 1], Fill::Uniform(-8.0, 8.0))?;
        draw(m, x, 1, Sampler { temperature: 5.0, top_p: 0.99, ..all })
    });
    s.add("more than any number".to_owned(), Check::Exact, |m| {
        let list = vec![1.0, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0];
        let x = m.input(DType::F32, &[6, 5], Fill::Floats(list))?;
        draw(m, x, 5, all)
    });
    s.add("less than any normal number".to_owned(), Check::Exact, |m| {
        let list = vec![0.0, 1e-40, -0.0, -1e-40, 2e-40];
        let x = m.input(DType::F32, &[5, 8], Fill::Floats(list))?;
        draw(m, x, 8, all)
    });
    s.add("the largest of numbers that are less than any normal one".to_owned(), Check::Exact, |m| {
        let x = m.input(DType::F32, &[3, 2], Fill::Floats(vec![0.0, 1e-40, -1e-40]))?;
        draw(m, x, 2, Sampler::GREEDY)
    });
    s.add("a sampler for each row".to_owned(), Check::Exact, |m| {
        let x = m.input(DType::F32, &[500, 11], Fill::Uniform(-8.0, 8.0))?;
        let params = ops.iter().flat_map(|(_, sampler)| sampler.params()).collect();
        let params = m.input(DType::F32, &[4, 11], Fill::Floats(params))?;
        let draws = m.i32(&[3, 11], Fill::Integers(i32::MIN, i32::MAX))?;
        m.push(Sample, &[x, params, draws])
    });
    s.add("parameters that make no sense".to_owned(), Check::Exact, |m| {
        let x = m.input(DType::F32, &[50, 6], Fill::Uniform(-8.0, 8.0))?;
        let wrong = vec![f32::NAN, -1.0, f32::INFINITY, f32::NEG_INFINITY, 1e30, -0.0, 0.5];
        let params = m.input(DType::F32, &[4, 6], Fill::Floats(wrong))?;
        let draws = m.i32(&[3, 6], Fill::Ints(vec![i32::MIN, -1, i32::MAX]))?;
        m.push(Sample, &[x, params, draws])
    });
}

/// Draws from each row of x, with steps and seeds of its own.
fn draw(m: &mut Make, x: TensorId, rows: usize, sampler: Sampler) -> Made {
    let params = m.input(DType::F32, &[4, rows], Fill::Floats(sampler.params().to_vec()))?;
    let draws = m.i32(&[3, rows], Fill::Integers(0, 10000))?;
    m.push(Sample, &[x, params, draws])
}
