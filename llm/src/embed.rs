//! Embeddings: what the head would read of a text, as one vector.
//!
//! A text that is embedded has a sequence like one that is written, and is read in parts between the runs of others: one part for each of their runs,
//! no larger than a part of a prompt would be. Its rows leave the device with the last layers behind the final norm, and are added up here in f64, one
//! by one: so an embedding is the same however its text was cut, and whatever was computed beside it.

use crate::batch::{Batch, Request};
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::runs::Turn;
use crate::sequence::{Next, Sequence, State};
use crate::turns::Work;
use bytes::Bytes;
use std::collections::VecDeque;
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
    pub(crate) pooling: Pooling,
    scale: Scale,
    sum: Vec<f64>,
    /// Positions whose rows have come, or are not wanted: what is read again behind a fault gives the same rows once more.
    taken: usize,
}

/// Rows of a run that belong to a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    sequence: Sequence,
    /// Of the sequence when it was enqueued.
    epoch: u64,
    positions: Range<usize>,
    /// Where they begin among those that the run gives.
    at: usize,
}

/// Which rows a run gives, by their numbers in the run, and whose they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hidden {
    pub(crate) rows: Vec<usize>,
    pub(crate) of: Vec<Rows>,
}

/// Embeddings that have come, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Embeddings {
    ready: VecDeque<(Sequence, Result<Embedding>)>,
    /// A run of others was enqueued since the last one for embeddings.
    has_turn: bool,
}

impl Embeddings {
    /// A run of others was enqueued.
    pub(crate) fn others_ran(&mut self) {
        self.has_turn = true;
    }

    /// Forgets what has come for a sequence.
    pub(crate) fn forget(&mut self, sequence: Sequence) {
        self.ready.retain(|(of, _)| *of != sequence);
    }
}

impl Pool {
    fn new(request: &EmbedRequest, width: usize) -> Pool {
        Pool { pooling: request.pooling, scale: request.scale, sum: vec![0.0; width], taken: 0 }
    }

    /// The positions among these whose rows are wanted, of a text of so many tokens.
    fn wanted(&self, range: Range<usize>, len: usize) -> Range<usize> {
        match self.pooling {
            Pooling::Mean => range,
            Pooling::Last => range.start.max(len.saturating_sub(1)).min(range.end)..range.end,
        }
    }

    fn add(&mut self, position: usize, row: impl Iterator<Item = f32>) {
        if position >= self.taken {
            self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(value));
            self.taken = position + 1;
        }
    }

    /// The vector of a text of so many tokens.
    fn finish(self, len: usize) -> Result<Vec<f32>> {
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
        let EmbedRequest { tokens, pooling, .. } = request;
        self.check_vocabulary(tokens)?;
        if self.len(sequence)? > 0 {
            return Err(Error::Request("the sequence has tokens: a text is embedded from its beginning".into()));
        }
        check_tokens(tokens)?;
        self.check_room(sequence, tokens.len())?;
        self.prompts += 1;
        let begun = self.prompts;
        self.return_to_devices()?;
        self.truncate(sequence, 0)?;
        self.set_cache_salt(sequence, request.cache_salt.as_deref())?;
        self.add_prompt(sequence, tokens)?;
        self.state_and_blocks(sequence)?.0.shared = 0;
        let shared = match pooling {
            Pooling::Last => self.share_prefix(sequence.slot).or_else(|e| self.recover_or_fail(e)),
            // All rows are wanted, and the cache does not have them.
            Pooling::Mean => Ok(()),
        };
        let width = self.model.hparams().n_embd;
        let (state, blocks) = self.state_and_blocks(sequence)?;
        if let Err(e) = shared.and_then(|()| state.reserve(blocks, tokens.len())) {
            state.truncate(blocks, 0);
            return Err(e);
        }
        state.pool = Some(Pool::new(request, width));
        state.begun = begun;
        Ok(())
    }

    /// The next embedding that comes, of any sequence, which keeps its tokens; `None` if no sequence waits for one. Tokens of texts that come meanwhile are
    /// given out by [`PlacedModel::next_token`].
    pub fn next_embedding(&mut self) -> Result<Option<(Sequence, Result<Embedding>)>> {
        self.return_to_devices()?;
        loop {
            if let Some(came) = self.take_embedding(|_| true) {
                return Ok(Some(came));
            }
            let waits = self.sequences.iter().flatten().any(|state| state.pool.is_some());
            if !waits || !self.go_on()? {
                return Ok(None);
            }
        }
    }

    /// One that has come and that somebody wants.
    pub(crate) fn take_embedding(
        &mut self,
        is_wanted: impl Fn(Sequence) -> bool,
    ) -> Option<(Sequence, Result<Embedding>)> {
        let at = self.embeddings.ready.iter().position(|(sequence, _)| is_wanted(*sequence))?;
        self.embeddings.ready.remove(at)
    }

    /// The rows of the next run for embeddings, if it is their turn: always, where nobody else has something to do, and else behind each run of others.
    pub(crate) fn next_embeddings(&mut self) -> Result<Option<(Batch, Turn)>> {
        let reads = |(slot, state): (usize, &State)| (state.embeds() && state.next() != Next::Nothing).then_some(slot);
        let mut work = Work { reads: self.states().filter_map(reads).collect(), ..Work::default() };
        if work.reads.is_empty() {
            return Ok(None);
        }
        let idle = self.ahead.is_idle() && self.runs.len() == 0;
        if !self.embeddings.has_turn && !idle && self.states().any(|(_, state)| state.is_busy()) {
            return Ok(None);
        }
        let decoding = self.decoding_groups();
        let lead = self.lead(decoding);
        let devices = self.route().devices().len();
        if decoding == 0 && !self.ahead.has_time_to_read(self.runs.len(), devices + lead) {
            return Ok(None);
        }
        self.embeddings.has_turn = false;
        self.by_turn(&mut work.reads);
        // No step waits for what they sample.
        let turn = Turn { group: usize::MAX, lead };
        Ok(Some((self.compose_embeddings(&work, decoding)?, turn)))
    }

    fn compose_embeddings(&mut self, work: &Work, decoding: usize) -> Result<Batch> {
        let (mut rows, mut hidden) = (Vec::new(), Hidden::default());
        let mut room = self.options.n_ubatch;
        if decoding > 0 {
            room = room.min(self.embedding_rows(work));
        }
        let history = self.options.prefixes.are_shared();
        let mut kept = self.kept_for_others(&work.reads, room);
        for &slot in &work.reads {
            if self.slot(slot)?.pool.as_ref().is_some_and(|pool| pool.pooling == Pooling::Last) {
                self.share_prefix(slot)?;
            }
            let range = self.part_of_prompt(slot, room.saturating_sub(std::mem::take(&mut kept)), rows.is_empty())?;
            if range.is_empty() {
                continue;
            }
            let (n, first) = (range.len(), rows.len());
            room = room.saturating_sub(n);
            rows.extend(self.read_rows(slot, range.clone())?);
            let (state, blocks) = self.slot_and_blocks(slot)?;
            let len = state.text.len();
            let positions = state.pool.as_ref().map_or(0..0, |pool| pool.wanted(range.clone(), len));
            if !positions.is_empty() {
                let sequence = Sequence { slot, generation: state.generation };
                let at = hidden.rows.len();
                hidden.rows.extend(positions.clone().map(|position| first + position - range.start));
                hidden.of.push(Rows { sequence, epoch: state.epoch, positions, at });
            }
            state.note_history(history, n);
            state.enqueued(n, false);
            if history {
                state.publish_prefixes(blocks);
            }
        }
        let request = if hidden.rows.is_empty() { Request::Part } else { Request::Hidden(hidden) };
        Ok(Batch { rows, request, history })
    }

    /// Rows of a run have come.
    pub(crate) fn note_rows(&mut self, of: Vec<Rows>, bytes: &Bytes) -> Result<()> {
        let mut came = false;
        let row_bytes = size_of::<f32>() * self.model.hparams().n_embd;
        for Rows { sequence, epoch, positions, at } in of {
            let range = at * row_bytes..(at + positions.len()) * row_bytes;
            let missing = || Error::Internal("a device gave fewer rows than it was asked for".into());
            let rows = bytes.get(range).ok_or_else(missing)?;
            let Ok((state, _)) = self.state_and_blocks(sequence) else { continue };
            let (len, cached) = (state.text.len(), state.shared);
            let Some(pool) = state.pool.as_mut().filter(|_| state.epoch == epoch) else { continue };
            let before = pool.taken;
            for (position, row) in positions.zip(rows.chunks_exact(row_bytes)) {
                pool.add(position, row.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            came |= pool.taken > before;
            if let Some(pool) = state.pool.take_if(|pool| pool.taken == len) {
                let done = pool.finish(len).map(|values| Embedding { values, cached });
                self.embeddings.ready.push_back((sequence, done));
            }
        }
        // What comes again behind a fault is no progress.
        if came {
            self.recoveries = 0;
        }
        Ok(())
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
