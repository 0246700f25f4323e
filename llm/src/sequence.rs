//! Sequences: what each has in the cache, and what is still to come of it.

use crate::arch::net::Sampling;
use crate::batch::{Bias, Draw};
use crate::blocks::{Blocks, PrefixHash, blocks_of, computed_hash, prefix_hash, salt_hash};
use crate::error::{Error, Result};
use crate::generate::Reuse;
use crate::reading::Reading;
use crate::text::{DecodedMask, Text};
use outboard_core::op::BLOCK_ROWS;
use std::ops::Range;
use std::sync::Arc;

/// A sequence of a [`PlacedModel`](crate::PlacedModel): a text in its cache. It is plain data, and of no use once it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    pub(crate) slot: usize,
    /// Its number among all sequences that were opened: tells a closed handle from an open one.
    pub(crate) generation: u64,
}

/// What is wanted behind the text of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) sampling: Sampling,
    /// Tokens that may still be enqueued.
    pub(crate) left: usize,
}

/// What a sequence can do in the next run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    Nothing,
    /// Read these positions of its text, a micro-batch.
    Read(Range<usize>),
    /// Read these positions of its text, each computed alone.
    ReadAlone(Range<usize>),
    /// Go on from the token that it has sampled, at this position.
    Step(usize),
}

/// What is added to the logits of one token of a sequence that waits for somebody after each.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// The token's position.
    pub(crate) at: usize,
    pub(crate) bias: Bias,
}

/// Blocks of others that a sequence uses from now on.
#[derive(Debug, Default)]
pub(crate) struct SharedBlocks {
    /// Which of its blocks they are.
    pub(crate) new: Range<usize>,
    /// Positions whose tokens were computed alone.
    pub(crate) decoded: Vec<usize>,
}

/// A sequence's state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) generation: u64,
    /// When its last prompt was given, by a count of the model's.
    pub(crate) begun: u64,
    /// The runs that it goes with.
    pub(crate) group: usize,
    pub(crate) text: Text,
    /// Tokens whose rows were enqueued.
    pub(crate) n_past: usize,
    /// The position whose token the slot has sampled, or will have by the time of the next run.
    sampled: Option<usize>,
    pub(crate) job: Option<Job>,
    /// Added to its logits.
    pub(crate) bias: Option<Arc<[f32]>>,
    /// It is read and not gone on with: what its rows are to become.
    pub(crate) reading: Option<Reading>,
    /// It waits for somebody after each token. The last that was said stays, so that its token can be sampled again after a fault.
    pub(crate) held: Option<Held>,
    /// Goes up when steps under way are dropped: ids of an older epoch are ignored.
    pub(crate) epoch: u64,
    /// Tokens that came since the last prompt.
    pub(crate) answered: usize,
    pub(crate) blocks: Vec<usize>,
    /// Blocks that it may still take.
    promised: usize,
    /// Of the first blocks, those that are full and known: what they are, and how they were computed.
    prefix_hashes: Vec<PrefixHash>,
    /// The blocks of others that it may use.
    pub(crate) reuse: Reuse,
    /// What the beginnings that it shares begin with.
    salt: Option<PrefixHash>,
    /// So many of its first tokens are noted in the history, for penalties.
    history_len: usize,
    /// Tokens of the last prompt that the cache had from others.
    pub(crate) shared: usize,
}

impl State {
    pub(crate) fn new(generation: u64, group: usize) -> State {
        State {
            generation,
            begun: 0,
            group,
            text: Text::default(),
            n_past: 0,
            sampled: None,
            job: None,
            bias: None,
            reading: None,
            held: None,
            epoch: 0,
            answered: 0,
            blocks: Vec::new(),
            promised: 0,
            prefix_hashes: Vec::new(),
            reuse: Reuse::Prompts,
            salt: None,
            history_len: 0,
            shared: 0,
        }
    }

    /// What comes next.
    pub(crate) fn next(&self) -> Next {
        if self.is_only_read() {
            let left = self.n_past < self.text.len();
            return if left { Next::Read(self.text.batch(self.n_past)) } else { Next::Nothing };
        }
        match &self.job {
            Some(job) if self.sampled == Some(self.n_past) => {
                if job.left > 0 && self.may_sample(self.n_past + 1) {
                    Next::Step(self.n_past)
                } else {
                    Next::Nothing
                }
            }
            Some(_) if self.sampled.is_none() && self.n_past < self.text.len() => self.next_read(),
            _ => Next::Nothing,
        }
    }

    /// What is read next. The end of the text is not read before what comes behind it may be sampled.
    fn next_read(&self) -> Next {
        let (past, len) = (self.n_past, self.text.len());
        let may_end = self.may_sample(len);
        match self.text.alone(past) {
            Some(range) if range.end < len || may_end => Next::ReadAlone(range),
            Some(range) if range.len() > 1 => Next::ReadAlone(past..len - 1),
            None if self.text.batch(past).end < len || may_end => Next::Read(self.text.batch(past)),
            _ => Next::Nothing,
        }
    }

    /// Whether it is read, and not gone on with.
    pub(crate) fn is_only_read(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether it waits for somebody after each token.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the token at a position may be sampled, and does not wait for somebody.
    fn may_sample(&self, at: usize) -> bool {
        self.held.as_ref().is_none_or(|held| held.at == at)
    }

    /// What is added to the logits of its next token.
    pub(crate) fn next_bias(&self) -> Option<Bias> {
        match &self.held {
            Some(held) => Some(held.bias.clone()),
            None => self.bias.clone().map(Bias::Numbers),
        }
    }

    /// The token to be sampled behind its row at a position, which is this one of a run.
    pub(crate) fn draw(&self, row: usize, slot: usize, position: usize) -> Draw {
        Draw { row, slot, position, sampling: self.job.map(|job| job.sampling), bias: self.next_bias() }
    }

    /// Whether its steps are under way, or about to be.
    pub(crate) fn is_decoding(&self) -> bool {
        self.sampled.is_some() && self.job.is_some_and(|job| job.left > 0)
    }

    /// Whether it has a text to go on with.
    pub(crate) fn is_busy(&self) -> bool {
        !self.is_only_read() && (self.is_decoding() || self.next() != Next::Nothing)
    }

    /// Rows were enqueued; with a sampler, the token behind them as well.
    pub(crate) fn enqueued(&mut self, rows: usize, samples: bool) {
        self.n_past += rows;
        self.sampled = samples.then_some(self.n_past);
        if let Some(job) = self.job.as_mut().filter(|_| samples) {
            job.left = job.left.saturating_sub(1);
        }
    }

    /// Takes note of whether the next rows, so many, are noted in the history.
    pub(crate) fn note_history(&mut self, history: bool, rows: usize) {
        if history && self.history_len >= self.n_past {
            self.history_len = self.n_past + rows;
        }
    }

    /// Has tokens that the history lacks read again: blocks of others may have left theirs there.
    pub(crate) fn read_unnoted(&mut self) {
        if self.history_len < self.n_past {
            self.rewind(self.history_len);
        }
    }

    /// Reads what is behind the first `n` tokens again; of a block that others may use, all of it, in another one.
    pub(crate) fn go_back_before(&mut self, blocks: &mut Blocks, n: usize) {
        let whole = n / BLOCK_ROWS;
        let is_shared = self.blocks.get(whole).is_some_and(|&block| blocks.is_shared(block));
        let n_past = if is_shared { whole * BLOCK_ROWS } else { n };
        let kept = blocks_of(n_past).min(self.blocks.len());
        self.prefix_hashes.truncate(whole);
        // The end is given up before the beginning, without which nobody finds it.
        self.blocks.drain(kept..).rev().for_each(|block| blocks.give_back(block));
        self.rewind(n_past);
    }

    /// Tokens that were enqueued and have not come.
    pub(crate) fn under_way(&self) -> usize {
        self.sampled.map_or(0, |at| (at + 1).saturating_sub(self.text.len()))
    }

    /// Forgets what is under way, so that it is enqueued again; what the cache has of the first `n_past` tokens is right.
    pub(crate) fn rewind(&mut self, n_past: usize) {
        let under_way = self.under_way();
        if let Some(job) = &mut self.job {
            job.left += under_way;
        }
        self.job = self.job.filter(|job| job.left > 0);
        self.epoch += 1;
        self.sampled = None;
        self.n_past = n_past;
        self.history_len = self.history_len.min(n_past);
        self.text.unconfirm(n_past);
    }

    /// Whether a token is still to come.
    pub(crate) fn has_more(&self) -> bool {
        self.job.is_some_and(|job| job.left > 0) || self.under_way() > 0
    }

    /// Promises room for `tokens` in all.
    pub(crate) fn reserve(&mut self, blocks: &mut Blocks, tokens: usize) -> Result<()> {
        let needed = blocks_of(tokens).saturating_sub(self.blocks.len() + self.promised);
        blocks.promise(needed)?;
        self.promised += needed;
        Ok(())
    }

    /// Takes blocks so that there is room for `tokens`, and gives which of its blocks are new.
    pub(crate) fn grow(&mut self, blocks: &mut Blocks, tokens: usize) -> Result<Range<usize>> {
        let had = self.blocks.len();
        let needed = blocks_of(tokens);
        if needed > had + self.promised {
            return Err(Error::Internal(format!(
                "a sequence has room for {} tokens",
                (had + self.promised) * BLOCK_ROWS
            )));
        }
        while self.blocks.len() < needed {
            self.blocks.push(blocks.take()?);
            self.promised -= 1;
        }
        Ok(had..self.blocks.len())
    }

    /// The row of the cache of a position that it has a block for.
    pub(crate) fn cache_row(&self, position: usize) -> usize {
        self.blocks.get(position / BLOCK_ROWS).map_or(0, |block| block * BLOCK_ROWS + position % BLOCK_ROWS)
    }

    /// Uses blocks of others that begin as the tokens it has to read, but for the last ones. No micro-batch is to be of fewer than `least` tokens.
    pub(crate) fn share(&mut self, blocks: &mut Blocks, least: usize) -> SharedBlocks {
        let (had, mut decoded) = (self.blocks.len(), Vec::new());
        while let Some(range) = self.next_shareable(least) {
            let next = self.next_prefix_hash(range.clone());
            let Some((block, mask)) = blocks.share(&next, self.reuse) else { break };
            if !can_be_computed_again(mask, self.blocks.len() == had, least) {
                blocks.give_back(block);
                break;
            }
            self.blocks.push(block);
            self.prefix_hashes.push(computed_hash(next, mask));
            decoded.extend(mask.positions().map(|place| range.start + place));
            self.n_past = range.end;
            self.shared += BLOCK_ROWS;
            // Who shares notes all.
            self.history_len = self.history_len.max(range.end);
        }
        // So many it need not take any more.
        let spared = (self.blocks.len() - had).min(self.promised);
        self.promised -= spared;
        blocks.release_promise(spared);
        SharedBlocks { new: had..self.blocks.len(), decoded }
    }

    /// The tokens of the next block, if all of them are of a prompt and `least` at least of it are left to read behind them, or nothing but what the sequence
    /// has generated itself, which is read as it was generated.
    fn next_shareable(&self, least: usize) -> Option<Range<usize>> {
        let block = self.blocks.len();
        let range = block * BLOCK_ROWS..(block + 1) * BLOCK_ROWS;
        let is_next = self.n_past == range.start && self.prefix_hashes.len() == block;
        let of_prompt = self.text.decoded_mask(block).is_some_and(DecodedMask::is_empty);
        let (end, len) = (self.text.end_of_batched(range.end), self.text.len());
        let leaves_enough = if end == range.end { end < len } else { end - range.end >= least };
        (is_next && of_prompt && leaves_enough).then_some(range)
    }

    /// Has it share beginnings only with sequences of the same salt, from its first block on that is not shared yet.
    pub(crate) fn set_salt(&mut self, salt: Option<&str>) {
        self.salt = salt.map(salt_hash);
    }

    /// What a block of these tokens is, behind those that are known.
    fn next_prefix_hash(&self, tokens: Range<usize>) -> PrefixHash {
        prefix_hash(self.prefix_hashes.last().or(self.salt.as_ref()), self.text.tokens(tokens))
    }

    /// Blocks that are full by now, and whose tokens are known, are there for others.
    pub(crate) fn publish_prefixes(&mut self, blocks: &mut Blocks) {
        loop {
            let i = self.prefix_hashes.len();
            let range = i * BLOCK_ROWS..(i + 1) * BLOCK_ROWS;
            if range.end > self.n_past {
                return;
            }
            let (Some(&block), Some(decoded)) = (self.blocks.get(i), self.text.decoded_mask(i)) else { return };
            let next = self.next_prefix_hash(range);
            blocks.publish(block, next, decoded);
            self.prefix_hashes.push(computed_hash(next, decoded));
        }
    }

    /// Forgets tokens behind the first `n`, and steps that are under way. Of a block that others may use, the tokens that stay are read again.
    pub(crate) fn truncate(&mut self, blocks: &mut Blocks, n: usize) {
        self.text.truncate(n);
        self.job = None;
        self.reading = None;
        self.go_back_before(blocks, self.n_past.min(n));
        blocks.release_promise(std::mem::take(&mut self.promised));
    }

    /// Begins again with nothing, in the blocks that it has.
    pub(crate) fn restart(&mut self) {
        self.text.truncate(0);
        self.job = None;
        self.rewind(0);
    }

    /// After a fault: what the cache has is right up to `n_past` tokens, and nobody knows what others share.
    pub(crate) fn recover(&mut self, n_past: usize) {
        self.shared = 0;
        self.prefix_hashes.clear();
        // What it goes on from is to be as it was.
        self.reuse = Reuse::Prompts;
        self.rewind(n_past);
    }
}

/// Whether a block of others could be read again as it was computed, behind a fault: a few tokens at either end were part of a larger micro-batch.
fn can_be_computed_again(decoded: DecodedMask, is_first: bool, least: usize) -> bool {
    let few = 1..least;
    let begins_cut = is_first && few.contains(&decoded.leading_batched());
    let ends_cut = few.contains(&decoded.trailing_batched());
    !begins_cut && !ends_cut
}
