//! How probable the tokens of a given text are: what programs ask for that rank texts.

use crate::ahead::Probable;
use crate::arch::net::{LogProbs, N_TOP};
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::reading::{Read, Reading};
use crate::sequence::Sequence;
use std::ops::Range;
use std::sync::Arc;

/// A text of whose tokens it is asked how probable they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreRequest {
    /// Its tokens: one at least.
    pub tokens: Vec<u32>,
    /// How many of the most probable tokens are given in the place of each, at most [`N_TOP`].
    pub top: usize,
    /// Others share its beginnings only if theirs is the same.
    pub cache_salt: Option<Arc<str>>,
}

/// How probable the tokens of a text are: those of the model itself. Nothing is known of the first token, before which there is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// The log-probability (natural logarithm) of each token but the first.
    pub log_probs: Vec<f32>,
    /// The most probable tokens in the place of each, so many one behind the other.
    top_log_probs: Vec<(u32, f32)>,
    n_top: usize,
}

impl Scores {
    /// The most probable tokens in the place of one, most probable first, with their log-probabilities, if they were asked for: place 0 is that of the second
    /// token, as in [`Scores::log_probs`].
    pub fn top(&self, place: usize) -> &[(u32, f32)] {
        let begin = place.saturating_mul(self.n_top);
        self.top_log_probs.get(begin..begin.saturating_add(self.n_top)).unwrap_or_default()
    }
}

/// The probabilities of a text's tokens, as far as they have come.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    /// The tokens behind the first.
    targets: Vec<u32>,
    scores: Scores,
}

impl Scoring {
    /// The tokens that some positions are asked about: those behind them.
    pub(crate) fn targets(&self, positions: Range<usize>) -> Result<&[u32]> {
        self.targets.get(positions).ok_or_else(|| Error::Internal("a position has no token behind it".into()))
    }

    pub(crate) fn target(&self, position: usize) -> Result<u32> {
        Ok(self.targets(position..position + 1)?[0])
    }

    pub(crate) fn log_probs(&self) -> LogProbs {
        if self.scores.n_top > 0 { LogProbs::Top } else { LogProbs::Chosen }
    }

    /// The positions whose numbers have come.
    pub(crate) fn taken(&self) -> usize {
        self.scores.log_probs.len()
    }

    /// Takes what has come for a position: behind a fault it comes again.
    pub(crate) fn add(&mut self, position: usize, came: Probable) -> Result<()> {
        let missing = || Error::Internal("a run was not asked how probable a token is".into());
        let log_prob = came.log_prob.ok_or_else(missing)?;
        if position == self.taken() {
            self.scores.log_probs.push(log_prob);
            self.scores.top_log_probs.extend(came.top.into_iter().take(self.scores.n_top));
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Scores> {
        match self.scores.log_probs.iter().find(|value| value.is_nan()) {
            Some(&value) => Err(Error::NotFinite { what: "the log-probability of a token".into(), value }),
            None => Ok(self.scores),
        }
    }
}

impl PlacedModel {
    /// Has a text read in a sequence that has nothing in it, and asks how probable its tokens are, which [`PlacedModel::next_scores`] gives. Texts of other
    /// sequences go on beside it, and the numbers do not depend on them.
    ///
    /// Fails if there are no tokens, if the model gives embeddings only, if the context has no room for them, and with [`Error::CacheFull`] if the cache
    /// has none now. With failover, a fault of a device is recovered from on the way. A run has as many rows as
    /// [`LoadOptions::scores`](crate::LoadOptions::scores) has memory for; without, few.
    pub fn begin_scores(&mut self, sequence: Sequence, request: &ScoreRequest) -> Result<()> {
        let ScoreRequest { tokens, top, cache_salt } = request;
        check_tokens(tokens)?;
        self.check_writes_text()?;
        // The last one as well, which is not read.
        self.check_vocabulary(tokens)?;
        // Nothing follows the last token.
        let (read, targets) = (&tokens[..tokens.len() - 1], tokens[1..].to_vec());
        // A small vocabulary has no more.
        let n_top = (*top).min(N_TOP).min(self.model().hparams().n_vocab);
        let scoring = Scoring { targets, scores: Scores { n_top, ..Scores::default() } };
        self.begin_reading(sequence, read, cache_salt.as_deref(), Reading::Scores(scoring))
    }

    /// The next probabilities that come, of any sequence, which keeps its tokens; `None` if no sequence waits for some. Tokens of texts that come meanwhile
    /// are given out by [`PlacedModel::next_token`].
    pub fn next_scores(&mut self) -> Result<Option<(Sequence, Result<Scores>)>> {
        let came = self.next_read(|_, read| matches!(read, Read::Scores(_)))?;
        Ok(came.and_then(|(sequence, read)| match read {
            Read::Scores(scores) => Some((sequence, scores)),
            Read::Embedding(_) => None,
        }))
    }
}

/// Whether there is something to ask about.
pub(crate) fn check_tokens(tokens: &[u32]) -> Result<()> {
    if tokens.is_empty() { Err(Error::Request("a text without tokens has no probability".into())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_come_again_count_once_and_what_is_none_is_an_error() {
        let scores = Scores { n_top: 2, ..Scores::default() };
        let scoring = Scoring { targets: vec![5, 6, 7], scores };
        assert_eq!((scoring.targets(1..3).unwrap(), scoring.target(3).is_err()), (&[6, 7][..], true));
        let (mut whole, mut broken) = (scoring.clone(), scoring);
        for (position, value) in [(0, -1.0), (1, -2.0), (0, -1.0), (1, -2.0), (2, -3.0)] {
            let top = vec![(1, value), (2, value), (3, value)];
            whole.add(position, Probable { log_prob: Some(value), top }).unwrap();
        }
        let whole = whole.finish().unwrap();
        assert_eq!(whole.log_probs, [-1.0, -2.0, -3.0]);
        assert_eq!((whole.top(2), whole.top(3)), (&[(1, -3.0), (2, -3.0)][..], &[][..]));
        broken.add(0, Probable { log_prob: Some(f32::NAN), top: Vec::new() }).unwrap();
        assert!(matches!(broken.finish(), Err(Error::NotFinite { .. })));
    }
}
