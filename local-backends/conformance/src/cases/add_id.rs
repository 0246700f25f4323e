//! ADD_ID.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for (n, experts, used, tokens) in
        [(1, 1, 1, 1), (7, 4, 2, 1), (33, 8, 2, 5), (64, 3, 3, 17), (577, 32, 4, 33), (4096, 8, 1, 2)]
    {
        s.add(format!("n={n}, {experts} experts, {used} used, {tokens} tokens"), Check::DEFAULT, |m| {
            let (a, b) = (m.f32(&[n, used, tokens])?, m.weight(DType::F32, &[n, experts])?);
            let ids = m.i32(&[used, tokens], Fill::Distinct(experts as i32))?;
            m.push(AddId, &[a, b, ids])
        });
    }
    // The last one has no expert that could be asked for.
    for (n, experts, used, tokens) in [(0, 4, 2, 3), (8, 4, 0, 3), (8, 4, 2, 0), (8, 0, 2, 0)] {
        s.add(format!("nothing of n={n}, {experts} experts, {used} used, {tokens} tokens"), Check::Exact, |m| {
            let (a, b) = (m.f32(&[n, used, tokens])?, m.weight(DType::F32, &[n, experts])?);
            let ids = m.i32(&[used, tokens], Fill::Ints(vec![0]))?;
            m.push(AddId, &[a, b, ids])
        });
    }
    s.add("padded, ids from the first columns of a sort", Check::DEFAULT, |m| {
        let a = m.padded_f32([37, 2, 5, 1])?;
        let b = m.padded(LeafKind::Weight, DType::F32, [37, 4, 1, 1], Fill::Uniform(-1.0, 1.0))?;
        let scores = m.f32(&[4, 5])?;
        let sorted = m.push(Argsort { order: Order::Descending }, &[scores])?;
        let ids = m.push(View { ne: [2, 5, 1, 1], nb: [4, 16, 80, 80], offset: 0 }, &[sorted])?;
        m.push(AddId, &[a, b, ids])
    });
    s.add("ids with gaps", Check::DEFAULT, |m| {
        let (a, b) = (m.f32(&[33, 3, 4])?, m.weight(DType::F32, &[33, 6])?);
        let ids = m.spread_i32([3, 4, 1, 1], Fill::Integers(0, 6))?;
        m.push(AddId, &[a, b, ids])
    });
    s.add("one expert for all", Check::DEFAULT, |m| {
        let (a, b) = (m.f32(&[64, 2, 20])?, m.weight(DType::F32, &[64, 4])?);
        let ids = m.i32(&[2, 20], Fill::Ints(vec![3]))?;
        m.push(AddId, &[a, b, ids])
    });
    s.add("in place", Check::DEFAULT, |m| {
        let (a, b) = (m.f32(&[67, 2, 5])?, m.weight(DType::F32, &[67, 4])?);
        let ids = m.i32(&[2, 5], Fill::Distinct(4))?;
        m.push_in_place(AddId, &[a, b, ids], 0)
    });
    s.add("NaN only in rows that nobody chooses", Check::DEFAULT, |m| {
        let a = m.f32(&[64, 2, 3])?;
        let b = m.input(DType::F32, &[64, 5], Fill::NanFrom(2))?;
        let ids = m.i32(&[2, 3], Fill::Integers(0, 2))?;
        m.push(AddId, &[a, b, ids])
    });
    s.add("infinities and NaN", Check::DEFAULT, |m| {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        let a = m.input(DType::F32, &[20, 1, 1], Fill::Floats(odd.to_vec()))?;
        let b = m.input(DType::F32, &[20, 1], Fill::Floats([&odd[..], &[2.0]].concat()))?;
        let ids = m.i32(&[1, 1], Fill::Ints(vec![0]))?;
        m.push(AddId, &[a, b, ids])
    });
    for id in [4, -1, i32::MIN, i32::MAX] {
        s.fails(format!("id {id} of 4 experts"), |m| {
            let (a, b) = (m.f32(&[64, 2, 3])?, m.weight(DType::F32, &[64, 4])?);
            let ids = m.i32(&[2, 3], Fill::Ints(vec![0, 1, 2, 3, 1, id]))?;
            m.push(AddId, &[a, b, ids])
        });
    }
    s.fails("no experts at all", |m| {
        let (a, b) = (m.f32(&[8, 1, 1])?, m.weight(DType::F32, &[8, 0])?);
        let ids = m.i32(&[1, 1], Fill::Ints(vec![0]))?;
        m.push(AddId, &[a, b, ids])
    });
}
