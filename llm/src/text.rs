//! The tokens of a sequence, and the micro-batches that they were read in: enough to read them again and get the same cache, bit for bit.
//!
//! What a device rounds depends on how many tokens it computes at a time, so those of a prompt are read again in the same
//! micro-batches, and those that were generated alone, each by itself.

use outboard_core::op::BLOCK_ROWS;
use std::collections::BTreeMap;
use std::ops::Range;

/// Which tokens of a block were computed alone, as those are that are generated: a bit for each, the first one lowest. Attention rounds them otherwise
/// than those of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodedMask(u128);

const _: () = assert!(BLOCK_ROWS == u128::BITS as usize, "a bit for each row of a block");

impl DecodedMask {
    /// Whether there is none: all were computed with others.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Their places in the block.
    pub(crate) fn positions(self) -> impl Iterator<Item = usize> {
        (0..BLOCK_ROWS).filter(move |place| self.0 >> place & 1 == 1)
    }

    /// Tokens before the first of them.
    pub(crate) fn leading_batched(self) -> usize {
        self.0.trailing_zeros() as usize
    }

    /// Tokens behind the last of them.
    pub(crate) fn trailing_batched(self) -> usize {
        self.0.leading_zeros() as usize
    }

    /// As bytes, for a digest.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

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
        at..self.end_of_batch(at).unwrap_or(at + 1).min(self.tokens.len())
    }

    /// The tokens from a position on that were computed alone, up to a micro-batch of several or the end; `None` if it is in such a one.
    pub(crate) fn alone(&self, at: usize) -> Option<Range<usize>> {
        let next = self.batches.range(at..).next().map_or(self.tokens.len(), |(start, _)| *start);
        self.end_of_batch(at).is_none().then_some(at..next)
    }

    /// The end of the tokens that were read in micro-batches of several from a position on.
    pub(crate) fn end_of_batched(&self, mut at: usize) -> usize {
        while let Some(end) = self.end_of_batch(at) {
            at = end;
        }
        at
    }

    /// The sizes of what is read from a position on.
    pub(crate) fn sizes(&self, mut at: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        while at < self.tokens.len() {
            let batch = self.batch(at);
            at = batch.end;
            sizes.push(batch.len());
        }
        sizes
    }

    /// The end of the micro-batch of several that a position is in; `None` if its token is alone.
    fn end_of_batch(&self, at: usize) -> Option<usize> {
        let (start, len) = self.batches.range(..=at).next_back()?;
        Some(start + len).filter(|end| *end > at)
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

    /// Those of a block's tokens that are of no micro-batch of several. None is without its id.
    pub(crate) fn decoded_mask(&self, block: usize) -> Option<DecodedMask> {
        let range = block * BLOCK_ROWS..(block + 1) * BLOCK_ROWS;
        if range.end > self.tokens.len() {
            return None;
        }
        let (mut decoded, mut at) = (DecodedMask::default(), range.start);
        while at < range.end {
            at = self.end_of_batch(at).unwrap_or_else(|| {
                decoded.0 |= 1 << (at - range.start);
                at + 1
            });
        }
        Some(decoded)
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

    #[test]
    fn a_batch_is_cut() {
        let mut text = Text::default();
        text.read(0, &[1, 2, 3, 4, 5, 6, 7]);
        text.cut(0, 3);
        assert_eq!(text.sizes(0), [3, 4]);
    }

    #[test]
    fn tokens_that_were_computed_alone_are_known() {
        let mut text = Text::default();
        text.read(0, &[1; BLOCK_ROWS - 8]);
        text.sampled(BLOCK_ROWS - 8, 9);
        text.sampled(BLOCK_ROWS - 7, 9);
        text.read(BLOCK_ROWS - 6, &[2; 6]);
        let decoded = text.decoded_mask(0).unwrap();
        assert_eq!(decoded.positions().collect::<Vec<_>>(), [BLOCK_ROWS - 8, BLOCK_ROWS - 7]);
        assert_eq!(
            (decoded.leading_batched(), decoded.trailing_batched(), decoded.is_empty()),
            (BLOCK_ROWS - 8, 6, false)
        );
        assert_eq!(text.decoded_mask(1), None);
        // A micro-batch of which one token is in the block, and one that was cut.
        text.read(0, &[1; BLOCK_ROWS - 1]);
        text.read(BLOCK_ROWS - 1, &[1; BLOCK_ROWS + 1]);
        text.cut(0, 3);
        assert!([0, 1].iter().all(|&block| text.decoded_mask(block).unwrap().is_empty()));
        assert_eq!(
            (DecodedMask::default().leading_batched(), DecodedMask::default().trailing_batched()),
            (BLOCK_ROWS, BLOCK_ROWS)
        );
    }

    #[test]
    fn is_read_again_as_it_was_read() {
        let mut text = Text::default();
        text.read(0, &[1, 2, 3]);
        text.read(3, &[4, 5]);
        assert_eq!((text.confirmed(), text.sizes(0)), (0, vec![3, 2]));
        text.sampled(5, 6);
        text.sampled(6, 7);
        assert_eq!((text.len(), text.confirmed(), text.sizes(0)), (7, 6, vec![3, 2, 1, 1]));
        assert_eq!(text.tokens(text.batch(6)), [7]);
        assert_eq!((text.alone(5), text.alone(6), text.alone(4)), (Some(5..7), Some(6..7), None));
        assert_eq!((text.end_of_batched(1), text.end_of_batched(5)), (5, 5));
        // The same again changes nothing.
        text.sampled(5, 6);
        assert_eq!((text.len(), text.confirmed()), (7, 5));
        // The end was not run; another prompt follows.
        text.truncate(6);
        text.read(6, &[8, 9]);
        assert_eq!((text.confirmed(), text.sizes(0)), (5, vec![3, 2, 1, 2]));
        assert_eq!(text.alone(5), Some(5..6));
        text.truncate(4);
        assert_eq!((text.confirmed(), text.sizes(0)), (3, vec![3, 1]));
        text.truncate(0);
        assert_eq!((text.len(), text.confirmed(), text.sizes(0).len()), (0, 0, 0));
    }
}
