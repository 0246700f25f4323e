//! MUL_MAT_ID.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for a in weights() {
        for (experts, used, tokens, b_used) in [(4, 2, 1, 1), (8, 2, 5, 2), (3, 3, 17, 1), (8, 1, 33, 1), (4, 2, 0, 1)]
        {
            s.add(format!("{a} {experts} experts, {used} used, {tokens} tokens, b {b_used}"), Check::PRODUCT, |m| {
                let w = m.weight(a, &[256, 19, experts])?;
                let b = m.f32(&[256, b_used, tokens])?;
                let ids = m.i32(&[used, tokens], Fill::Distinct(experts as i32))?;
                m.push(MulMatId, &[w, b, ids])
            });
        }
    }
    for a in [DType::F32, DType::Q4_0] {
        s.add(format!("{a} padded, ids from the first columns of a sort"), Check::PRODUCT, |m| {
            let w = m.padded(LeafKind::Weight, a, [96, 7, 4, 1], Fill::Uniform(-1.0, 1.0))?;
            let b = m.padded_f32([96, 2, 5, 1])?;
            let scores = m.f32(&[4, 5])?;
            let sorted = m.push(Argsort { order: Order::Descending }, &[scores])?;
            let ids = m.push(View { ne: [2, 5, 1, 1], nb: [4, 16, 80, 80], offset: 0 }, &[sorted])?;
            m.push(MulMatId, &[w, b, ids])
        });
        s.add(format!("{a} experts apart"), Check::PRODUCT, |m| {
            let w = m.part(LeafKind::Weight, a, [96, 3, 4, 1], [96, 5, 4, 1])?;
            let b = m.part(LeafKind::Input, DType::F32, [96, 1, 16, 1], [96, 2, 16, 1])?;
            let ids = m.i32(&[2, 16], Fill::Integers(0, 4))?;
            m.push(MulMatId, &[w, b, ids])
        });
        s.add(format!("{a} one expert for all"), Check::PRODUCT, |m| {
            let w = m.weight(a, &[64, 9, 4])?;
            let b = m.f32(&[64, 1, 20])?;
            let ids = m.i32(&[2, 20], Fill::Ints(vec![3, 3]))?;
            m.push(MulMatId, &[w, b, ids])
        });
        s.add(format!("{a} many tokens"), Check::PRODUCT, |m| {
            let w = m.weight(a, &[96, 70, 4])?;
            let b = m.f32(&[96, 2, 200])?;
            let ids = m.i32(&[2, 200], Fill::Distinct(4))?;
            m.push(MulMatId, &[w, b, ids])
        });
        s.fails(format!("{a} id 4 of 4 experts among many tokens"), |m| {
            let w = m.weight(a, &[64, 9, 4])?;
            let b = m.f32(&[64, 1, 20])?;
            let ids = m.i32(&[1, 20], Fill::Ints(vec![0, 1, 2, 3, 4]))?;
            m.push(MulMatId, &[w, b, ids])
        });
        for id in [4, -1, i32::MIN, i32::MAX] {
            s.fails(format!("{a} id {id} of 4 experts"), |m| {
                let w = m.weight(a, &[64, 9, 4])?;
                let b = m.f32(&[64, 1, 3])?;
                let ids = m.i32(&[2, 3], Fill::Ints(vec![0, 1, 2, 3, 1, id]))?;
                m.push(MulMatId, &[w, b, ids])
            });
        }
    }
    for tokens in [3, 20] {
        s.add(format!("Q4_0 sum over nothing, {tokens} tokens"), Check::PRODUCT, |m| {
            let w = m.weight(DType::Q4_0, &[0, 9, 4])?;
            let b = m.f32(&[0, 1, tokens])?;
            let ids = m.i32(&[2, tokens], Fill::Distinct(4))?;
            m.push(MulMatId, &[w, b, ids])
        });
    }
}
