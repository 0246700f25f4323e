//! SOFT_MAX.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    let check = Check::SOFT_MAX;
    rowwise(s, "scale=1", SoftMax { scale: 1.0 }, check, Fill::Uniform(-5.0, 5.0));
    rowwise(s, "scale=0.125 large", SoftMax { scale: 0.125 }, check, Fill::Uniform(-1e4, 1e4));
    for dtype in [DType::F32, DType::F16] {
        for (x, mask) in [
            ([33, 5, 1, 1], [33, 5, 1, 1]),
            ([64, 7, 9, 1], [64, 7, 1, 1]),
            ([100, 3, 4, 2], [100, 3, 4, 1]),
            ([31, 2, 3, 2], [31, 2, 3, 2]),
            ([1, 1, 2, 1], [1, 1, 1, 1]),
        ] {
            s.add(format!("{x:?} mask {dtype} {mask:?}"), check, |m| {
                let x = m.input(DType::F32, &x, Fill::Uniform(-5.0, 5.0))?;
                let mask = m.input(dtype, &mask, Fill::Mask(0.4))?;
                m.push(SoftMax { scale: 0.5 }, &[x, mask])
            });
        }
        s.add(format!("mask {dtype} of finite numbers"), check, |m| {
            let x = m.input(DType::F32, &[50, 4, 3], Fill::Uniform(-5.0, 5.0))?;
            let mask = m.input(dtype, &[50, 4], Fill::Uniform(-3.0, 0.0))?;
            m.push(SoftMax { scale: 1.5 }, &[x, mask])
        });
        s.add(format!("mask {dtype} excludes everything"), check, |m| {
            let x = m.f32(&[40, 3])?;
            let mask = m.input(dtype, &[40, 3], Fill::Floats(vec![f32::NEG_INFINITY]))?;
            m.push(SoftMax { scale: 1.0 }, &[x, mask])
        });
        s.add(format!("mask {dtype} padded, in place"), check, |m| {
            let x = m.input(DType::F32, &[37, 4, 2], Fill::Uniform(-5.0, 5.0))?;
            let mask = m.padded(LeafKind::Input, dtype, [37, 4, 1, 1], Fill::Mask(0.3))?;
            m.push_in_place(SoftMax { scale: 1.0 }, &[x, mask], 0)
        });
    }
}
