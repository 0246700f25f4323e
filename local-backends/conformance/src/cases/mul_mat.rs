//! MUL_MAT.

use super::*;

/// Rows of weights and columns of activations: one token, a few, tiles and what is left over.
const SIZES: [(usize, usize); 15] = [
    (1, 1),
    (4, 1),
    (7, 1),
    (16, 1),
    (33, 1),
    (64, 1),
    (1, 17),
    (3, 2),
    (5, 3),
    (8, 4),
    (17, 5),
    (16, 8),
    (32, 16),
    (35, 33),
    (64, 32),
];

pub(super) fn cases(s: &mut Suite) {
    for a in weights() {
        let block = a.block_len();
        let lengths: &[usize] = match block {
            1 => &[1, 3, 8, 31, 33, 100, 256, 257],
            32 => &[32, 64, 96, 160, 256, 576],
            _ => &[256, 512, 768],
        };
        let middle = if block == 1 { 100 } else { 256 };
        for (m_rows, n) in SIZES {
            // Quick are each type with one token and with many.
            product(s, a, middle, m_rows, n).quick = n == 1 && m_rows == 33 || n == 33;
        }
        for &k in lengths.iter().filter(|&&k| k != middle) {
            for (m_rows, n) in [(5, 1), (17, 1), (9, 7)] {
                product(s, a, k, m_rows, n);
            }
        }
        // Long sums.
        product(s, a, 2048, 96, 1);
        product(s, a, 2048, 48, 40);
        s.add(format!("{a} padded"), Check::PRODUCT, |m| {
            let w =
                m.padded(LeafKind::Weight, a, [2 * middle.next_multiple_of(block), 9, 2, 1], Fill::Uniform(-1.0, 1.0))?;
            let b = m.padded_f32([2 * middle.next_multiple_of(block), 5, 2, 1])?;
            m.push(MulMat, &[w, b])
        });
        // Several large tiles.
        product(s, a, 2 * 256, 200, 130).quick = a == DType::Q4_0;
        for (m_rows, n) in [(0, 3), (3, 0)] {
            product(s, a, block, m_rows, n);
        }
    }
    for a in [DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q8_0, DType::Q4_K] {
        for ((a2, a3), (b2, b3)) in
            [((2, 1), (4, 1)), ((1, 1), (3, 2)), ((2, 2), (4, 4)), ((1, 3), (2, 3)), ((3, 1), (9, 1))]
        {
            for n in [1, 6] {
                s.add(format!("{a} a2={a2} a3={a3} b2={b2} b3={b3} n={n}"), Check::PRODUCT, |m| {
                    let w = m.weight(a, &[256, 11, a2, a3])?;
                    let b = m.f32(&[256, n, b2, b3])?;
                    m.push(MulMat, &[w, b])
                });
            }
        }
    }
    for a in FLOATS {
        // Keys of a cache: rows of one head are far from one another.
        s.add(format!("{a} permuted, grouped heads"), Check::PRODUCT, |m| {
            let k = m.permuted(LeafKind::Input, a, [64, 37, 3, 1], [0, 2, 1, 3])?;
            let q = m.permuted(LeafKind::Input, DType::F32, [64, 7, 9, 1], [0, 2, 1, 3])?;
            m.push(MulMat, &[k, q])
        });
    }
    for a in [DType::F32, DType::F16, DType::Q8_0] {
        for n in [1, 16] {
            // The first rows of each plane, which are dense.
            s.add(format!("{a} planes apart, {n} columns"), Check::PRODUCT, |m| {
                let w = m.part(LeafKind::Weight, a, [256, 3, 2, 1], [256, 5, 2, 1])?;
                let b = m.part(LeafKind::Input, DType::F32, [256, n, 2, 1], [256, n + 1, 2, 1])?;
                m.push(MulMat, &[w, b])
            });
        }
    }
    for a in [DType::F16, DType::BF16, DType::Q4_0, DType::Q8_0, DType::MXFP4, DType::Q4_K, DType::Q6_K] {
        s.add(format!("{a} many activations beyond f16"), Check::PRODUCT, |m| {
            let w = m.weight(a, &[512, 70])?;
            let b = m.input(DType::F32, &[512, 20], Fill::Uniform(-3e6, 3e6))?;
            m.push(MulMat, &[w, b])
        });
        s.add(format!("{a} many columns, some of no numbers"), Check::PRODUCT, |m| {
            let w = m.weight(a, &[256, 33])?;
            let b = m.input(DType::F32, &[256, 20], Fill::NanFrom(7))?;
            m.push(MulMat, &[w, b])
        })
        .quick = a == DType::Q8_0;
        s.add(format!("{a} weights that grow along rows"), Check::PRODUCT, |m| {
            // Three steps of 256, each 2^10 times the one before.
            let weights = (0..768).map(|i| [1e-5, 1e-2, 10.0][i / 256] * ((i * 7 % 13) as f32 - 6.0) / 6.0).collect();
            let w = m.leaf(LeafKind::Weight, a, &[768, 40], Fill::Floats(weights))?;
            let b = m.input(DType::F32, &[768, 20], Fill::Uniform(-1.0, 1.0))?;
            m.push(MulMat, &[w, b])
        })
        .quick = a == DType::Q4_K;
        s.add(format!("{a} tiny weights, many columns"), Check::PRODUCT, |m| {
            let w = m.leaf(LeafKind::Weight, a, &[256, 40], Fill::Uniform(-1e-4, 1e-4))?;
            let b = m.input(DType::F32, &[256, 20], Fill::Uniform(-1e-6, 1e-6))?;
            m.push(MulMat, &[w, b])
        });
    }
    s.add("F16 sum over nothing, many columns", Check::PRODUCT, |m| {
        let (w, b) = (m.weight(DType::F16, &[0, 3])?, m.f32(&[0, 20])?);
        m.push(MulMat, &[w, b])
    });
    for (a, n) in [(DType::Q4_0, 1), (DType::Q8_0, 20)] {
        s.add(format!("{a} sum over nothing, {n} columns"), Check::PRODUCT, |m| {
            let (w, b) = (m.weight(a, &[0, 3])?, m.f32(&[0, n])?);
            m.push(MulMat, &[w, b])
        })
        .quick = true;
        s.add(format!("{a} no weights at all, {n} columns"), Check::PRODUCT, |m| {
            let (w, b) = (m.weight(a, &[0, 3, 0])?, m.f32(&[0, n, 2])?);
            m.push(MulMat, &[w, b])
        });
    }
    s.add("F32 sum over nothing", Check::PRODUCT, |m| {
        let (w, b) = (m.weight(DType::F32, &[0, 3])?, m.f32(&[0, 2])?);
        m.push(MulMat, &[w, b])
    });
    s.add("Q4_0 activations of zero", Check::PRODUCT, |m| {
        let w = m.weight(DType::Q4_0, &[64, 9])?;
        let b = m.input(DType::F32, &[64, 5], Fill::Floats(vec![0.0]))?;
        m.push(MulMat, &[w, b])
    });
    for a in [DType::F16, DType::Q4_1, DType::Q4_K, DType::Q6_K] {
        s.add(format!("{a} activations of very different sizes"), Check::PRODUCT, |m| {
            let w = m.weight(a, &[512, 19])?;
            let b = m.input(DType::F32, &[512, 3], Fill::Floats(vec![1e-3, -2.0, 40.0, 0.5, -7e-2, 3.0, 0.0]))?;
            m.push(MulMat, &[w, b])
        });
    }
}

fn product(s: &mut Suite, a: DType, k: usize, m_rows: usize, n: usize) -> &mut crate::case::Case {
    // A single sum of terms of both signs may come out near zero, and the error of quantized activations, which has the size of
    // the terms, is then no measure of the kernel. Averaged over several sums it is.
    let fill = || if m_rows * n == 1 { Fill::Uniform(0.25, 1.0) } else { Fill::Uniform(-1.0, 1.0) };
    s.add(format!("{a} k={k} m={m_rows} n={n}"), Check::PRODUCT, |m| {
        let w = m.leaf(LeafKind::Weight, a, &[k, m_rows], fill())?;
        let b = m.input(DType::F32, &[k, n], fill())?;
        m.push(MulMat, &[w, b])
    })
}
