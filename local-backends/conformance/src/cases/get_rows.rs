//! GET_ROWS.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::I32) {
        let check = if dtype.is_float() { Check::Exact } else { Check::DEFAULT };
        let block = dtype.block_len();
        for (n, rows, count, a2) in [(block, 1, 1, 1), (3 * block, 7, 4, 1), (block, 5, 9, 3), (2 * block, 4, 0, 1)] {
            s.add(format!("{dtype} n={n} rows={rows} count={count} a2={a2}"), check, |m| {
                let a = m.weight(dtype, &[n, rows, a2])?;
                let ids = m.i32(&[count, a2], Fill::Integers(0, rows as i32))?;
                m.push(GetRows, &[a, ids])
            });
        }
        s.add(format!("{dtype} padded"), check, |m| {
            let a = m.padded(LeafKind::Weight, dtype, [2 * block, 6, 2, 1], Fill::Uniform(-1.0, 1.0))?;
            let ids = m.i32(&[5, 2], Fill::Integers(0, 6))?;
            m.push(GetRows, &[a, ids])
        });
    }
    s.add("I32", Check::Exact, |m| {
        let a = m.input(DType::I32, &[9, 5], Fill::Integers(-99, 99))?;
        let ids = m.i32(&[7], Fill::Integers(0, 5))?;
        m.push(GetRows, &[a, ids])
    });
    s.add("odd lengths of rows", Check::Exact, |m| {
        let a = m.weight(DType::F16, &[577, 11, 2, 2])?;
        let ids = m.i32(&[3, 2, 2], Fill::Integers(0, 11))?;
        m.push(GetRows, &[a, ids])
    });
    s.add("ids with gaps", Check::Exact, |m| {
        let a = m.weight(DType::F32, &[33, 6, 2])?;
        let ids = m.spread_i32([4, 2, 1, 1], Fill::Integers(0, 6))?;
        m.push(GetRows, &[a, ids])
    });
    for id in [6, -1, i32::MIN, i32::MAX] {
        for dtype in [DType::F32, DType::Q4_0] {
            s.fails(format!("{dtype} id {id} of 6 rows"), |m| {
                let a = m.weight(dtype, &[64, 6])?;
                let ids = m.i32(&[3], Fill::Ints(vec![5, id, 0]))?;
                m.push(GetRows, &[a, ids])
            });
        }
    }
    s.fails("no rows at all", |m| {
        let a = m.weight(DType::F32, &[8, 0])?;
        let ids = m.i32(&[1], Fill::Ints(vec![0]))?;
        m.push(GetRows, &[a, ids])
    });
}
