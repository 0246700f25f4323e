//! Running ahead of the network.
//!
//! The ids that a step samples go from the device with the logits to the one with the embedding, a copy like any other, so the
//! next step does not need this process. It enqueues steps ahead and reads ids as they come: as many as hide the way there and
//! back, no more, because what runs behind the end of a text is thrown away.

mod pace;
mod sampled;

pub use sampled::Token;
pub(crate) use sampled::{Probabilities, Probable};

use crate::arch::net::{self, LogProbs};
use crate::batch::{Batch, Draw, Request};
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::reading::Rows;
use crate::runs::{Rest, Run};
use crate::sequence::{Next, Sequence, State};
use crate::watch::TICK;
use bytes::Bytes;
use outboard_core::device::RoundTrips;
use outboard_core::{Pending, Queue, try_at_once};
use outboard_scheduler::Scheduler;
use pace::{Pace, remember};
use sampled::{Expected, Sampled};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most steps of a group under way: at 8 ms a step they hide half a second.
const MAX_AHEAD: usize = 64;
/// Round trips that are measured; the shortest one counts.
const PINGS: usize = 3;
/// Longest wait before the rest of a run is enqueued.
const MOST_WAY: Duration = Duration::from_secs(1);
/// What a run that reads a part of a prompt is taken to need before one has been measured, in seconds.
const SHORTEST_READ: f64 = 0.005;

/// What a group waits for of a run.
pub(crate) struct Awaited {
    group: usize,
    asked: Asked,
}

/// What a run is asked for.
enum Asked {
    /// What it samples, if it samples something.
    Tokens(Vec<Expected>),
    /// Rows for embeddings.
    Rows(Vec<Rows>),
    /// How probable tokens are.
    Scores(Vec<Rows>, LogProbs),
}

/// Runs that are under way, in their order.
pub(crate) struct StepsAhead {
    steps: VecDeque<Step>,
    /// Tokens that have come and were not given to anybody.
    ready: VecDeque<Token>,
    /// The way to the farthest device and back.
    round_trip: Duration,
    /// Of runs that sample.
    pace: Pace,
    /// Of runs that read parts of prompts and sample nothing.
    reading: Pace,
    /// The last times from the beginning of a run that samples until its ids have come.
    run_times: VecDeque<Duration>,
}

struct Step {
    run: Run,
    group: usize,
    gives: Gives,
}

/// What a run gives.
enum Gives {
    Tokens {
        expected: Vec<Expected>,
        sampled: Sampled<Pending<Bytes>>,
    },
    /// Rows for embeddings.
    Rows {
        of: Vec<Rows>,
        bytes: Pending<Bytes>,
    },
    /// How probable tokens are.
    Scores {
        of: Vec<Rows>,
        probabilities: Probabilities<Pending<Bytes>>,
    },
    /// No token: this comes when the device with the last layers is through.
    End(Pending<Bytes>),
}

impl Gives {
    fn is_tokens(&self) -> bool {
        matches!(self, Gives::Tokens { .. })
    }

    fn comes_within(&self, patience: Duration) -> bool {
        match self {
            Gives::Tokens { sampled, .. } => sampled.ids.comes_within(patience),
            Gives::Rows { bytes, .. } => bytes.comes_within(patience),
            Gives::Scores { probabilities: Probabilities { own, .. }, .. } => {
                own.as_ref().is_none_or(|own| own.comes_within(patience))
            }
            Gives::End(end) => end.comes_within(patience),
        }
    }
}

/// Measures the way to the farthest device and back. The devices must have nothing to do.
pub(crate) fn round_trip(scheduler: &Scheduler) -> Result<Duration> {
    let queues: Vec<_> = (0..scheduler.devices().len()).filter_map(|d| scheduler.queue(d)).collect();
    let shortest = |queue: &&Arc<dyn Queue>| -> Result<Duration> {
        Ok(RoundTrips::measure(PINGS, || scheduler.finish_queue(queue.as_ref()))?.shortest())
    };
    let trips = try_at_once(&queues, shortest)?;
    Ok(trips.into_iter().max().unwrap_or_default())
}

impl StepsAhead {
    /// None yet, over devices of which the farthest is so far away.
    pub(crate) fn new(round_trip: Duration) -> StepsAhead {
        let (pace, reading) = <(Pace, Pace)>::default();
        let (steps, ready, run_times) = <(VecDeque<_>, VecDeque<_>, VecDeque<_>)>::default();
        StepsAhead { steps, ready, round_trip, pace, reading, run_times }
    }

    /// Others take the place of what is under way. Tokens that have come are still given out.
    pub(crate) fn replace_steps(&mut self, other: StepsAhead) {
        let ready = std::mem::take(&mut self.ready);
        *self = StepsAhead { ready, ..other };
    }

    /// Forgets what is under way. Tokens that have come are still given out.
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.pace.pause();
        self.reading.pause();
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }

    /// Tokens of a sequence that have come and were not given to anybody.
    pub(crate) fn ready_of(&self, sequence: Sequence) -> usize {
        self.ready.iter().filter(|token| token.sequence == sequence).count()
    }

    /// Forgets tokens of a sequence that have come.
    pub(crate) fn forget(&mut self, sequence: Sequence) {
        self.ready.retain(|token| token.sequence != sequence);
    }

    /// Whether one more step of a group should be enqueued before the next ids are waited for, so many groups being at work.
    ///
    /// Parts of prompts count as steps: where every sequence that decodes waits for somebody, no other steps are there to bound them.
    pub(crate) fn has_time(&self, group: usize, groups: usize) -> bool {
        let under_way = self.steps.iter().filter(|step| step.group == group).count();
        under_way < self.depth(groups)
    }

    /// Steps of a group to keep under way: one that runs, one that waits behind it, and those that are on the way there and back.
    fn depth(&self, groups: usize) -> usize {
        (2 + self.on_the_way(self.pace.step() * groups.max(1) as f64)).min(MAX_AHEAD)
    }

    /// Whether tokens of a group are under way.
    pub(crate) fn samples(&self, group: usize) -> bool {
        self.steps.iter().any(|step| step.group == group && step.gives.is_tokens())
    }

    /// Whether one more run that nobody's next token waits for should be enqueued, `begun` others having begun, of which so many are needed for every
    /// device to have one. No more than that: whoever comes next waits for those under way.
    pub(crate) fn has_time_to_read(&self, begun: usize, needed: usize) -> bool {
        let each = if self.reading.is_known() { self.reading.step() } else { SHORTEST_READ };
        self.steps.len() + begun < (needed + 1 + self.on_the_way(each)).min(needed + MAX_AHEAD)
    }

    /// The time from the beginning of a run until its rest is to be enqueued, so that it is there when the other ones of so many devices are through.
    ///
    /// The first device is taken to have the end as well, and all ways to be as long. Then a run of d devices takes 1 + d / 2 round trips, and what they
    /// compute. Between the two ends lie all of it but one round trip (the way to the first device, and the way here) and what the rest computes, a d-th.
    /// The shortest of the last runs had nothing else to wait for.
    fn way_to_rest(&self, devices: usize) -> Duration {
        let (devices, trip) = (devices.max(1) as u32, self.round_trip);
        let Some(&run) = self.run_times.iter().min() else { return trip.min(MOST_WAY) };
        let computing = run.saturating_sub(trip + trip * devices / 2);
        run.saturating_sub(trip + computing / devices).min(MOST_WAY)
    }

    /// Takes note of how long a run has taken.
    fn note_run(&mut self, time: Duration) {
        remember(&mut self.run_times, time);
    }

    /// Whether the oldest run under way gives what it gives within `patience`.
    fn comes_within(&self, patience: Duration) -> bool {
        self.steps.front().is_some_and(|step| step.gives.comes_within(patience))
    }

    /// Runs that take so many seconds each, while one is on the way there and back.
    fn on_the_way(&self, each: f64) -> usize {
        if each > 0.0 { (self.round_trip.as_secs_f64() / each).ceil().min(MAX_AHEAD as f64) as usize } else { 0 }
    }
}

impl PlacedModel {
    /// What a step takes, as far as that has been measured.
    pub(crate) fn step_time(&self) -> Option<Duration> {
        let step = self.ahead.pace.step();
        (step > 0.0).then(|| Duration::from_secs_f64(step))
    }

    /// The next token of any sequence, in the order in which they come; `None` if no sequence has anything to do. With failover, a fault of a
    /// device is recovered from on the way.
    pub fn next_token(&mut self) -> Result<Option<Token>> {
        self.next_where(|_| true, |_| false)
    }

    /// The next token of one sequence. Those of others that come meanwhile are given out by [`PlacedModel::next_token`], in their order.
    pub fn next_token_of(&mut self, sequence: Sequence) -> Result<Option<Token>> {
        self.state(sequence)?;
        let is_over = |model: &PlacedModel| !model.state(sequence).is_ok_and(State::has_more);
        self.next_where(|token| token.sequence == sequence, is_over)
    }

    /// The next token that somebody wants, until nothing is under way or `is_over` says that it cannot come any more.
    pub(crate) fn next_where(
        &mut self,
        is_wanted: impl Fn(&Token) -> bool,
        is_over: impl Fn(&PlacedModel) -> bool,
    ) -> Result<Option<Token>> {
        self.return_to_devices()?;
        loop {
            if let Some(token) = self.take_ready(&is_wanted) {
                return Ok(Some(token));
            }
            if is_over(self) || !self.go_on()? {
                return Ok(None);
            }
        }
    }

    /// A token that has come and that somebody wants.
    pub(crate) fn take_ready(&mut self, is_wanted: impl Fn(&Token) -> bool) -> Option<Token> {
        let at = self.ahead.ready.iter().position(is_wanted)?;
        self.ahead.ready.remove(at)
    }

    /// Enqueues what should not wait, and waits for the oldest run that is under way, which may give tokens or have read a part of a prompt; `false` if
    /// there is none. With failover, a fault of a device is recovered from.
    pub(crate) fn go_on(&mut self) -> Result<bool> {
        match self.enqueue_ahead().and_then(|()| self.take_step()) {
            Err(e) => self.recover_or_fail(e).map(|()| true),
            came => came,
        }
    }

    /// Enqueues runs as long as there is something to run that should not wait.
    fn enqueue_ahead(&mut self) -> Result<()> {
        while let Some((mut batch, turn)) = self.next_batch()? {
            self.pad(&mut batch);
            let asked = match &batch.request {
                Request::Hidden(hidden) => Asked::Rows(hidden.of.clone()),
                Request::Scores(targets) => Asked::Scores(targets.of.clone(), targets.log_probs),
                _ => Asked::Tokens(self.expected(&batch)?),
            };
            let awaited = Awaited { group: turn.group, asked };
            self.with_runs(|runs, model| runs.push(model, &batch, awaited, turn, &mut PlacedModel::expect))?;
        }
        Ok(())
    }

    /// The tokens that a batch samples and somebody wants.
    fn expected(&self, batch: &Batch) -> Result<Vec<Expected>> {
        let Request::Sample(draws) = &batch.request else { return Ok(Vec::new()) };
        let expected = |(number, draw, log_probs): (usize, &Draw, LogProbs)| {
            let state = self.slot(draw.slot)?;
            let sequence = Sequence { slot: draw.slot, generation: state.generation };
            Ok(Expected { sequence, epoch: state.epoch, at: draw.position + 1, number, log_probs })
        };
        let wanted = draws.iter().enumerate().filter_map(|(i, draw)| Some((i, draw, draw.sampling?.log_probs)));
        wanted.map(expected).collect()
    }

    /// Asks for what a run samples, or else to be told of its end.
    pub(crate) fn expect(&mut self, run: Run, awaited: Awaited) -> Result<()> {
        let Awaited { group, asked } = awaited;
        let gives = match asked {
            Asked::Rows(of) => Gives::Rows { of, bytes: self.read(&run.program, net::HIDDEN)? },
            Asked::Scores(of, log_probs) => {
                Gives::Scores { of, probabilities: self.read_probabilities(&run, log_probs)? }
            }
            Asked::Tokens(expected) if expected.is_empty() => Gives::End(self.end_of_last_device()?),
            Asked::Tokens(expected) => {
                let log_probs = expected.iter().map(|expected| expected.log_probs).max().unwrap_or_default();
                let ids = self.read(&run.program, net::SAMPLED)?;
                let probabilities = self.read_probabilities(&run, log_probs)?;
                Gives::Tokens { expected, sampled: Sampled { ids, probabilities } }
            }
        };
        self.ahead.steps.push_back(Step { run, group, gives });
        Ok(())
    }

    /// Asks how probable tokens are that a run gives.
    fn read_probabilities(&self, run: &Run, wanted: LogProbs) -> Result<Probabilities<Pending<Bytes>>> {
        let read = |name: &str, least: LogProbs| {
            let read = (wanted >= least).then(|| self.read(&run.program, name));
            read.transpose()
        };
        let own = read(net::LOG_PROBS, LogProbs::Chosen)?;
        let top = read(net::TOP_IDS, LogProbs::Top)?.zip(read(net::TOP_LOG_PROBS, LogProbs::Top)?);
        Ok(Probabilities { own, top: top.map(<[_; 2]>::from) })
    }

    fn wait_for_probabilities(&self, given: Probabilities<Pending<Bytes>>) -> Result<Probabilities<Bytes>> {
        let own = given.own.map(|own| self.wait(own)).transpose()?;
        let top = given.top.map(|[ids, values]| Ok::<_, Error>([self.wait(ids)?, self.wait(values)?])).transpose()?;
        Ok(Probabilities { own, top })
    }

    /// Takes note that a run has ended that samples nothing.
    fn note_read_run(&mut self) {
        let more = self.ahead.steps.iter().any(|step| !step.gives.is_tokens());
        self.ahead.reading.note(Instant::now(), more);
    }

    /// A few bytes that come when the device with the last layers has done what was enqueued so far.
    fn end_of_last_device(&self) -> Result<Pending<Bytes>> {
        let last = self.route().last();
        let table = self.placement.tables.iter().find(|(device, _)| *device == last);
        let queue = self.scheduler().queue(last);
        let (Some((_, table)), Some(queue)) = (table, queue) else {
            return Err(Error::Internal("the device with the last layers has no table of blocks".into()));
        };
        Ok(queue.read(&table.part(0, size_of::<i32>() as u64)?)?)
    }

    /// Enqueues the rest of runs that have begun, of all if no run is under way. Where nobody knows when another run begins, it waits for the oldest
    /// run under way, and enqueues each rest when it is due.
    fn end_what_is_due(&mut self) -> Result<()> {
        if self.ahead.steps.is_empty() {
            return self.flush_runs();
        }
        if self.others_begin_soon() {
            return Ok(());
        }
        let way = self.ahead.way_to_rest(self.route().devices().len());
        while let Some(begun) = self.runs.oldest_begun()
            && !self.comes_by(begun + way)?
        {
            self.with_runs(|runs, model| runs.end(model, Rest::Due, &mut PlacedModel::expect))?;
        }
        Ok(())
    }

    /// Whether a run begins as soon as the oldest one under way has given what it gives: of texts that wait for nobody, or of prompts that go by themselves.
    fn others_begin_soon(&self) -> bool {
        let mut decoding = self.states().map(|(_, state)| state).filter(|state| state.is_decoding()).peekable();
        if decoding.peek().is_some() {
            decoding.any(|state| !state.is_held())
        } else {
            self.states().any(|(_, state)| state.next() != Next::Nothing)
        }
    }

    /// Whether the oldest run under way gives what it gives by then. Fails if the run is cancelled, or a device is lost.
    fn comes_by(&self, then: Instant) -> Result<bool> {
        loop {
            let left = then.saturating_duration_since(Instant::now());
            if self.ahead.comes_within(left.min(TICK)) {
                return Ok(true);
            }
            if left <= TICK {
                return Ok(false);
            }
            self.check_under_way()?;
        }
    }

    /// Waits for the oldest run that is under way; `false` if there is none.
    fn take_step(&mut self) -> Result<bool> {
        self.end_what_is_due()?;
        let Some(Step { run, gives, .. }) = self.ahead.steps.pop_front() else { return Ok(false) };
        match gives {
            Gives::End(end) => {
                self.wait(end)?;
                self.note_read_run();
            }
            Gives::Rows { of, bytes } => {
                let bytes = self.wait(bytes)?;
                self.note_read_run();
                self.note_rows(of, &bytes)?;
            }
            Gives::Scores { of, probabilities } => {
                let given = self.wait_for_probabilities(probabilities)?;
                self.note_read_run();
                self.note_scores(of, &given)?;
            }
            Gives::Tokens { expected, sampled: Sampled { ids, probabilities } } => {
                let ids = self.wait(ids)?;
                let probabilities = self.wait_for_probabilities(probabilities)?;
                let more = self.ahead.steps.iter().any(|step| step.gives.is_tokens());
                self.ahead.pace.note(Instant::now(), more);
                // One whose rest was late would make the next ones late.
                if run.rest == Rest::InTurn {
                    self.ahead.note_run(run.begun.elapsed());
                }
                self.note_tokens(expected, &Sampled { ids, probabilities })?;
            }
        }
        // What came before this run has been handed over by now.
        self.scheduler().settle(run.number);
        Ok(true)
    }

    /// Tokens of a run have come.
    fn note_tokens(&mut self, expected: Vec<Expected>, sampled: &Sampled<Bytes>) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        for expected in expected {
            let token = sampled.token(&expected, n_vocab)?;
            self.note_token(expected, token);
        }
        Ok(())
    }

    /// A token has come. Nobody wants it if its sequence was truncated, or closed, since it was enqueued.
    fn note_token(&mut self, expected: Expected, token: Token) {
        let Expected { sequence, epoch, at, .. } = expected;
        let Ok((state, _)) = self.state_and_blocks(sequence) else { return };
        if state.epoch != epoch {
            return;
        }
        state.text.sampled(at, token.id);
        state.answered += 1;
        self.recoveries = 0;
        self.ahead.ready.push_back(token);
    }
}

#[cfg(test)]
mod tests {
    use super::pace::RECENT;
    use super::*;

    #[test]
    fn the_rest_of_a_run_comes_with_what_it_needs() {
        let ms = Duration::from_millis;
        let mut ahead = StepsAhead::new(ms(20));
        // Over and back before anything is known.
        assert_eq!(ahead.way_to_rest(2), ms(20));
        // 10 ms there, 3 ms, 10 ms over, 5 ms, 10 ms back, 6 ms, 10 ms here.
        ahead.note_run(ms(54));
        assert_eq!(ahead.way_to_rest(2), ms(27));
        // Late rests have made runs longer: that is made good, as a run gets shorter.
        let late = ms(100);
        let mut ahead = StepsAhead::new(ms(20));
        let mut way = late;
        for _ in 0..RECENT {
            ahead.note_run(way + ms(20 + 6));
            way = ahead.way_to_rest(2);
        }
        assert!(way < ms(28), "{way:?}");
        ahead.note_run(ms(20));
        assert_eq!(ahead.way_to_rest(2), Duration::ZERO);
    }
}
