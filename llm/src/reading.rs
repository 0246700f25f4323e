//! Texts that are read, and not gone on with: what the model makes of their rows is added up here, to an embedding or to the probabilities of their
//! tokens.
//!
//! Such a text has a sequence like one that is written, and is read in parts between the runs of others: one part for each of their runs, no larger than a
//! part of a prompt would be.

use crate::ahead::Probabilities;
use crate::arch::net::LogProbs;
use crate::batch::{Batch, Request, Row};
use crate::embed::{Embedding, Pool};
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::runs::Turn;
use crate::score::{Scores, Scoring};
use crate::sequence::{Next, Sequence, State};
use crate::turns::Work;
use bytes::Bytes;
use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant, size_of};
use std::ops::Range;

/// What the rows of a text become, as far as they have come.
#[derive(Clone, Debug)]
pub(crate) enum Reading {
    /// One vector.
    Embedding(Pool),
    /// The probabilities of its tokens.
    Scores(Scoring),
}

/// What the rows of a text have become.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    Embedding(Result<Embedding>),
    Scores(Result<Scores>),
}

/// Rows of a run that belong to a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    pub(crate) sequence: Sequence,
    /// Of the sequence when it was enqueued.
    pub(crate) epoch: u64,
    pub(crate) positions: Range<usize>,
    /// Where they begin among those that the run gives.
    pub(crate) at: usize,
}

/// Rows of a run that are wanted as the head would read them, by their numbers in the run, and whose they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hidden {
    pub(crate) rows: Vec<usize>,
    pub(crate) of: Vec<Rows>,
}

/// Tokens of which a run says how probable they are, each behind one of its last rows, and whose they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Targets {
    pub(crate) tokens: Vec<u32>,
    pub(crate) log_probs: LogProbs,
    pub(crate) of: Vec<Rows>,
}

/// What has come of texts that are read, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    ready: VecDeque<(Sequence, Read)>,
    /// A run of others was enqueued since the last one for these.
    has_turn: bool,
    /// What the last run was for.
    last: Option<Kind>,
}

/// What a run is for: it gives rows or probabilities.
type Kind = Discriminant<Reading>;

impl Readings {
    /// A run of others was enqueued.
    pub(crate) fn others_ran(&mut self) {
        self.has_turn = true;
    }

    /// Forgets what has come for a sequence.
    pub(crate) fn forget(&mut self, sequence: Sequence) {
        self.ready.retain(|(of, _)| *of != sequence);
    }
}

impl Reading {
    /// The positions among these whose rows are wanted, of a text of so many tokens.
    fn wanted(&self, range: Range<usize>, len: usize) -> Range<usize> {
        match self {
            Reading::Embedding(pool) => pool.wanted(range, len),
            Reading::Scores(_) => range,
        }
    }

    /// Whether it needs the rows of all tokens: what others have in the cache is of no use then.
    fn needs_all(&self) -> bool {
        match self {
            Reading::Embedding(pool) => pool.needs_all(),
            Reading::Scores(_) => true,
        }
    }

    /// The positions whose rows have come, or are not wanted.
    fn taken(&self) -> usize {
        match self {
            Reading::Embedding(pool) => pool.taken(),
            Reading::Scores(scoring) => scoring.taken(),
        }
    }

    /// What it has become, of a text of so many tokens of which the cache had some from others.
    fn finish(self, len: usize, cached: usize) -> Read {
        match self {
            Reading::Embedding(pool) => Read::Embedding(pool.finish(len).map(|values| Embedding { values, cached })),
            Reading::Scores(scoring) => Read::Scores(scoring.finish()),
        }
    }
}

/// What a run is made of so far.
#[derive(Default)]
struct Composed {
    rows: Vec<Row>,
    hidden: Hidden,
    targets: Targets,
}

impl Composed {
    /// Adds rows of a sequence, and asks for those of them that are wanted.
    fn add(&mut self, slot: usize, state: &State, range: Range<usize>, rows: Vec<Row>) -> Result<()> {
        let first = self.rows.len();
        self.rows.extend(rows);
        let Some(reading) = &state.reading else { return Err(mixed_up()) };
        let positions = reading.wanted(range.clone(), state.text.len());
        if positions.is_empty() {
            return Ok(());
        }
        let (of, at) = match reading {
            Reading::Embedding(_) => {
                let at = self.hidden.rows.len();
                self.hidden.rows.extend(positions.clone().map(|position| first + position - range.start));
                (&mut self.hidden.of, at)
            }
            Reading::Scores(scoring) => {
                let at = self.targets.tokens.len();
                self.targets.tokens.extend_from_slice(scoring.targets(positions.clone())?);
                self.targets.log_probs = self.targets.log_probs.max(scoring.log_probs());
                (&mut self.targets.of, at)
            }
        };
        let sequence = Sequence { slot, generation: state.generation };
        of.push(Rows { sequence, epoch: state.epoch, positions, at });
        Ok(())
    }

    fn finish(self, history: bool) -> Batch {
        let Composed { rows, hidden, targets } = self;
        let request = if !hidden.rows.is_empty() {
            Request::Hidden(hidden)
        } else if !targets.tokens.is_empty() {
            Request::Scores(targets)
        } else {
            Request::Part
        };
        Batch { rows, request, history }
    }
}

fn mixed_up() -> Error {
    Error::Internal("rows of a text that is read are not what it waits for".into())
}

impl PlacedModel {
    /// Has a text of known tokens read in a sequence that has nothing in it. Texts of other sequences go on beside it, and what it becomes does not depend on
    /// them.
    pub(crate) fn begin_reading(
        &mut self,
        sequence: Sequence,
        tokens: &[u32],
        salt: Option<&str>,
        reading: Reading,
    ) -> Result<()> {
        if self.len(sequence)? > 0 {
            return Err(Error::Request("the sequence has tokens: a text is read from its beginning".into()));
        }
        self.check_room(sequence, tokens.len())?;
        self.prompts += 1;
        let begun = self.prompts;
        self.return_to_devices()?;
        self.truncate(sequence, 0)?;
        self.set_cache_salt(sequence, salt)?;
        self.add_prompt(sequence, tokens)?;
        self.state_and_blocks(sequence)?.0.shared = 0;
        let shared = if reading.needs_all() {
            Ok(())
        } else {
            self.share_prefix(sequence.slot).or_else(|e| self.recover_or_fail(e))
        };
        let (state, blocks) = self.state_and_blocks(sequence)?;
        if let Err(e) = shared.and_then(|()| state.reserve(blocks, tokens.len())) {
            state.truncate(blocks, 0);
            return Err(e);
        }
        if tokens.is_empty() {
            self.readings.ready.push_back((sequence, reading.finish(0, 0)));
            return Ok(());
        }
        state.reading = Some(reading);
        state.begun = begun;
        Ok(())
    }

    /// The next that has come of any text that is read, if somebody wants it; `None` if no sequence waits for one.
    pub(crate) fn next_read(
        &mut self,
        is_wanted: impl Fn(Sequence, &Read) -> bool,
    ) -> Result<Option<(Sequence, Read)>> {
        self.return_to_devices()?;
        loop {
            if let Some(came) = self.take_read(&is_wanted) {
                return Ok(Some(came));
            }
            let waits = self.sequences.iter().flatten().any(State::is_only_read);
            if !waits || !self.go_on()? {
                return Ok(None);
            }
        }
    }

    /// One that has come and that somebody wants.
    pub(crate) fn take_read(&mut self, is_wanted: impl Fn(Sequence, &Read) -> bool) -> Option<(Sequence, Read)> {
        let at = self.readings.ready.iter().position(|(sequence, read)| is_wanted(*sequence, read))?;
        self.readings.ready.remove(at)
    }

    /// The rows of the next run for texts that are read, if it is their turn: always, where nobody else has something to do, and else behind each run of
    /// others.
    pub(crate) fn next_reading(&mut self) -> Result<Option<(Batch, Turn)>> {
        let reads =
            |(slot, state): (usize, &State)| (state.is_only_read() && state.next() != Next::Nothing).then_some(slot);
        let mut work = Work { reads: self.states().filter_map(reads).collect(), ..Work::default() };
        if work.reads.is_empty() {
            return Ok(None);
        }
        let idle = self.ahead.is_idle() && self.runs.len() == 0;
        if !self.readings.has_turn && !idle && self.states().any(|(_, state)| state.is_busy()) {
            return Ok(None);
        }
        let decoding = self.decoding_groups();
        let lead = self.lead(decoding);
        let devices = self.route().devices().len();
        if decoding == 0 && !self.ahead.has_time_to_read(self.runs.len(), devices + lead) {
            return Ok(None);
        }
        self.readings.has_turn = false;
        self.by_turn(&mut work.reads);
        self.keep_one_kind(&mut work.reads);
        // No step waits for what they sample.
        let turn = Turn { group: usize::MAX, lead };
        Ok(Some((self.compose_reading(&work, decoding)?, turn)))
    }

    /// Keeps the texts of one kind, which is another one each time where there are both.
    fn keep_one_kind(&mut self, slots: &mut Vec<usize>) {
        let kind = |slot: usize| Some(discriminant(self.slot(slot).ok()?.reading.as_ref()?));
        let kinds = || slots.iter().filter_map(|&slot| kind(slot));
        let chosen = kinds().find(|kind| Some(*kind) != self.readings.last).or(kinds().next());
        slots.retain(|&slot| kind(slot) == chosen);
        self.readings.last = chosen;
    }

    /// Rows of a run of which probabilities are wanted, at most: what their logits take was part of what had to fit.
    fn target_rows(&self) -> usize {
        // A part that cannot be cut comes on top.
        let least = self.smallest_part();
        self.options.scores.max(self.n_seqs()).min(self.options.n_ubatch).saturating_sub(least).max(least)
    }

    fn compose_reading(&mut self, work: &Work, decoding: usize) -> Result<Batch> {
        let mut run = Composed::default();
        let first = work.reads.first().and_then(|&slot| self.slot(slot).ok()?.reading.as_ref());
        let is_scored = matches!(first, Some(Reading::Scores(_)));
        let mut room = if is_scored { self.target_rows() } else { self.options.n_ubatch };
        if decoding > 0 {
            room = room.min(self.reading_rows(work));
        }
        let history = self.options.prefixes.are_shared();
        let mut kept = self.kept_for_others(&work.reads, room);
        for &slot in &work.reads {
            if self.slot(slot)?.reading.as_ref().is_some_and(|reading| !reading.needs_all()) {
                self.share_prefix(slot)?;
            }
            let own = room.saturating_sub(std::mem::take(&mut kept));
            let range = self.part_of_prompt(slot, own, run.rows.is_empty())?;
            if range.is_empty() {
                continue;
            }
            room = room.saturating_sub(range.len());
            let rows = self.read_rows(slot, range.clone())?;
            let (state, blocks) = self.slot_and_blocks(slot)?;
            run.add(slot, state, range.clone(), rows)?;
            state.note_history(history, range.len());
            state.enqueued(range.len(), false);
            if history {
                state.publish_prefixes(blocks);
            }
        }
        Ok(run.finish(history))
    }

    /// Rows of a run have come.
    pub(crate) fn note_rows(&mut self, of: Vec<Rows>, bytes: &Bytes) -> Result<()> {
        let row_bytes = size_of::<f32>() * self.model.hparams().n_embd;
        for rows in of {
            let range = rows.at * row_bytes..(rows.at + rows.positions.len()) * row_bytes;
            let missing = || Error::Internal("a device gave fewer rows than it was asked for".into());
            let given = bytes.get(range).ok_or_else(missing)?;
            self.note_reading(&rows, |reading| {
                let Reading::Embedding(pool) = reading else { return Err(mixed_up()) };
                for (position, row) in rows.positions.clone().zip(given.chunks_exact(row_bytes)) {
                    pool.add(position, row.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The probabilities of tokens have come.
    pub(crate) fn note_scores(&mut self, of: Vec<Rows>, given: &Probabilities<Bytes>) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        for rows in of {
            self.note_reading(&rows, |reading| {
                let Reading::Scores(scoring) = reading else { return Err(mixed_up()) };
                for (position, number) in rows.positions.clone().zip(rows.at..) {
                    let id = scoring.target(position)?;
                    scoring.add(position, given.of(id, number, scoring.log_probs(), n_vocab)?)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Adds what has come of a text that is still wanted.
    fn note_reading(&mut self, rows: &Rows, add: impl FnOnce(&mut Reading) -> Result<()>) -> Result<()> {
        let Ok((state, _)) = self.state_and_blocks(rows.sequence) else { return Ok(()) };
        let (len, cached) = (state.text.len(), state.shared);
        let Some(reading) = state.reading.as_mut().filter(|_| state.epoch == rows.epoch) else { return Ok(()) };
        let before = reading.taken();
        add(reading)?;
        let came = reading.taken() > before;
        if let Some(reading) = state.reading.take_if(|reading| reading.taken() == len) {
            self.readings.ready.push_back((rows.sequence, reading.finish(len, cached)));
        }
        // What comes again behind a fault is no progress.
        if came {
            self.recoveries = 0;
        }
        Ok(())
    }
}
