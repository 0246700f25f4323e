//! How probable the tokens of a given text are: what programs ask for that rank texts.

use crate::ahead::Probable;
use crate::arch::net::LogProbs;
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
    /// Those of the tokens alone, or of the most probable ones beside them as well; [`LogProbs::None`] is taken as [`LogProbs::Chosen`].
    pub log_probs: LogProbs,
    /// Others share its beginnings only if theirs is the same.
    pub cache_salt: Option<Arc<str>>,
}

/// How probable the tokens of a text are: those of the model itself. Nothing is known of the first token, before which there is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// The log-probability of each token but the first.
    pub log_probs: Vec<f32>,
    /// In the place of each token but the first the [most probable ones](crate::N_TOP), most probable first, with their log-probabilities, if they were
    /// asked for.
    pub top_log_probs: Vec<Vec<(u32, f32)>>,
}

/// The probabilities of a text's tokens, as far as they have come.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    /// The tokens behind the first.
    targets: Vec<u32>,
    log_probs: LogProbs,
    scores: Scores,
}

impl Scoring {
    /// The tokens that some positions are asked about: those behind them.
    pub(crate) fn targets(&self, positions: Range<usize>) -> impl Iterator<Item = u32> {
        positions.map(|position| self.target(position))
    }

    pub(crate) fn target(&self, position: usize) -> u32 {
        self.targets.get(position).copied().unwrap_or_default()
    }

    pub(crate) fn log_probs(&self) -> LogProbs {
        self.log_probs
    }

    /// The positions whose numbers have come.
    pub(crate) fn taken(&self) -> usize {
        self.scores.log_probs.len()
    }

    /// Takes what has come for a position: behind a fault it comes again.
    pub(crate) fn add(&mut self, position: usize, came: Probable) {
        if position == self.taken() {
            self.scores.log_probs.push(came.log_prob.unwrap_or(f32::NAN));
            if self.log_probs == LogProbs::Top {
                self.scores.top_log_probs.push(came.top);
            }
        }
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
    /// has none now. With failover, a fault of a device is recovered from on the way. What runs of [`LoadOptions::scores`](crate::LoadOptions::scores) rows
    /// need has memory; without, runs are small.
    pub fn begin_scores(&mut self, sequence: Sequence, request: &ScoreRequest) -> Result<()> {
        let ScoreRequest { tokens, log_probs, cache_salt } = request;
        check_tokens(tokens)?;
        if self.model().hparams().pooling.is_some() {
            return Err(Error::Request("the model gives embeddings, and no probabilities of tokens".into()));
        }
        self.check_vocabulary(tokens)?;
        // Nothing follows the last token.
        let (read, targets) = (&tokens[..tokens.len() - 1], tokens[1..].to_vec());
        let log_probs = (*log_probs).max(LogProbs::Chosen);
        let scoring = Scoring { targets, log_probs, scores: Scores::default() };
        self.begin_reading(sequence, read, cache_salt.as_deref(), Reading::Scores(scoring))
    }

    /// The next probabilities that come, of any sequence, which keeps its tokens; `None` if no sequence waits for some. Tokens of texts that come meanwhile
    /// are given out by [`PlacedModel::next_token`].
    pub fn next_scores(&mut self) -> Result<Option<(Sequence, Result<Scores>)>> {
        let came = self.next_read(|_, read| matches!(read, Ok(Read::Scores(_)) | Err(_)))?;
        Ok(came.map(|(sequence, read)| (sequence, read.and_then(Read::scores))))
    }
}

impl Read {
    fn scores(self) -> Result<Scores> {
        match self {
            Read::Scores(scores) => Ok(scores),
            Read::Embedding(_) => Err(Error::Internal("probabilities have become an embedding".into())),
        }
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
        let scoring = Scoring { targets: vec![5, 6, 7], log_probs: LogProbs::Chosen, scores: Scores::default() };
        assert_eq!(scoring.targets(1..3).collect::<Vec<_>>(), [6, 7]);
        let (mut whole, mut broken) = (scoring.clone(), scoring);
        for (position, value) in [(0, -1.0), (1, -2.0), (0, -1.0), (1, -2.0), (2, -3.0)] {
            whole.add(position, Probable { log_prob: Some(value), top: Vec::new() });
        }
        assert_eq!((whole.taken(), whole.finish().unwrap().log_probs), (3, vec![-1.0, -2.0, -3.0]));
        broken.add(0, Probable { log_prob: Some(f32::NAN), top: Vec::new() });
        assert!(matches!(broken.finish(), Err(Error::NotFinite { .. })));
    }
}
