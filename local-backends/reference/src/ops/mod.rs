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

/// Where the positions of a sequence lie in a cache of `n_rows`.
struct Paging<'a> {
    /// The table and the sequence's column in it; `None` where positions are rows.
    table: Option<(&'a T<'a>, usize)>,
    block: usize,
    n_rows: usize,
}

impl<'a> Paging<'a> {
    /// That of the sequence of row `i`: with blocks, source `at` is the table, and the one behind it has the sequences.
    fn of(srcs: &'a crate::Srcs<'a>, at: usize, i: usize, block: usize, n_rows: usize) -> Result<Paging<'a>, String> {
        let column = || -> Result<_, String> {
            let table = srcs.get(at)?;
            Ok((table, checked(srcs.get(at + 1)?.int([i, 0, 0, 0]), table.ne()[1], "sequence")?))
        };
        Ok(Paging { table: if block == 0 { None } else { Some(column()?) }, block, n_rows })
    }

    /// Positions that there may be.
    fn positions(&self) -> usize {
        self.table.map_or(self.n_rows, |(table, _)| table.ne()[0].saturating_mul(self.block))
    }

    /// The row of a position.
    fn row(&self, j: usize) -> Result<usize, String> {
        let Some((table, seq)) = self.table else { return Ok(j) };
        let block = checked(table.int([j / self.block, seq, 0, 0]), self.n_rows / self.block, "block")?;
        Ok(block * self.block + j % self.block)
    }
}

/// A row index that comes from data, checked.
fn checked(index: i32, n: usize, what: &str) -> Result<usize, String> {
    usize::try_from(index).ok().filter(|&i| i < n).ok_or_else(|| format!("{what} {index} is outside 0..{n}"))
}
