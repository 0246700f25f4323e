//! Sorting that can be stopped.
//!
//! Kernels sort rows of any length, and a run that is not wanted any more must end soon. So a row is sorted in pieces, which are then
//! merged, and `stop` is asked between them. Rows of models are one piece.

use std::cmp::Ordering;

/// Elements that are sorted, or merged, between two looks at `stop`: some milliseconds.
const PIECE: usize = 1 << 17;

/// Sorts `items` by `compare`, which must tell all of them apart. `buffer` is as long as `items`; both have any order when `stop` has
/// said `true`.
///
/// # Panics
/// If `buffer` is shorter than `items`.
pub fn sort_by<T: Copy>(
    items: &mut [T],
    buffer: &mut [T],
    compare: impl Fn(&T, &T) -> Ordering,
    stop: impl Fn() -> bool,
) {
    for piece in items.chunks_mut(PIECE) {
        if stop() {
            return;
        }
        piece.sort_unstable_by(&compare);
    }
    let mut sorted = PIECE;
    while sorted < items.len() {
        buffer[..items.len()].copy_from_slice(items);
        let pairs = items.chunks_mut(2 * sorted).zip(buffer.chunks(2 * sorted));
        for (to, from) in pairs {
            let (a, b) = from.split_at(sorted.min(to.len()));
            merge(a, b, to, &compare, &stop);
        }
        sorted = sorted.saturating_mul(2);
    }
}

/// Merges two sorted runs; `b` may have more behind it than `to` has room for.
fn merge<'a, T: Copy>(
    mut a: &'a [T],
    mut b: &'a [T],
    to: &mut [T],
    compare: &impl Fn(&T, &T) -> Ordering,
    stop: &impl Fn() -> bool,
) {
    for piece in to.chunks_mut(PIECE) {
        if stop() {
            return;
        }
        for to in piece {
            let from = match (a.first(), b.first()) {
                (Some(x), Some(y)) if compare(x, y).is_gt() => &mut b,
                (None, _) => &mut b,
                _ => &mut a,
            };
            if let Some(next) = from.split_off_first() {
                *to = *next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn shuffled(n: usize) -> Vec<u32> {
        let mut state = 1u64;
        let mut items: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            items.swap(i, (state >> 33) as usize % (i + 1));
        }
        items
    }

    #[test]
    fn any_length_is_sorted() {
        for n in [0, 1, 2, 1000, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7, 5 * PIECE - 1] {
            let mut items = shuffled(n);
            let mut buffer = vec![0; n];
            sort_by(&mut items, &mut buffer, u32::cmp, || false);
            assert!(items.iter().copied().eq(0..n as u32), "{n}");
        }
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        let n = 4 * PIECE;
        for after in 0..12 {
            let asked = Cell::new(0);
            let stop = || {
                asked.set(asked.get() + 1);
                asked.get() > after
            };
            let (mut items, mut buffer) = (shuffled(n), vec![0; n]);
            sort_by(&mut items, &mut buffer, u32::cmp, stop);
            // It may be asked by both of the merges that are left, and by no more.
            assert!(asked.get() <= after + 3, "asked {} times", asked.get());
        }
    }
}
