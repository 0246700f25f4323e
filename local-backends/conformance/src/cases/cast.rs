//! CAST, CONT and CPY: copies, as they are or in another type.

use super::*;

/// Whether core allows to convert between them.
fn converts(from: DType, to: DType) -> bool {
    match (from, to) {
        (DType::I32, _) | (_, DType::I32) => from == to,
        (DType::Q8_K, _) | (_, DType::Q8_K) => false,
        (from, to) => from.is_float() || to == DType::F32,
    }
}

fn fill(dtype: DType) -> Fill {
    if dtype == DType::I32 { Fill::Integers(-1000, 1000) } else { Fill::Uniform(-1.0, 1.0) }
}

pub(super) fn cases(s: &mut Suite) {
    for from in DType::ALL {
        for to in DType::ALL.into_iter().filter(|&to| converts(from, to)) {
            let block = from.block_len().max(to.block_len());
            for ne in [[block, 1, 1, 1], [3 * block, 5, 2, 1], [block, 3, 0, 1]] {
                s.add(format!("{from} to {to} {ne:?}"), Check::converted_to(to), |m| {
                    let x = m.input(from, &ne, fill(from))?;
                    m.push(Cast { dtype: to }, &[x])
                });
                s.add(format!("{from} to {to} {ne:?}"), Check::converted_to(to), |m| {
                    let x = m.input(from, &ne, fill(from))?;
                    let dst = m.state(to, &ne, fill(to))?;
                    m.push(Cpy, &[x, dst])
                });
            }
            s.add(format!("{from} to {to} padded"), Check::converted_to(to), |m| {
                let x = m.padded(LeafKind::Input, from, [2 * block, 3, 2, 2], fill(from))?;
                m.push(Cast { dtype: to }, &[x])
            });
            s.add(format!("{from} to {to} into a part"), Check::converted_to(to), |m| {
                let x = m.input(from, &[2 * block, 3, 2], fill(from))?;
                let dst = m.padded(LeafKind::State, to, [2 * block, 3, 2, 1], fill(to))?;
                m.push(Cpy, &[x, dst])
            });
        }
    }
    s.add("edges of F16", Check::Exact, |m| {
        // The largest, one that rounds to infinity, subnormals, ties.
        let list = vec![65504.0, 65520.0, -65536.0, 6e-8, 2.9e-8, -6.1e-5, 1.000_488_3, 1.001_464_8, 0.0, -0.0];
        let x = m.input(DType::F32, &[40], Fill::Floats(list))?;
        m.push(Cast { dtype: DType::F16 }, &[x])
    });
    s.add("edges of BF16", Check::Exact, |m| {
        let list = vec![3.39e38, -3.4e38, 1e-39, 1.003_906_3, 1.011_718_8, f32::INFINITY, 0.0, -0.0, 1e-45];
        let x = m.input(DType::F32, &[40], Fill::Floats(list))?;
        m.push(Cast { dtype: DType::BF16 }, &[x])
    });
    conts(s);
    copies(s);
}

fn conts(s: &mut Suite) {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
        for axes in [[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3], [2, 0, 3, 1], [3, 2, 1, 0]] {
            for ne in [[5, 7, 3, 2], [64, 33, 2, 1], [1, 9, 4, 1], [4, 0, 2, 1]] {
                s.add(format!("{dtype} {ne:?} permuted {axes:?}"), Check::Exact, |m| {
                    let x = m.input(dtype, &ne, fill(dtype))?;
                    let x = m.push(Permute { axes }, &[x])?;
                    m.push(Cont, &[x])
                });
            }
        }
        s.add(format!("{dtype} padded"), Check::Exact, |m| {
            let x = m.padded(LeafKind::Input, dtype, [37, 3, 2, 2], fill(dtype))?;
            m.push(Cont, &[x])
        });
        s.add(format!("{dtype} repeated by strides of 0"), Check::Exact, |m| {
            let x = m.input(dtype, &[9], fill(dtype))?;
            let size = dtype.block_bytes();
            let x = m.push(View { ne: [9, 4, 2, 1], nb: [size, 0, 0, 0], offset: 0 }, &[x])?;
            m.push(Cont, &[x])
        });
        s.add(format!("{dtype} every third"), Check::Exact, |m| {
            let x = m.input(dtype, &[30, 4], fill(dtype))?;
            let size = dtype.block_bytes();
            let x = m.push(View { ne: [9, 4, 1, 1], nb: [3 * size, 30 * size, 0, 0], offset: size }, &[x])?;
            m.push(Cont, &[x])
        });
    }
}

fn copies(s: &mut Suite) {
    for (from, to) in
        [(DType::F32, DType::F32), (DType::F32, DType::F16), (DType::I32, DType::I32), (DType::BF16, DType::F32)]
    {
        s.add(format!("{from} to {to} of another shape"), Check::Exact, |m| {
            let x = m.input(from, &[6, 4, 5], fill(from))?;
            let dst = m.state(to, &[10, 3, 2, 2], fill(to))?;
            m.push(Cpy, &[x, dst])
        });
        s.add(format!("{from} to {to} transposed on both sides"), Check::Exact, |m| {
            let x = m.input(from, &[6, 9, 2], fill(from))?;
            let x = m.push(Permute { axes: [1, 0, 2, 3] }, &[x])?;
            let dst = m.state(to, &[2, 9, 6], fill(to))?;
            let dst = m.push(Permute { axes: [2, 0, 1, 3] }, &[dst])?;
            m.push(Cpy, &[x, dst])
        });
        s.add(format!("{from} to {to} into a column"), Check::Exact, |m| {
            let x = m.input(from, &[7], fill(from))?;
            let dst = m.state(to, &[5, 7], fill(to))?;
            let size = to.block_bytes();
            let dst = m.push(View { ne: [1, 7, 1, 1], nb: [size, 5 * size, 0, 0], offset: 2 * size }, &[dst])?;
            m.push(Cpy, &[x, dst])
        });
    }
    s.add("what was written is what is read afterwards", Check::Exact, |m| {
        let x = m.f32(&[8, 3])?;
        let state = m.state(DType::F32, &[8, 5], Fill::Floats(vec![9.0]))?;
        let part = m.push(View { ne: [8, 3, 1, 1], nb: [4, 32, 96, 96], offset: 32 }, &[state])?;
        m.push(Cpy, &[x, part])?;
        let all = m.push(Cont, &[state])?;
        m.push(Cast { dtype: DType::F16 }, &[all])
    });
}
