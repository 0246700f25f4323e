//! Perplexity: how well a model foresees a text.
//!
//! As llama.cpp's program of that name has it, so that figures can be compared: the text is cut into chunks of the size of the
//! context, each is read with nothing before it (its first token gives way to the one that begins texts, if the model wants one there), and
//! what counts are the tokens of its second half, which have at least half a chunk before them. The probabilities of the tokens that
//! follow are taken where the logits are: four bytes a token cross the network. Micro-batches are enqueued ahead, those of the next chunk
//! behind those of this one, so that devices in a row have work all the time.

use crate::arch::net::{self, LogProbs};
use crate::batch::{Batch, Request};
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::reading::Targets;
use crate::runs::{Run, Runs, Turn};
use crate::sequence::Sequence;
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

/// What a micro-batch gives.
#[derive(Clone, Copy)]
struct Part {
    /// How many log-probabilities, and how many of them, the first ones, do not count.
    rows: usize,
    skip: usize,
    /// Whether its chunk ends with it.
    last: bool,
}

/// A micro-batch that was enqueued, and its log-probabilities, if it gives any.
struct Scores {
    run: Run,
    bytes: Option<Pending<Bytes>>,
    part: Part,
}

/// How many chunks of `size` tokens a text of `tokens` tokens has. Fails if it has none, or if they are too short to have a second half.
pub fn count_chunks(tokens: usize, size: usize) -> Result<usize> {
    if scored(size) == 0 {
        return Err(Error::ChunkTooShort { size });
    }
    match tokens / size {
        0 => Err(Error::TextTooShort { tokens, size }),
        chunks => Ok(chunks),
    }
}

/// Tokens of a chunk of `size` that count, for [`LoadOptions::scores`](crate::LoadOptions::scores).
pub fn scored(size: usize) -> usize {
    size.saturating_sub(size / 2 + 1)
}

/// The perplexity of `text`, by its first `most` chunks of as many tokens as the context has room for. `bos` takes the place of the first
/// token of each. `on_chunk` is told what is known after every chunk, and may end it there.
///
/// Fails as [`count_chunks`] does, if the model does not have a token or no room for a sequence, if a probability is no number, with what
/// happens to a device, and with [`outboard_core::Error::Cancelled`] once the model's token for that is set.
pub fn perplexity(
    model: &mut PlacedModel,
    text: &[u32],
    bos: Option<u32>,
    most: usize,
    on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
) -> Result<Estimate> {
    count_chunks(text.len(), model.n_ctx())?;
    model.check_vocabulary(text)?;
    model.check_vocabulary(bos.as_slice())?;
    model.return_to_devices()?;
    model.flush_runs()?;
    let sequence = model.open()?;
    let mut reader =
        Reader { model, sequence, runs: Runs::default(), under_way: VecDeque::new(), estimate: Estimate::default() };
    let done = reader.read(text, bos, most, on_chunk);
    let Reader { mut runs, estimate, .. } = reader;
    runs.abandon(model);
    if let Err(error) = &done {
        model.fail_if_of_device(error);
    }
    let closed = model.close(sequence);
    done.and(closed).map(|()| estimate)
}

/// Reads a text chunk by chunk.
struct Reader<'m> {
    model: &'m mut PlacedModel,
    sequence: Sequence,
    runs: Runs<Part>,
    under_way: VecDeque<Scores>,
    estimate: Estimate,
}

impl Reader<'_> {
    fn read(
        &mut self,
        text: &[u32],
        bos: Option<u32>,
        most: usize,
        on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
    ) -> Result<()> {
        let size = self.model.n_ctx();
        for chunk in text.chunks_exact(size).take(most) {
            let mut chunk = chunk.to_vec();
            if let (Some(first), Some(bos)) = (chunk.first_mut(), bos) {
                *first = bos;
            }
            if self.read_chunk(&chunk, on_chunk)?.is_break() {
                return Ok(());
            }
        }
        let under_way = &mut self.under_way;
        self.runs.finish(self.model, &mut |model, run, part| note(under_way, model, run, part))?;
        while let Some(oldest) = self.under_way.pop_front() {
            if self.add(oldest, on_chunk)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Enqueues the micro-batches of a chunk. The blocks of the one before are used again: some of it may still be under way.
    fn read_chunk(
        &mut self,
        chunk: &[u32],
        on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let (state, _) = self.model.state_and_blocks(self.sequence)?;
        state.restart();
        // Nothing follows the last token.
        self.model.add_prompt(self.sequence, chunk.get(..chunk.len() - 1).unwrap_or_default())?;
        loop {
            let state = self.model.state(self.sequence)?;
            let range = state.text.batch(state.n_past);
            if range.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            let (n, end) = (range.len(), range.end);
            let counting = end.saturating_sub(range.start.max(chunk.len() / 2));
            // Fewer columns of a product would be rounded otherwise.
            let rows = if counting > 0 { counting.max(self.model.uniform_rows().min(n)) } else { 0 };
            let targets = chunk.get(end + 1 - rows..=end).unwrap_or_default();
            let request = if rows > 0 {
                Request::Scores(Targets { tokens: targets.to_vec(), log_probs: LogProbs::Chosen, of: Vec::new() })
            } else {
                Request::Part
            };
            let part = Part { rows, skip: rows - counting, last: end + 1 == chunk.len() };
            let batch = self.model.batch_of(self.sequence, range, request)?;
            self.push(&batch, part)?;
            while self.under_way.len() > AHEAD
                && let Some(oldest) = self.under_way.pop_front()
            {
                if self.add(oldest, on_chunk)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }

    fn push(&mut self, batch: &Batch, part: Part) -> Result<()> {
        let (under_way, turn) = (&mut self.under_way, Turn { group: 0, lead: self.model.prompt_lead() });
        self.runs.push(self.model, batch, part, turn, &mut |model, run, part| note(under_way, model, run, part))
    }

    /// Waits for the scores of a micro-batch, and tells of the chunk that ends with it.
    fn add(
        &mut self,
        scores: Scores,
        on_chunk: &mut dyn FnMut(&Estimate) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let Scores { run, bytes, part: Part { rows, skip, last } } = scores;
        if let Some(bytes) = bytes {
            let bytes = self.model.wait(bytes)?;
            self.model.scheduler().settle(run.number);
            let (scores, rest) = bytes.as_chunks();
            if scores.len() != rows || !rest.is_empty() {
                let got = bytes.len();
                return Err(Error::Internal(format!("a device gave {got} bytes of scores for {rows} tokens")));
            }
            for log_prob in scores.iter().skip(skip).map(|b| f32::from_le_bytes(*b)) {
                if !log_prob.is_finite() {
                    let what = format!("the log-probability of a token of chunk {}", self.estimate.chunks + 1);
                    return Err(Error::NotFinite { what, value: log_prob });
                }
                self.estimate.add(log_prob);
            }
        }
        if last {
            self.estimate.chunks += 1;
            Ok(on_chunk(&self.estimate))
        } else {
            Ok(ControlFlow::Continue(()))
        }
    }
}

/// Asks for the scores of a micro-batch that was enqueued last.
fn note(under_way: &mut VecDeque<Scores>, model: &PlacedModel, run: Run, part: Part) -> Result<()> {
    let bytes = (part.rows > 0).then(|| model.read(&run.program, net::LOG_PROBS)).transpose()?;
    under_way.push_back(Scores { run, bytes, part });
    Ok(())
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
