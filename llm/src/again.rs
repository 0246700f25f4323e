//! Tokens that were generated, read again: behind a fault, or where the cache has none of them any more.
//!
//! Attention rounds a token that it computes alone otherwise than one of a micro-batch, and products of several sequences round all rows alike
//! (`uniform_rows`). So many tokens of a text go in one run, each alone to attention: rows of a sequence that follow one another are computed together,
//! so between two of them goes a row of another sequence, or one of nobody's. Every row is written to the cache before any attends to it, as those of
//! a prompt are.
//!
//! That is so where the devices round rows of a product alike from some number on. Where one does not say so (a GPU), and in a model for one sequence, whose
//! runs are not made up to that number, a run has one token of each text.

use crate::batch::Row;
use crate::error::Result;
use crate::placed_model::PlacedModel;
use crate::sequence::Next;
use std::ops::Range;

/// The order of rows, each by the number of its text; `None`: a row of nobody's. So many rows of each text are wanted, and there is room for `room`, and for
/// `spare` of nobody's. No two of a text follow one another, and all texts get on alike.
fn alternate(wanted: &[usize], room: usize, spare: usize) -> Vec<Option<usize>> {
    let (mut left, mut spare, mut order) = (wanted.to_vec(), spare, Vec::new());
    while left.iter().any(|&left| left > 0) {
        for (text, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
            let is_last = order.last() == Some(&Some(text));
            if order.len() + usize::from(is_last) >= room || is_last && spare == 0 {
                return order;
            }
            if is_last {
                order.push(None);
                spare -= 1;
            }
            order.push(Some(text));
            *left -= 1;
        }
    }
    order
}

/// Rows of a text in a run, by their positions.
pub(crate) struct Part {
    pub(crate) slot: usize,
    pub(crate) range: Range<usize>,
    /// The number of the last of them among the rows.
    pub(crate) last: usize,
}

impl PlacedModel {
    /// Whether a row of a run is rounded as it is with any other number of rows.
    fn rounds_alike(&self) -> bool {
        self.n_seqs() > 1 && self.placement.pipeline.evens_out()
    }

    /// Rows that read again what sequences have generated, `room` at most, with blocks for them; and what each of the sequences has of them, in the order of
    /// their last rows.
    pub(crate) fn rows_alone(&mut self, slots: &[usize], room: usize) -> Result<(Vec<Row>, Vec<Part>)> {
        let most = if self.rounds_alike() { usize::MAX } else { 1 };
        let (mut parts, mut wanted) = (Vec::new(), Vec::new());
        for &slot in slots {
            if let Next::ReadAlone(range) = self.slot(slot)?.next() {
                parts.push(Part { slot, range: range.start..range.start, last: 0 });
                wanted.push(range.len().min(most));
            }
        }
        let (mut rows, mut separating) = (Vec::new(), self.separating_rows());
        for text in alternate(&wanted, room, separating.len()) {
            let Some(part) = text.and_then(|text| parts.get_mut(text)) else {
                rows.extend(separating.next());
                continue;
            };
            let position = part.range.end;
            rows.extend(self.read_rows(part.slot, position..position + 1)?);
            (part.range.end, part.last) = (position + 1, rows.len() - 1);
        }
        parts.retain(|part| !part.range.is_empty());
        parts.sort_by_key(|part| part.last);
        Ok((rows, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_text_do_not_follow_one_another() {
        for wanted in [&[][..], &[1], &[5], &[0, 3], &[2, 2, 2], &[7, 1, 3], &[100, 1, 40, 41]] {
            let all: usize = wanted.iter().sum();
            let order = alternate(wanted, usize::MAX, usize::MAX);
            assert!(order.windows(2).all(|two| two[0] != two[1]), "{wanted:?}: {order:?}");
            assert_eq!(order.iter().flatten().count(), all);
            assert!(order.last() != Some(&None) && order.first() != Some(&None));
            for (text, wanted) in wanted.iter().enumerate() {
                assert_eq!(order.iter().filter(|row| **row == Some(text)).count(), *wanted);
            }
        }
        assert_eq!(alternate(&[3, 1], 9, 9), [Some(0), Some(1), Some(0), None, Some(0)]);
    }

    #[test]
    fn there_are_no_more_rows_than_there_is_room_for() {
        for room in 0..12 {
            let order = alternate(&[9, 2, 3], room, 2);
            assert!(order.len() <= room && order.last() != Some(&None), "{order:?}");
            assert_eq!(order.is_empty(), room == 0);
        }
        assert_eq!(alternate(&[9], 9, 0), [Some(0)]);
        assert_eq!(alternate(&[9], 2, 9), [Some(0)]);
        assert_eq!(alternate(&[9], 9, 1), [Some(0), None, Some(0)]);
        // All get on alike.
        assert_eq!(alternate(&[9, 9, 9], 6, 0).iter().filter(|row| **row == Some(2)).count(), 2);
    }
}
