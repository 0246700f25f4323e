//! The tokens of a sequence, and the micro-batches that they were read in: enough to read them again and get the same cache, bit for bit.
//!
//! What a device rounds depends on how many tokens it computes at a time, so those of a prompt are read again in the same
//! micro-batches, and those that were generated one by one.

use std::collections::BTreeMap;
use std::ops::Range;

/// Tokens whose ids are known, by position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    tokens: Vec<u32>,
    /// Micro-batches of more than one token: where each begins, and its length.
    batches: BTreeMap<usize, usize>,
    /// So many tokens have gone through every device.
    confirmed: usize,
}

impl Text {
    /// A micro-batch is to be read; what was at its place and behind it is no more.
    pub(crate) fn read(&mut self, at: usize, batch: &[u32]) {
        self.truncate(at);
        self.tokens.extend_from_slice(batch);
        if batch.len() > 1 {
            self.batches.insert(at, batch.len());
        }
    }

    /// The token at a position was sampled, so that those before it have gone through every device.
    pub(crate) fn sampled(&mut self, at: usize, id: u32) {
        self.confirmed = at;
        if self.tokens.get(at) != Some(&id) {
            self.truncate(at);
            self.tokens.push(id);
        }
    }

    /// Forgets what is behind the first `n` tokens.
    pub(crate) fn truncate(&mut self, n: usize) {
        self.tokens.truncate(n);
        self.confirmed = self.confirmed.min(n);
        drop(self.batches.split_off(&n));
        if let Some((&start, len)) = self.batches.iter_mut().next_back() {
            *len = (*len).min(n - start);
            // One token is read as those that were generated.
            if *len == 1 {
                self.batches.remove(&start);
            }
        }
    }

    /// Tokens behind the first `n` are to go through the devices again.
    pub(crate) fn unconfirm(&mut self, n: usize) {
        self.confirmed = self.confirmed.min(n);
    }

    /// Tokens that need not be read again where the cache is still there. One has to be, to sample from.
    pub(crate) fn confirmed(&self) -> usize {
        self.confirmed.min(self.tokens.len().saturating_sub(1))
    }

    /// What to read at a position: a micro-batch as it was, or what is left of it, or one token. Empty at the end.
    pub(crate) fn batch(&self, at: usize) -> Range<usize> {
        let before = self.batches.range(..=at).next_back();
        let end = before.map(|(start, len)| start + len).filter(|end| *end > at).unwrap_or(at + 1);
        at..end.min(self.tokens.len())
    }

    /// Reads what is behind a position in other micro-batches, of these sizes.
    pub(crate) fn read_anew(&mut self, mut at: usize, sizes: &[usize]) {
        let tokens = self.tokens.split_off(at.min(self.tokens.len()));
        self.truncate(at);
        let mut rest = &tokens[..];
        for &size in sizes {
            let (batch, behind) = rest.split_at(size.min(rest.len()));
            self.read(at, batch);
            (at, rest) = (at + batch.len(), behind);
        }
    }

    /// Reads a micro-batch in two parts, the first of so many tokens.
    pub(crate) fn cut(&mut self, at: usize, first: usize) {
        let Some(len) = self.batches.remove(&at) else { return };
        for (at, len) in [(at, first), (at + first, len - first)] {
            if len > 1 {
                self.batches.insert(at, len);
            }
        }
    }

    /// Whether all tokens of a range are of micro-batches of several.
    pub(crate) fn is_prompt(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        if let Some((&start, &len)) = self.batches.range(..=at).next_back().filter(|(start, len)| *start + *len > at) {
            at = start + len;
            while at < range.end
                && let Some(len) = self.batches.get(&at)
            {
                at += len;
            }
        }
        at >= range.end && range.end <= self.tokens.len()
    }

    /// Tokens of a range.
    pub(crate) fn tokens(&self, range: Range<usize>) -> &[u32] {
        self.tokens.get(range).unwrap_or_default()
    }

    /// Tokens in all.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(text: &Text, from: usize) -> Vec<usize> {
        let mut at = from;
        let next = || {
            let batch = text.batch(at);
            at = batch.end;
            (!batch.is_empty()).then_some(batch.len())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_batch_is_cut_and_still_a_prompt() {
        let mut text = Text::default();
        text.read(0, &[1, 2, 3, 4, 5, 6, 7]);
        text.cut(0, 3);
        assert_eq!(batches(&text, 0), [3, 4]);
        assert!(text.is_prompt(0..7) && text.is_prompt(1..6) && !text.is_prompt(0..8));
        text.sampled(7, 9);
        text.sampled(8, 9);
        text.read(9, &[1, 2, 3]);
        assert!(!text.is_prompt(6..8) && !text.is_prompt(7..9) && text.is_prompt(9..12) && !text.is_prompt(8..12));
    }

    #[test]
    fn is_read_again_as_it_was_read() {
        let mut text = Text::default();
        text.read(0, &[1, 2, 3]);
        text.read(3, &[4, 5]);
        assert_eq!((text.confirmed(), batches(&text, 0)), (0, vec![3, 2]));
        text.sampled(5, 6);
        text.sampled(6, 7);
        assert_eq!((text.len(), text.confirmed(), batches(&text, 0)), (7, 6, vec![3, 2, 1, 1]));
        assert_eq!(text.tokens(text.batch(6)), [7]);
        // The same again changes nothing.
        text.sampled(5, 6);
        assert_eq!((text.len(), text.confirmed()), (7, 5));
        // The end was not run; another prompt follows.
        text.truncate(6);
        text.read(6, &[8, 9]);
        assert_eq!((text.confirmed(), batches(&text, 0)), (5, vec![3, 2, 1, 2]));
        text.truncate(4);
        assert_eq!((text.confirmed(), batches(&text, 0)), (3, vec![3, 1]));
        text.truncate(0);
        assert_eq!((text.len(), text.confirmed(), batches(&text, 0).len()), (0, 0, 0));
    }
}
