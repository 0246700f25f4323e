//! ARGSORT.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for order in [Order::Ascending, Order::Descending] {
        rowwise(s, &format!("{order:?}"), Argsort { order }, Check::Exact, Fill::Uniform(-1.0, 1.0));
        s.add(format!("{order:?} ties"), Check::Exact, |m| {
            let x = m.input(DType::F32, &[130, 4], Fill::Integers(-5, 5))?;
            m.push(Argsort { order }, &[x])
        });
        s.add(format!("{order:?} zeros of both signs are equal"), Check::Exact, |m| {
            let x = m.input(DType::F32, &[9, 2], Fill::Floats(vec![0.0, -0.0, 1.0, -0.0, 0.0]))?;
            m.push(Argsort { order }, &[x])
        });
    }
}
