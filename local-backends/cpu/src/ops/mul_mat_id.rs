//! MUL_MAT_ID: the columns of each expert are gathered, multiplied together, and the results put where they belong.

use super::mul_mat::{float_product, product, product_need, quantize};
use super::*;
use crate::kernels::act::act_blocks;
use crate::kernels::mul_mat::{Out, Rows};
use crate::tensor::checked;

/// A column of the result: its expert, its slot and its token.
type Assignment = [u32; 3];

/// One expert may get all columns.
pub(crate) fn need(isa: Isa, node: &Node) -> Need {
    let Some(a) = node.opt(0) else { return Need::default() };
    let ([k, m, ..], n) = (a.ne(), node.out.n_rows());
    let quantized = a.dtype().is_quantized();
    let gathered = if quantized { 0 } else { bytes_of::<f32>(n).saturating_mul(k as u64) };
    let results = bytes_of::<f32>(n).saturating_mul(m as u64);
    let parts = [bytes_of::<Assignment>(n), gathered, results, 2 * 64];
    let product = if quantized { product_need(isa, a, n, n) } else { Need::default() };
    Need { shared: parts.into_iter().fold(0, u64::saturating_add), ..product }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (a, b, ids, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let [k, m, n_expert, _] = a.ne();
    let workers = cx.workers();
    let mut shared = cx.shared.borrow();
    let assignments = by_expert(shared.take(out.n_rows())?, ids, n_expert)?;
    if k == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    let blocks = act_blocks(k);
    let column = |[_, s, t]: Assignment| b.f32s([s as usize % b.ne()[1], t as usize, 0]);
    for assignments in assignments.chunk_by(|x, y| x[0] == y[0]) {
        if workers.aborted() {
            return Ok(());
        }
        let (n, expert) = (assignments.len(), assignments[0][0] as usize);
        let mut memory = shared.borrow();
        let results = memory.take::<f32>(n * m)?;
        let weights = Rows { data: a.row([0, expert, 0]), stride: a.nb()[1], dtype: a.dtype(), k };
        let result = Out { data: results.as_mut_ptr(), stride: m };
        if a.dtype().is_quantized() {
            quantize(cx.isa, workers, cx.columns, (n, k), &|i| column(assignments[i]))?;
            product(cx.isa, workers, weights, m, &cx.columns[..n * blocks], n, result);
        } else {
            let gathered = memory.take::<f32>(n * k)?;
            for (assignment, to) in assignments.iter().zip(gathered.chunks_exact_mut(k)) {
                to.copy_from_slice(column(*assignment));
            }
            float_product(cx.isa, workers, weights, m, (gathered.as_ptr(), k), n, result);
        }
        for (&[_, s, t], from) in assignments.iter().zip(results.chunks_exact(m)) {
            out.f32s_mut([s as usize, t as usize, 0]).copy_from_slice(from);
        }
    }
    Ok(())
}

/// The columns of the result in the order of their experts, all of which are checked.
fn by_expert<'m>(assignments: &'m mut [Assignment], ids: &T, n_expert: usize) -> Result<&'m [Assignment], String> {
    let [used, tokens, ..] = ids.ne();
    let all = (0..tokens).flat_map(|t| (0..used).map(move |s| [s, t]));
    for (to, [s, t]) in assignments.iter_mut().zip(all) {
        let expert = checked(ids.int([s, t, 0, 0]), n_expert, "expert")?;
        let number = |n: usize| u32::try_from(n).map_err(|_| format!("{n} is more than this device counts"));
        *to = [number(expert)?, number(s)?, number(t)?];
    }
    assignments.sort_unstable_by_key(|&[expert, s, t]| [expert, t, s]);
    Ok(assignments)
}
