//! TOP_K.

use super::*;
use outboard_core::op::{Order, TopK};
use outboard_core::sort::sort_by;

/// Elements that are compared with the last of those that are kept at once.
const CHUNK: usize = 64;
/// Elements that are collected at least, beside those that are kept, before the best are selected of them.
const COLLECTED: usize = 1024;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &TopK) -> Result<(), String> {
    let (x, out) = (node.src(0)?, &node.out);
    let workers = cx.workers();
    workers.try_rows(x, |at, mut memory| {
        let values = x.f32s(at);
        let (order, buffer) = (memory.take::<u32>(values.len())?, memory.take::<u32>(values.len())?);
        let kept = select(values, op.k, order, || workers.aborted());
        let order = &mut order[..kept];
        sort_by(order, buffer, by(values), || workers.aborted());
        for (i, index) in order.iter().enumerate() {
            out.set_int([i, at[0], at[1], at[2]], *index as i32);
        }
        Ok(())
    })
}

/// The index breaks ties, so that an unstable selection gives what a stable sort would.
fn by(values: &[f32]) -> impl Fn(&u32, &u32) -> std::cmp::Ordering {
    |a, b| Order::Descending.compare(values[*a as usize], values[*b as usize]).then(a.cmp(b))
}

/// Puts the indices of the `k` largest values, or of all, at the beginning of `order`, in any order, and gives how many. Most of a row is
/// below the least of those that are kept so far, and only looked at. As many are collected before a selection as it takes, so that each has its share of
/// it. An aborted run ends with anything.
fn select(values: &[f32], k: usize, order: &mut [u32], is_aborted: impl Fn() -> bool) -> usize {
    let collected = k.saturating_add(k.max(COLLECTED)).min(values.len());
    let (first, rest) = values.split_at(collected);
    order.iter_mut().zip(0..).take(collected).for_each(|(to, i)| *to = i);
    let mut kept = keep(values, k, order, first.len());
    let Some(mut least) = order[..kept].last().map(|&index| values[index as usize]) else { return 0 };
    for (number, chunk) in rest.chunks(CHUNK).enumerate() {
        // NaN comes above everything; the later ones of equal values lose.
        let is_above = |value: &f32| (*value > least) | value.is_nan();
        // All of them, so that it is done with vectors.
        if !chunk.iter().fold(false, |any, value| any | is_above(value)) {
            continue;
        }
        let begin = (first.len() + number * CHUNK) as u32;
        for (index, value) in (begin..).zip(chunk) {
            if is_above(value) {
                order[kept] = index;
                kept += 1;
            }
        }
        if kept + CHUNK > collected {
            if is_aborted() {
                return k.min(kept);
            }
            kept = keep(values, k, order, kept);
            least = values[order[kept - 1] as usize];
        }
    }
    keep(values, k, order, kept)
}

/// Keeps the `k` best of the first so many indices, the least of them last, and gives how many those are.
fn keep(values: &[f32], k: usize, order: &mut [u32], collected: usize) -> usize {
    if k > 0 && k < collected {
        order[..collected].select_nth_unstable_by(k - 1, by(values));
    }
    k.min(collected)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many values or few, rising, falling or neither, with all that floats can be.
    #[test]
    fn it_is_the_beginning_of_a_sort() {
        let random = |seed: u64, i: usize| (seed ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        for seed in 0..300 {
            let [n, k, kinds] = [6000, 1500, 2000].map(|most| 1 + random(seed << 20, most) as usize % most);
            let (k, slope) = (if seed % 7 == 0 { 0 } else { k }, [-1.0, 0.0, 1.0][seed as usize % 3]);
            let value = |i: usize| match random(seed, i) % 97 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => f32::NEG_INFINITY,
                3 => -0.0,
                _ => (random(seed, i) % kinds as u64) as f32 + slope * i as f32,
            };
            let values: Vec<f32> = (0..n).map(value).collect();
            let mut sorted: Vec<u32> = (0..n as u32).collect();
            sorted.sort_by(by(&values));
            let mut order = vec![0; n];
            let kept = select(&values, k, &mut order, || false);
            order.truncate(kept);
            order.sort_by(by(&values));
            assert_eq!(order, sorted[..k.min(n)], "seed {seed}: {k} of {n}");
        }
    }
}
