//! MUL_MAT_ID: the columns of each expert are gathered, multiplied together, and the results put where they belong.

use super::mul_mat::{float_product, product};
use super::*;
use crate::kernels::act::{ActBlock, act_blocks, quantize_act};
use crate::kernels::mul_mat::{Out, Rows};
use crate::tensor::checked;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (a, b, ids, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let [k, m, n_expert, _] = a.ne();
    let [_, used, tokens, _] = out.ne();
    // Places of the result (slot, token) by expert, all ids checked first.
    let mut places: Vec<Vec<[usize; 2]>> = vec![Vec::new(); n_expert];
    for t in 0..tokens {
        for s in 0..used {
            places[checked(ids.int([s, t, 0, 0]), n_expert, "expert")?].push([s, t]);
        }
    }
    if k == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    let blocks = act_blocks(k);
    for (expert, places) in places.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        let n = places.len();
        cx.work.results.resize(n * m, 0.0);
        let weights = Rows { data: a.row([0, expert, 0]), stride: a.nb()[1], dtype: a.dtype(), k };
        let result = Out { data: cx.work.results.as_mut_ptr(), stride: m };
        let column = |[s, t]: [usize; 2]| b.f32s([s % b.ne()[1], t, 0]);
        if a.dtype().is_quantized() {
            cx.work.columns.resize(n * blocks, ActBlock::ZERO);
            for (place, to) in places.iter().zip(cx.work.columns.chunks_exact_mut(blocks)) {
                quantize_act(cx.isa, column(*place), to);
            }
            product(cx.isa, cx.pool, weights, m, &cx.work.columns[..n * blocks], n, result);
        } else {
            cx.work.floats.resize(n * k, 0.0);
            for (place, to) in places.iter().zip(cx.work.floats.chunks_exact_mut(k)) {
                to.copy_from_slice(column(*place));
            }
            float_product(cx.isa, cx.pool, weights, m, (cx.work.floats.as_ptr(), k), n, result);
        }
        for (&[s, t], from) in places.iter().zip(cx.work.results.chunks_exact(m)) {
            out.f32s_mut([s, t, 0]).copy_from_slice(from);
        }
    }
    Ok(())
}
