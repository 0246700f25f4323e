//! Embeddings: what the head would read of a text, as one vector.
//!
//! The rows of a text leave the device with the last layers behind the final norm, and are added up here in f64, one by one: so an embedding is the same
//! however its text was cut, and whatever was computed beside it.

use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::reading::{Read, Reading};
use crate::sequence::Sequence;
use std::ops::Range;
use std::sync::Arc;

/// How the rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean of all.
    Mean,
    /// The last one, which alone has seen the whole text.
    Last,
}

/// How long the vector is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scale {
    /// 1, by the root of its squares' sum; a vector of zeros stays one.
    #[default]
    Unit,
    /// As it comes.
    AsItIs,
}

/// A text to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedRequest {
    /// Its tokens: one at least.
    pub tokens: Vec<u32>,
    /// How its rows become one.
    pub pooling: Pooling,
    /// How long the vector is.
    pub scale: Scale,
    /// Others share its beginnings only if theirs is the same.
    pub cache_salt: Option<Arc<str>>,
}

/// The vector of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// As many numbers as the model is wide.
    pub values: Vec<f32>,
    /// Tokens of the text that the cache had from others, and that were not read again.
    pub cached: usize,
}

/// The sum of a sequence's rows, as far as they have come.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    scale: Scale,
    sum: Vec<f64>,
    /// Positions whose rows have come, or are not wanted: what is read again behind a fault gives the same rows once more.
    taken: usize,
}

impl Pool {
    fn new(request: &EmbedRequest, width: usize) -> Pool {
        Pool { pooling: request.pooling, scale: request.scale, sum: vec![0.0; width], taken: 0 }
    }

    /// The positions among these whose rows are wanted, of a text of so many tokens.
    pub(crate) fn wanted(&self, range: Range<usize>, len: usize) -> Range<usize> {
        match self.pooling {
            Pooling::Mean => range,
            Pooling::Last => range.start.max(len.saturating_sub(1)).min(range.end)..range.end,
        }
    }

    /// Whether the rows of all tokens are wanted.
    pub(crate) fn needs_all(&self) -> bool {
        self.pooling == Pooling::Mean
    }

    /// The positions whose rows have come, or are not wanted.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    pub(crate) fn add(&mut self, position: usize, row: impl Iterator<Item = f32>) {
        if position >= self.taken {
            self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(value));
            self.taken = position + 1;
        }
    }

    /// The vector of a text of so many tokens.
    pub(crate) fn finish(self, len: usize) -> Result<Vec<f32>> {
        let count = if self.pooling == Pooling::Mean { len.max(1) as f64 } else { 1.0 };
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        let by = match self.scale {
            Scale::Unit if length > 0.0 => length,
            _ => count,
        };
        let values: Vec<f32> = self.sum.iter().map(|value| (value / by) as f32).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(&value) => Err(Error::NotFinite { what: "a number of an embedding".into(), value }),
            None => Ok(values),
        }
    }
}

impl PlacedModel {
    /// Has a text read in a sequence that has nothing in it, and its rows made one vector, which [`PlacedModel::next_embedding`] gives. Texts of other
    /// sequences go on beside it, and the vector does not depend on them.
    ///
    /// Fails if there are no tokens, if the context has no room for them, and with [`Error::CacheFull`] if the cache has none now. With failover, a fault
    /// of a device is recovered from on the way.
    pub fn begin_embedding(&mut self, sequence: Sequence, request: &EmbedRequest) -> Result<()> {
        check_tokens(&request.tokens)?;
        self.check_vocabulary(&request.tokens)?;
        let pool = Pool::new(request, self.model().hparams().n_embd);
        self.begin_reading(sequence, &request.tokens, request.cache_salt.as_deref(), Reading::Embedding(pool))
    }

    /// The next embedding that comes, of any sequence, which keeps its tokens; `None` if no sequence waits for one. Tokens of texts that come meanwhile are
    /// given out by [`PlacedModel::next_token`].
    pub fn next_embedding(&mut self) -> Result<Option<(Sequence, Result<Embedding>)>> {
        let came = self.next_read(|_, read| matches!(read, Read::Embedding(_)))?;
        Ok(came.and_then(|(sequence, read)| match read {
            Read::Embedding(embedding) => Some((sequence, embedding)),
            Read::Scores(_) => None,
        }))
    }
}

/// Whether there is something to embed.
pub(crate) fn check_tokens(tokens: &[u32]) -> Result<()> {
    if tokens.is_empty() { Err(Error::Request("a text without tokens has no embedding".into())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(pooling: Pooling, scale: Scale) -> Pool {
        Pool::new(&EmbedRequest { tokens: vec![0; 3], pooling, scale, cache_salt: None }, 2)
    }

    #[test]
    fn rows_that_come_again_count_once() {
        let mut mean = pool(Pooling::Mean, Scale::AsItIs);
        for (position, row) in [(0, [1.0, 2.0]), (1, [3.0, 4.0]), (0, [1.0, 2.0]), (1, [3.0, 4.0]), (2, [5.0, -3.0])] {
            mean.add(position, row.into_iter());
        }
        assert_eq!((mean.taken, mean.finish(3).unwrap()), (3, vec![3.0, 1.0]));
    }

    #[test]
    fn the_vector_has_length_one_or_is_zero() {
        let mut last = pool(Pooling::Last, Scale::Unit);
        assert_eq!((last.wanted(0..2, 3), last.wanted(1..3, 3)), (2..2, 2..3));
        last.add(2, [3.0, -4.0].into_iter());
        assert_eq!((last.taken, last.finish(3).unwrap()), (3, vec![0.6, -0.8]));
        assert_eq!(pool(Pooling::Mean, Scale::Unit).finish(3).unwrap(), [0.0, 0.0]);
        let mut broken = pool(Pooling::Last, Scale::Unit);
        broken.add(0, [f32::NAN, 1.0].into_iter());
        assert!(matches!(broken.finish(1), Err(Error::NotFinite { .. })));
    }
}
