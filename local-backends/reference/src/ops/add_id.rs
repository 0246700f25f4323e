//! The reference of `op::add_id`, to the letter of its documentation.

use super::*;

pub(in super::super) fn run(a: &T, b: &T, ids: &T, out: &T) -> Result<(), String> {
    for [_, s, t, _] in out.rows() {
        let expert = checked(ids.int([s, t, 0, 0]), b.ne()[1], "expert")?;
        for i in 0..out.ne()[0] {
            out.set([i, s, t, 0], a.get([i, s, t, 0]) + b.get([i, expert, 0, 0]));
        }
    }
    Ok(())
}
