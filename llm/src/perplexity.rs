//! Perplexity: how well a model foresees a text.
//!
//! As llama.cpp's program of that name has it, so that figures can be compared: the text is cut into chunks of the size of the
//! context, each is read with nothing before it (its first token gives way to the one that begins texts, if the model wants one there), and
//! what counts are the tokens of its second half, which have at least half a chunk before them. The probabilities of the tokens that
//! follow are taken where the logits are: four bytes a token cross the network. Micro-batches are enqueued ahead, those of the next chunk
//! behind those of this one, so that devices in a row have work all the time.

use crate::arch::net;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::runs::{Request, Run, Runs};
use bytes::Bytes;
use outboard_core::Pending;
use std::collections::VecDeque;
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

/// Runs that are under way at most before the oldest scores are waited for: enough to keep devices in a row at work, and few beside
/// what a session may have.
const AHEAD: usize = 32;

/// What is known of a micro-batch before it is enqueued.
#[derive(Clone, Copy)]
struct Batch {
    /// How many log-probabilities it gives, and how many of them, the first ones, do not count.
    rows: usize,
    skip: usize,
    /// Whether its chunk ends with it.
    last: bool,
}

/// A micro-batch that was enqueued, and its log-probabilities, if it gives any.
struct Scores {
    run: Run,
    bytes: Option<Pending<Bytes>>,
    batch: Batch,
}

/// How many chunks of `size` tokens a text of `tokens` tokens has. Fails if it has none, or if they are too short to have a second half.
pub fn count_chunks(tokens: usize, size: usize) -> Result<usize> {
    if scored(size) == 0 {
        return Err(Error::Request(format!("a chunk of {size} tokens has none to score: make it larger with -c")));
    }
    match tokens / size {
        0 => Err(Error::Request(format!(
            "the text has {tokens} tokens, less than a chunk of {size}: take a longer one, or make chunks smaller with -c"
        ))),
        chunks => Ok(chunks),
    }
}

/// Tokens of a chunk of `size` that count, for [`LoadOptions::scores`](crate::LoadOptions::scores).
pub fn scored(size: usize) -> usize {
    size.saturating_sub(size / 2 + 1)
}

/// The perplexity of `text`, by its first `most` chunks of as many tokens as the context has room for. `bos` takes the place of the first
/// token of each. `on_chunk` is told what is known after every chunk, and may end it there. What was in the cache is lost.
///
/// Fails as [`count_chunks`] does, if the model does not have a token, if a probability is no number, with what happens to a device, and
/// with [`outboard_core::Error::Cancelled`] once the engine's token for that is set.
pub fn perplexity(
    engine: &mut Engine,
    text: &[u32],
    bos: Option<u32>,
    most: usize,
    on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
) -> Result<Estimate> {
    count_chunks(text.len(), engine.n_ctx())?;
    engine.check_vocabulary(text)?;
    engine.check_vocabulary(bos.as_slice())?;
    engine.answered = 0;
    let mut runs = engine.runs();
    let estimate = estimate(engine, &mut runs, text, bos, most, on_chunk);
    runs.abandon(engine);
    engine.truncate(0);
    estimate
}

fn estimate(
    engine: &mut Engine,
    runs: &mut Runs<Batch>,
    text: &[u32],
    bos: Option<u32>,
    most: usize,
    on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
) -> Result<Estimate> {
    let size = engine.n_ctx();
    let mut estimate = Estimate::default();
    let mut under_way: VecDeque<Scores> = VecDeque::new();
    for chunk in text.chunks_exact(size).take(most) {
        let mut chunk = chunk.to_vec();
        if let (Some(first), Some(bos)) = (chunk.first_mut(), bos) {
            *first = bos;
        }
        engine.truncate(0);
        // Nothing follows the last token.
        let tokens = chunk.get(..size - 1).unwrap_or_default();
        for tokens in engine.micro_batches(tokens)? {
            under_way.extend(engine.enqueue_scores(runs, &chunk, tokens)?);
            while under_way.len() > AHEAD
                && let Some(oldest) = under_way.pop_front()
            {
                if engine.add_scores(oldest, &mut estimate, on_chunk)?.is_break() {
                    return Ok(estimate);
                }
            }
        }
    }
    while let Some(ended) = runs.next(engine)? {
        under_way.push_back(engine.scores_of(ended)?);
    }
    for scores in under_way {
        if engine.add_scores(scores, &mut estimate, on_chunk)?.is_break() {
            break;
        }
    }
    Ok(estimate)
}

impl Engine {
    /// Reads the next micro-batch of a chunk, and has those that follow its tokens scored as far as they count. Gives the oldest one whose
    /// rest was not enqueued yet, if it is now.
    fn enqueue_scores(&mut self, runs: &mut Runs<Batch>, chunk: &[u32], tokens: &[u32]) -> Result<Option<Scores>> {
        let (at, n) = (self.n_past(), tokens.len());
        let end = at + n;
        let counting = end.saturating_sub(at.max(chunk.len() / 2));
        // Fewer columns of a product would be rounded otherwise.
        let rows = if counting > 0 { counting.max(self.uniform_rows().min(n)) } else { 0 };
        let targets = chunk.get(end + 1 - rows..=end).unwrap_or_default();
        let request = if rows > 0 { Request::Scores(targets) } else { Request::Part { history: false } };
        let batch = Batch { rows, skip: rows - counting, last: end + 1 == chunk.len() };
        let ended = runs.push(self, tokens, request, batch)?;
        ended.map(|ended| self.scores_of(ended)).transpose()
    }

    /// Asks for the scores of a micro-batch that was enqueued last.
    fn scores_of(&self, (run, batch): (Run, Batch)) -> Result<Scores> {
        let bytes = (batch.rows > 0).then(|| self.read(&run.program, net::LOG_PROBS)).transpose()?;
        Ok(Scores { run, bytes, batch })
    }

    /// Waits for the scores of a micro-batch, and tells of the chunk that ends with it.
    fn add_scores(
        &mut self,
        scores: Scores,
        estimate: &mut Estimate,
        on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let Scores { run, bytes, batch: Batch { rows, skip, last } } = scores;
        if let Some(bytes) = bytes {
            let bytes = self.wait(bytes)?;
            self.scheduler().settle(run.number);
            let (scores, rest) = bytes.as_chunks();
            if scores.len() != rows || !rest.is_empty() {
                let got = bytes.len();
                return Err(Error::Plan(format!("a device gave {got} bytes of scores for {rows} tokens")));
            }
            for log_prob in scores.iter().skip(skip).map(|b| f32::from_le_bytes(*b)) {
                if !log_prob.is_finite() {
                    return Err(Error::Request(format!(
                        "a token of chunk {} has the log-probability {log_prob}: either the model's weights are broken, or a device \
                         computes wrongly, which `outboard smoke` finds out",
                        estimate.chunks + 1
                    )));
                }
                estimate.add(log_prob);
            }
        }
        if last {
            estimate.chunks += 1;
            Ok(on_chunk(estimate))
        } else {
            Ok(ControlFlow::Continue(()))
        }
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
