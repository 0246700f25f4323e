//! Perplexity: how well a model foresees a text.
//!
//! As llama.cpp's program of that name has it, so that figures can be compared: the text is cut into chunks of the size of the
//! context, each is read with nothing before it (its first token gives way to the one that begins texts, if the model wants one there), and
//! what counts are the tokens of its second half, which have at least half a chunk before them. The probabilities of the tokens that
//! follow are taken where the logits are: four bytes a token cross the network. Chunks are enqueued one ahead, so that devices in a
//! row have work all the time.

use crate::arch::net::{self, Feed, GraphShape, Outputs};
use crate::engine::Engine;
use crate::error::{Error, Result};
use bytes::Bytes;
use outboard_core::Pending;
use std::ops::ControlFlow;

/// What is known of a text's perplexity after some of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Chunks that were read.
    pub chunks: usize,
    /// Tokens that count.
    pub scored: usize,
    /// Their negative log-probabilities, added up, and the squares of these.
    sum: f64,
    squares: f64,
}

impl Estimate {
    /// The perplexity: e to the power of the mean negative log-probability.
    pub fn ppl(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity, from that of the mean; 0 where one token or none counts.
    pub fn stderr(&self) -> f64 {
        let variance = self.squares / self.scored.max(1) as f64 - self.mean().powi(2);
        (variance.max(0.0) / self.scored.saturating_sub(1).max(1) as f64).sqrt() * self.ppl()
    }

    fn mean(&self) -> f64 {
        self.sum / self.scored.max(1) as f64
    }

    fn add(&mut self, log_prob: f32) {
        let surprise = -f64::from(log_prob);
        self.scored += 1;
        self.sum += surprise;
        self.squares += surprise * surprise;
    }
}

/// A chunk that was enqueued: what is to come of it.
struct UnderWay {
    /// Programs, and the log-probabilities that they give.
    scores: Vec<(usize, Pending<Bytes>)>,
    /// The last run.
    run: u64,
}

/// How many chunks of `size` tokens a text of `tokens` tokens has. Fails if it has none, or if they are too short to have a second half.
pub fn count_chunks(tokens: usize, size: usize) -> Result<usize> {
    if size / 2 + 1 >= size {
        return Err(Error::Request(format!("a chunk of {size} tokens has none to score: make it larger with -c")));
    }
    match tokens / size {
        0 => Err(Error::Request(format!(
            "the text has {tokens} tokens, less than a chunk of {size}: take a longer one, or make chunks smaller with -c"
        ))),
        chunks => Ok(chunks),
    }
}

/// The perplexity of `text`, by its first `most` chunks of as many tokens as the context has room for. `bos` takes the place of the first
/// token of each. `on_chunk` is told what is known after every chunk, and may end it there. What was in the cache is lost.
///
/// Fails as [`count_chunks`] does, and if a probability is no number.
pub fn perplexity(
    engine: &mut Engine,
    text: &[u32],
    bos: Option<u32>,
    most: usize,
    on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
) -> Result<Estimate> {
    let size = engine.n_ctx();
    count_chunks(text.len(), size)?;
    engine.check_vocabulary(text)?;
    let mut estimate = Estimate::default();
    let mut before: Option<UnderWay> = None;
    for chunk in text.chunks_exact(size).take(most) {
        let mut chunk = chunk.to_vec();
        if let (Some(first), Some(bos)) = (chunk.first_mut(), bos) {
            *first = bos;
        }
        let next = engine.enqueue_scores(&chunk, size / 2)?;
        if let Some(before) = before.replace(next)
            && engine.add_scores(before, &mut estimate, on_chunk)?.is_break()
        {
            engine.truncate(0);
            return Ok(estimate);
        }
    }
    if let Some(last) = before {
        let _ = engine.add_scores(last, &mut estimate, on_chunk)?;
    }
    engine.truncate(0);
    Ok(estimate)
}

impl Engine {
    /// Reads a chunk with nothing before it, and has its tokens behind the one at `from` scored.
    fn enqueue_scores(&mut self, chunk: &[u32], from: usize) -> Result<UnderWay> {
        self.truncate(0);
        // Nothing follows the last token.
        let (_, tokens) = chunk.split_last().ok_or_else(|| Error::Request("a chunk without tokens".into()))?;
        let mut under_way = UnderWay { scores: Vec::new(), run: 0 };
        let mut at = 0;
        for batch in self.micro_batches(tokens)? {
            let end = at + batch.len();
            let rows = end.saturating_sub(at.max(from));
            let outputs = if rows > 0 { Outputs::Scores(rows) } else { Outputs::None };
            let shape =
                GraphShape { n_tokens: batch.len(), n_ctx: self.n_ctx(), feed: Feed::Input, history: false, outputs };
            let targets = chunk.get(end + 1 - rows..=end).unwrap_or_default();
            let (program, run) = self.enqueue_shape(shape, batch, targets)?;
            if rows > 0 {
                under_way.scores.push((program, self.read(program, net::LOG_PROBS)?));
            }
            under_way.run = run;
            at = end;
        }
        Ok(under_way)
    }

    /// Waits for the scores of a chunk.
    fn add_scores(
        &mut self,
        chunk: UnderWay,
        estimate: &mut Estimate,
        on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for (program, pending) in chunk.scores {
            let scores = self.wait(pending, program)?;
            for log_prob in scores.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)) {
                if !log_prob.is_finite() {
                    let chunk = estimate.chunks + 1;
                    return Err(Error::Model(format!(
                        "the log-probability of a token in chunk {chunk} is {log_prob}: no perplexity can be made of that"
                    )));
                }
                estimate.add(log_prob);
            }
        }
        self.scheduler().settle(chunk.run);
        estimate.chunks += 1;
        Ok(on_chunk(estimate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_error() {
        let mut estimate = Estimate::default();
        [-1.0, -2.0, -3.0].into_iter().for_each(|log_prob| estimate.add(log_prob));
        assert_eq!(estimate.scored, 3);
        assert!((estimate.ppl() - 2f64.exp()).abs() < 1e-12);
        // Variance 2/3 over the two degrees of freedom that are left.
        assert!((estimate.stderr() - (1f64 / 3.0).sqrt() * 2f64.exp()).abs() < 1e-12);
    }

    #[test]
    fn one_token_has_no_error_and_none_is_no_nan() {
        let mut estimate = Estimate::default();
        assert_eq!((estimate.ppl(), estimate.stderr()), (1.0, 0.0));
        estimate.add(-0.5);
        assert_eq!((estimate.ppl(), estimate.stderr()), (0.5f64.exp(), 0.0));
    }
}
