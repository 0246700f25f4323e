//! One file per op, with the name that it has in core.

pub(super) mod add_id;
pub(super) mod argmax;
pub(super) mod argsort;
pub(super) mod binary;
pub(super) mod concat;
pub(super) mod copy;
pub(super) mod flash_attn;
pub(super) mod get_rows;
pub(super) mod glu;
pub(super) mod log_prob;
pub(super) mod mul_mat;
pub(super) mod mul_mat_id;
pub(super) mod norm;
pub(super) mod penalty;
pub(super) mod repeat;
pub(super) mod rope;
pub(super) mod sample;
pub(super) mod set_rows;
pub(super) mod soft_max;
pub(super) mod sum_rows;
pub(super) mod top_k;
pub(super) mod unary;

use crate::tensor::{Index, T};

/// Applies a function to each element.
pub(super) fn map(x: &T, out: &T, f: impl Fn(f64) -> f64) {
    for i in out.indices() {
        out.set(i, f(x.get(i)));
    }
}

/// The index into a tensor of shape `ne` that is repeated to a larger one.
fn wrap(i: Index, ne: [usize; 4]) -> Index {
    std::array::from_fn(|d| i[d] % ne[d])
}

/// The row of position `j` of a sequence in a paged cache of `n_rows`.
fn paged_row(table: &T, seq: usize, j: usize, block: usize, n_rows: usize) -> Result<usize, String> {
    Ok(checked(table.int([j / block, seq, 0, 0]), n_rows / block, "block")? * block + j % block)
}

/// A row index that comes from data, checked.
fn checked(index: i32, n: usize, what: &str) -> Result<usize, String> {
    usize::try_from(index).ok().filter(|&i| i < n).ok_or_else(|| format!("{what} {index} is outside 0..{n}"))
}
