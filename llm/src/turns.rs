//! What goes into the next run: whose turn it is.
//!
//! Sequences are dealt into groups, as many as there are devices with layers, which follow one another through the devices, so that each has
//! something to do while the others work. In a run go the next tokens of all sequences of a group. Those that still have a prompt to read add
//! as much of it as lets nobody wait long, or a whole micro-batch where nobody waits. Of several prompts, the one that came first has at least half of
//! that, so that it gets on; the others follow by how little they have left, so that a short one does not wait for long ones. What texts have generated is read
//! again before that, in as many rows as prompts leave.

use crate::again::Part;
use crate::batch::{Batch, Draw, Request, Row, padded_rows};
use crate::error::Result;
use crate::placed_model::PlacedModel;
use crate::runs::Turn;
use crate::sequence::{Next, State};
use std::ops::Range;

/// What a part of a prompt may take beside steps and nothing else, compared with what the steps take. With it the median token comes less than three times
/// as late as without. Less makes tokens later, not sooner: the prompt is read for longer, and what the others write meanwhile makes their own steps slower
/// (docs/notes/2026-11-25-many-sequences.md; measured with the example `side_by_side` of `outboard-integration`).
const PROMPT_SHARE: f64 = 1.7;

/// The same of each part where two of them are beside steps: of a prompt and of what is read again, or of texts that are only read, which take turns with prompts.
const EACH_SHARE: f64 = 1.0;

/// What a group's next run is made of, by slot.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) steps: Vec<(usize, usize)>,
    pub(crate) reads: Vec<usize>,
    /// Those that read what was computed alone.
    pub(crate) read_alone: Vec<usize>,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && !self.has_reads()
    }

    fn has_reads(&self) -> bool {
        !self.reads.is_empty() || !self.read_alone.is_empty()
    }
}

/// What a run is made of so far.
#[derive(Default)]
struct Composed {
    rows: Vec<Row>,
    draws: Vec<Draw>,
    history: bool,
}

impl PlacedModel {
    /// Groups that sequences are dealt into.
    fn groups(&self) -> usize {
        if self.n_seqs() == 1 { 1 } else { self.route().devices().len().max(1) }
    }

    /// The group with the fewest sequences.
    pub(crate) fn smallest_group(&self) -> usize {
        let size = |group: &usize| self.sequences.iter().flatten().filter(|state| state.group == *group).count();
        (0..self.groups()).min_by_key(size).unwrap_or(0)
    }

    /// Deals sequences anew where one group has more to do than another one by two or more, or where there are fewer groups than there were.
    fn balance(&mut self) -> Result<()> {
        let groups = self.groups();
        if groups == 1 && self.sequences.iter().flatten().all(|state| state.group == 0) {
            return Ok(());
        }
        let mut sizes = vec![0usize; groups];
        let mut moved = false;
        let is_busy = |state: &&mut State| state.is_busy();
        for state in self.sequences.iter_mut().flatten().filter(is_busy) {
            if state.group >= groups {
                (state.group, moved) = (state.group % groups, true);
            }
            sizes[state.group] += 1;
        }
        for state in self.sequences.iter_mut().flatten().filter(is_busy) {
            let Some((least, &size)) = sizes.iter().enumerate().min_by_key(|(_, size)| **size) else { continue };
            if sizes[state.group] > size + 1 {
                sizes[state.group] -= 1;
                sizes[least] += 1;
                (state.group, moved) = (least, true);
            }
        }
        // What they go on from is enqueued before runs of another group.
        if moved { self.flush_runs() } else { Ok(()) }
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (usize, &State)> {
        self.sequences.iter().enumerate().filter_map(|(slot, state)| Some((slot, state.as_ref()?)))
    }

    /// Groups of which some sequence decodes.
    pub(crate) fn decoding_groups(&self) -> usize {
        let decodes = |group: &usize| self.states().any(|(_, state)| state.group == *group && state.is_decoding());
        (0..self.groups()).filter(decodes).count()
    }

    fn work_of(&self, group: usize) -> Work {
        let mut work = Work::default();
        for (slot, state) in self.states().filter(|(_, state)| state.group == group && !state.is_only_read()) {
            match state.next() {
                Next::Nothing => {}
                Next::Step(position) => work.steps.push((slot, position)),
                Next::Read(_) => work.reads.push(slot),
                Next::ReadAlone(_) => work.read_alone.push(slot),
            }
        }
        self.by_turn(&mut work.reads);
        self.by_turn(&mut work.read_alone);
        work
    }

    /// Who has waited longest comes first, then whoever has least to read.
    pub(crate) fn by_turn(&self, reads: &mut [usize]) {
        reads.sort_by_key(|&slot| self.slot(slot).map_or(0, |state| state.begun));
        if let Some((_, others)) = reads.split_first_mut() {
            others.sort_by_key(|&slot| self.slot(slot).map_or(0, |state| state.text.len() - state.n_past));
        }
    }

    /// The rows of the next run, if one should be enqueued before anything is waited for.
    pub(crate) fn next_batch(&mut self) -> Result<Option<(Batch, Turn)>> {
        self.balance()?;
        if let Some(reading) = self.next_reading()? {
            return Ok(Some(reading));
        }
        let groups = self.groups();
        for _ in 0..groups {
            let (group, decoding) = (self.turn % groups, self.decoding_groups());
            let work = self.work_of(group);
            if work.is_empty() || self.gathers(group, &work) {
                self.turn += 1;
                continue;
            }
            let lead = self.lead(decoding);
            let has_time = match decoding {
                0 => self.ahead.has_time_to_read(self.runs.len(), self.route().devices().len() + lead),
                _ => self.ahead.has_time(group, decoding),
            };
            // Others take their turn when this one has had its own.
            if !has_time {
                return Ok(None);
            }
            self.turn += 1;
            self.readings.others_ran();
            return Ok(Some((self.compose(&work, decoding)?, Turn { group, lead })));
        }
        Ok(None)
    }

    /// Runs that may begin before the rest of the oldest one is enqueued, so many groups decoding. The first device would wait for it: runs of other groups
    /// begin before.
    pub(crate) fn lead(&self, decoding: usize) -> usize {
        if decoding == 0 {
            return self.prompt_lead();
        }
        let is_at_work = |group: &usize| self.states().any(|(_, state)| state.group == *group && state.is_busy());
        (0..self.groups()).filter(is_at_work).count().saturating_sub(1)
    }

    /// Whether a group's steps wait for those under way, to go with the ones behind them. Texts that wait for somebody after each token are not run ahead of:
    /// those that began apart would stay apart, each in runs of its own.
    fn gathers(&self, group: usize, work: &Work) -> bool {
        let is_held = |slot: usize| self.slot(slot).is_ok_and(State::is_held);
        let is_under_way = self.ahead.samples(group) || self.runs.has(group);
        is_under_way && !work.has_reads() && work.steps.iter().all(|&(slot, _)| is_held(slot))
    }

    /// The rows of a run.
    fn compose(&mut self, work: &Work, decoding: usize) -> Result<Batch> {
        let history = self.needs_history(work);
        let mut run = Composed { history, ..Composed::default() };
        for &(slot, position) in &work.steps {
            self.add_step(&mut run, slot, position)?;
        }
        let room = self.options.n_ubatch.saturating_sub(run.rows.len());
        let (alone, prompts) =
            if decoding > 0 { (self.alone_rows(work), self.prompt_rows(work)) } else { (room, room) };
        let kept = self.kept_for_prompts(&work.reads, room.min(prompts));
        let added = self.add_read_alone(&mut run, &work.read_alone, alone.min(room.saturating_sub(kept)))?;
        let prompts = with_padding(run.rows.len(), prompts);
        self.add_reads(&mut run, &work.reads, prompts.min(room.saturating_sub(added)))?;
        let Composed { rows, draws, history } = run;
        let request = if draws.is_empty() { Request::Part } else { Request::Sample(draws) };
        Ok(Batch { rows, request, history })
    }

    /// Adds a step.
    fn add_step(&mut self, run: &mut Composed, slot: usize, position: usize) -> Result<()> {
        self.grow(slot, position + 1)?;
        let (state, _) = self.slot_and_blocks(slot)?;
        run.draws.push(state.draw(run.rows.len(), slot, position));
        run.rows.push(Row { token: None, position, cache_row: state.cache_row(position), slot });
        state.note_history(run.history, 1);
        state.enqueued(1, true);
        Ok(())
    }

    /// Adds what is read again as it was generated. Gives the number of rows.
    fn add_read_alone(&mut self, run: &mut Composed, slots: &[usize], room: usize) -> Result<usize> {
        let (rows, parts) = self.rows_alone(slots, room)?;
        let (before, added) = (run.rows.len(), rows.len());
        run.rows.extend(rows);
        for Part { slot, range, last } in parts {
            self.enqueued_part(run, slot, range, before + last)?;
        }
        Ok(added)
    }

    /// Adds parts of prompts.
    fn add_reads(&mut self, run: &mut Composed, reads: &[usize], mut room: usize) -> Result<()> {
        let before = run.rows.len();
        let mut kept = self.kept_for_others(reads, room);
        for &slot in reads {
            // Others may have read the same since, this run's rows included: they are written before anybody sees them.
            self.share_prefix(slot)?;
            let range = self.part_of_prompt(slot, room - std::mem::take(&mut kept), run.rows.len() == before)?;
            if range.is_empty() {
                continue;
            }
            room = room.saturating_sub(range.len());
            run.rows.extend(self.read_rows(slot, range.clone())?);
            self.enqueued_part(run, slot, range, run.rows.len() - 1)?;
        }
        Ok(())
    }

    /// Rows of a run are a part of a sequence's text, which ends with row `last`. What comes behind the whole text is sampled.
    fn enqueued_part(&mut self, run: &mut Composed, slot: usize, part: Range<usize>, last: usize) -> Result<()> {
        let note = self.options.prefixes.are_shared();
        let (state, blocks) = self.slot_and_blocks(slot)?;
        let samples = part.end == state.text.len();
        if samples {
            run.draws.push(state.draw(last, slot, part.end - 1));
        }
        state.note_history(run.history, part.len());
        state.enqueued(part.len(), samples);
        if note {
            state.publish_prefixes(blocks);
        }
        Ok(())
    }

    /// Whether tokens are to be noted: somebody's penalties count them, or may if they are shared.
    fn needs_history(&self, work: &Work) -> bool {
        let slots = work.steps.iter().map(|(slot, _)| slot).chain(&work.reads).chain(&work.read_alone);
        let penalties = |slot: &usize| {
            let job = self.slot(*slot).ok().and_then(|state| state.job);
            job.is_some_and(|job| job.sampling.penalties.is_some())
        };
        self.options.prefixes.are_shared() || slots.into_iter().any(penalties)
    }

    /// Rows of prompts that go with the steps of a run, so that these do not wait long.
    fn prompt_rows(&self, work: &Work) -> usize {
        let share = if work.read_alone.is_empty() { PROMPT_SHARE } else { EACH_SHARE };
        self.rows_within(share, self.steps_of_group(), &work.reads)
    }

    /// Rows of texts that are only read, in a run that steps of others wait for.
    pub(crate) fn reading_rows(&self, work: &Work) -> usize {
        self.rows_within(EACH_SHARE, self.steps_of_group(), &work.reads)
    }

    /// Rows of texts that are read again as they were generated, beside steps: as many as take as long as a run in which they step as well.
    fn alone_rows(&self, work: &Work) -> usize {
        self.rows_within(EACH_SHARE, self.steps_of_group() + work.read_alone.len(), &work.read_alone)
    }

    /// Steps of a group's run, on average, if some sequence decodes.
    fn steps_of_group(&self) -> usize {
        self.states().filter(|(_, state)| state.is_decoding()).count().div_ceil(self.groups()).max(1)
    }

    /// Rows of some texts that take a share of the time of a run of so many steps, by what a run takes beside its rows and by what attention to a long
    /// text costs.
    fn rows_within(&self, share: f64, steps: usize, slots: &[usize]) -> usize {
        let each = self.placement.parts.work();
        let past = slots.first().and_then(|&slot| self.slot(slot).ok()).map_or(0, |state| state.n_past);
        let step = each.cost(0, 1) * (steps as f64 + self.placement.pipeline.run_rows());
        each.within(past, share * step).max(self.smallest_part())
    }

    /// Rows of a run that are left to prompts: half of the room if they have as many to read, and as many as a prompt that cannot be cut may have.
    fn kept_for_prompts(&self, reads: &[usize], room: usize) -> usize {
        if reads.is_empty() { 0 } else { self.wanted(reads).min(room / 2).max(2 * self.smallest_part()) }
    }

    /// Rows of a run that the first one of some prompts leaves to the others: half of them, if they have as many to read.
    pub(crate) fn kept_for_others(&self, reads: &[usize], room: usize) -> usize {
        self.wanted(reads.get(1..).unwrap_or_default()).min(room / 2)
    }

    /// Rows that some prompts have to read.
    fn wanted(&self, reads: &[usize]) -> usize {
        let wanted = |&slot: &usize| match self.slot(slot).map(State::next) {
            Ok(Next::Read(range)) => range.len(),
            _ => 0,
        };
        reads.iter().map(wanted).sum()
    }

    /// As much of a sequence's next micro-batch as there is room for, and no part that would be rounded otherwise than the whole. The first one of
    /// a run is not left out.
    pub(crate) fn part_of_prompt(&mut self, slot: usize, room: usize, first: bool) -> Result<Range<usize>> {
        let least = self.smallest_part();
        let (state, _) = self.slot_and_blocks(slot)?;
        let Next::Read(range) = state.next() else { return Ok(0..0) };
        let n = range.len();
        if room < least && !first {
            return Ok(0..0);
        }
        // Two parts, neither too small: what cannot be cut goes as it is.
        let cut = room.max(least).min(n.saturating_sub(least));
        if n <= room || cut < least {
            return Ok(range);
        }
        state.text.cut(range.start, cut);
        Ok(range.start..range.start + cut)
    }
}

/// So many rows of prompts behind others of a run, and what would be padding behind them. Padding is products, rows of prompts are attention as well: they
/// become more by half at most.
fn with_padding(others: usize, prompts: usize) -> usize {
    let padding = padded_rows(others + prompts) - others - prompts;
    prompts + padding.min(prompts / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_read_in_place_of_padding() {
        assert_eq!(with_padding(7, 1), 1, "no padding");
        assert_eq!(with_padding(7, 4), 5, "11 rows would be 12");
        assert_eq!(with_padding(0, 0), 0);
        // 65 rows would be 80.
        assert_eq!((with_padding(45, 20), with_padding(58, 7)), (30, 10));
    }
}
