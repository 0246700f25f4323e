//! ADD, SUB, MUL, DIV.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for &kind in BinaryKind::ALL {
        // Away from zero, for DIV.
        let divisor = Fill::Uniform(0.5, 2.0);
        let shapes: [([usize; 4], [usize; 4]); 14] = [
            ([1, 1, 1, 1], [1, 1, 1, 1]),
            ([7, 3, 1, 1], [7, 3, 1, 1]),
            ([64, 5, 2, 3], [64, 5, 2, 3]),
            ([576, 9, 1, 1], [576, 1, 1, 1]),
            ([33, 4, 3, 2], [33, 1, 1, 1]),
            ([33, 4, 3, 2], [1, 4, 1, 2]),
            ([33, 4, 3, 2], [1, 1, 1, 1]),
            ([12, 4, 6, 2], [4, 2, 3, 1]),
            ([16, 4, 6, 2], [16, 4, 3, 2]),
            ([64, 6, 4, 1], [64, 1, 4, 1]),
            ([1000, 3, 1, 1], [1000, 3, 1, 1]),
            ([4096, 2, 1, 1], [4096, 1, 1, 1]),
            ([0, 3, 1, 1], [1, 3, 1, 1]),
            ([4, 0, 1, 1], [4, 1, 1, 1]),
        ];
        for (a, b) in shapes {
            let fill = divisor.clone();
            s.add(format!("{a:?} {b:?}"), Check::DEFAULT, |m| {
                let (a, b) = (m.f32(&a)?, m.input(DType::F32, &b, fill)?);
                m.push(Binary { kind }, &[a, b])
            });
        }
        let fill = divisor.clone();
        s.add("padded", Check::DEFAULT, |m| {
            let a = m.padded_f32([37, 3, 4, 2])?;
            let b = m.padded(LeafKind::Input, DType::F32, [37, 1, 2, 1], fill)?;
            m.push(Binary { kind }, &[a, b])
        });
        let fill = divisor.clone();
        s.add("in place", Check::DEFAULT, |m| {
            let (a, b) = (m.f32(&[67, 5])?, m.input(DType::F32, &[67], fill)?);
            m.push_in_place(Binary { kind }, &[a, b], 0)
        });
        s.add("a source with itself", Check::DEFAULT, |m| {
            let a = m.input(DType::F32, &[67, 5], divisor)?;
            m.push(Binary { kind }, &[a, a])
        });
    }
}
