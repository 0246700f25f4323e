//! SET_ROWS.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for dtype in weights() {
        let check = Check::converted_to(dtype);
        let block = dtype.block_len();
        let old = || Fill::Uniform(-1.0, 1.0);
        for (n, rows, count, d2) in [(block, 1, 1, 1), (3 * block, 7, 4, 1), (block, 9, 9, 3), (2 * block, 4, 0, 1)] {
            s.add(format!("{dtype} n={n} rows={rows} count={count} d2={d2}"), check, |m| {
                let dst = m.state(dtype, &[n, rows, d2], old())?;
                let src = m.f32(&[n, count, d2])?;
                let ids = m.i32(&[count, d2], Fill::Distinct(rows as i32))?;
                m.push(SetRows, &[dst, src, ids])
            });
        }
        s.add(format!("{dtype} padded"), check, |m| {
            let dst = m.padded(LeafKind::State, dtype, [2 * block, 6, 2, 1], old())?;
            let src = m.padded_f32([2 * block, 3, 2, 1])?;
            let ids = m.i32(&[3, 2], Fill::Distinct(6))?;
            m.push(SetRows, &[dst, src, ids])
        });
    }
    s.add("source heads between tokens, as in a KV cache", Check::Exact, |m| {
        let dst = m.state(DType::F16, &[64, 32, 3], Fill::Uniform(-1.0, 1.0))?;
        let src = m.permuted(LeafKind::Input, DType::F32, [64, 5, 3, 1], [0, 2, 1, 3])?;
        let ids = m.i32(&[5, 3], Fill::Distinct(32))?;
        m.push(SetRows, &[dst, src, ids])
    });
    for (i1, i2) in [(1, 1), (3, 1), (1, 2), (3, 2)] {
        s.add(format!("{i1} x {i2} lists of ids for 6 x 4"), Check::Exact, |m| {
            let dst = m.state(DType::F16, &[32, 9, 6, 4], Fill::Uniform(-1.0, 1.0))?;
            let src = m.permuted(LeafKind::Input, DType::F32, [32, 5, 6, 4], [0, 2, 1, 3])?;
            let ids = m.i32(&[5, i1, i2], Fill::Distinct(9))?;
            m.push(SetRows, &[dst, src, ids])
        });
    }
    s.add("ids with gaps", Check::Exact, |m| {
        let dst = m.state(DType::F32, &[33, 6, 2], Fill::Uniform(-1.0, 1.0))?;
        let src = m.f32(&[33, 3, 2])?;
        let ids = m.spread_i32([3, 2, 1, 1], Fill::Distinct(6))?;
        m.push(SetRows, &[dst, src, ids])
    });
    s.add("whole numbers", Check::Exact, |m| {
        let dst = m.input(DType::I32, &[3, 6], Fill::Integers(0, 99))?;
        let src = m.i32(&[3, 4], Fill::Integers(i32::MIN, i32::MAX))?;
        let ids = m.i32(&[4], Fill::Distinct(6))?;
        m.push(SetRows, &[dst, src, ids])
    });
    for id in [6, -1, i32::MIN, i32::MAX] {
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            s.fails(format!("{dtype} id {id} of 6 rows"), |m| {
                let dst = m.state(dtype, &[64, 6], Fill::Uniform(-1.0, 1.0))?;
                let src = m.f32(&[64, 3])?;
                let ids = m.i32(&[3], Fill::Ints(vec![5, 1, id]))?;
                m.push(SetRows, &[dst, src, ids])
            });
        }
    }
}
