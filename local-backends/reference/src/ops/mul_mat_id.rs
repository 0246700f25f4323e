//! The reference of `op::mul_mat_id`, to the letter of its documentation.

use super::*;

pub(in super::super) fn run(a: &T, b: &T, ids: &T, out: &T) -> Result<(), String> {
    let [m, used, tokens, _] = out.ne();
    for t in 0..tokens {
        for s in 0..used {
            let expert = checked(ids.int([s, t, 0, 0]), a.ne()[2], "expert")?;
            let column = b.row([0, s % b.ne()[1], t, 0]);
            for i in 0..m {
                let row = a.row([0, i, expert, 0]);
                out.set([i, s, t, 0], row.iter().zip(&column).map(|(x, y)| x * y).sum());
            }
        }
    }
    Ok(())
}
