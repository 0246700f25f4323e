//! CONCAT.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for dtype in [DType::F32, DType::I32] {
        let fill = || if dtype == DType::I32 { Fill::Integers(-99, 99) } else { Fill::Uniform(-1.0, 1.0) };
        for dim in 0..4 {
            for (base, other) in [([7, 3, 2, 2], 5), ([64, 5, 1, 1], 1), ([1, 2, 3, 4], 3), ([8, 4, 2, 1], 0)] {
                let mut second = base;
                second[dim] = other;
                s.add(format!("{dtype} dim {dim} {base:?} {second:?}"), Check::Exact, |m| {
                    let (a, b) = (m.input(dtype, &base, fill())?, m.input(dtype, &second, fill())?);
                    m.push(Concat { dim }, &[a, b])
                });
            }
            s.add(format!("{dtype} dim {dim} padded"), Check::Exact, |m| {
                let a = m.padded(LeafKind::Input, dtype, [9, 4, 3, 2], fill())?;
                let b = m.padded(LeafKind::Input, dtype, [9, 4, 3, 2], fill())?;
                m.push(Concat { dim }, &[a, b])
            });
        }
    }
}
