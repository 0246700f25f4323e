//! REPEAT.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for dtype in [DType::F32, DType::I32] {
        let fill = || if dtype == DType::I32 { Fill::Integers(-99, 99) } else { Fill::Uniform(-1.0, 1.0) };
        for (from, ne) in [
            ([1, 1, 1, 1], [9, 3, 2, 2]),
            ([7, 3, 1, 1], [14, 3, 2, 1]),
            ([33, 1, 2, 1], [33, 5, 4, 3]),
            ([4, 2, 3, 2], [8, 4, 6, 4]),
            ([64, 5, 1, 1], [64, 5, 1, 1]),
            ([3, 2, 1, 1], [3, 0, 1, 1]),
        ] {
            s.add(format!("{dtype} {from:?} to {ne:?}"), Check::Exact, |m| {
                let x = m.input(dtype, &from, fill())?;
                m.push(Repeat { ne }, &[x])
            });
        }
        s.add(format!("{dtype} padded"), Check::Exact, |m| {
            let x = m.padded(LeafKind::Input, dtype, [5, 3, 2, 1], fill())?;
            m.push(Repeat { ne: [10, 9, 2, 2] }, &[x])
        });
    }
}
