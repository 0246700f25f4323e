//! Decoding ahead of the network.
//!
//! The id that a step samples goes from the device with the logits to the one with the embedding, a copy like any other, so the
//! next step does not need this process. It enqueues steps ahead and reads ids as they come: as many as hide the way there and
//! back, no more, because what runs behind the end of a text is thrown away.

use crate::arch::net::{self, Feed, Sampling};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::runs::{Request, Run};
use bytes::Bytes;
use outboard_core::device::RoundTrips;
use outboard_core::{Pending, Queue, try_at_once};
use outboard_scheduler::Scheduler;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most steps under way: at 8 ms a step they hide half a second.
const MAX_AHEAD: usize = 64;
/// Round trips that are measured; the shortest one counts.
const PINGS: usize = 3;
/// Weight of the newest step in the mean of their times.
const SMOOTHING: f64 = 0.2;

/// Steps that are under way.
pub(crate) struct StepsAhead {
    steps: VecDeque<Step>,
    /// The way to the farthest device and back.
    round_trip: Duration,
    /// Mean time from one id to the next, in seconds; 0 before there is one.
    interval: f64,
    /// When the last id came.
    last: Option<Instant>,
}

struct Step {
    run: Run,
    /// Position of the token that it samples.
    at: usize,
    id: Pending<Bytes>,
    log_prob: Option<Pending<Bytes>>,
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
        StepsAhead { steps: VecDeque::new(), round_trip, interval: 0.0, last: None }
    }

    /// Forgets what is under way.
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.last = None;
    }

    /// Steps to keep under way: one that runs, one that waits behind it, and those that are on the way there and back.
    fn depth(&self) -> usize {
        if self.interval > 0.0 {
            2 + (self.round_trip.as_secs_f64() / self.interval).ceil().min(MAX_AHEAD as f64) as usize
        } else {
            2
        }
        .min(MAX_AHEAD)
    }

    /// Takes note of an id that has come. The interval only counts between steps.
    fn note_token(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            let took = now.duration_since(last).as_secs_f64();
            self.interval = if self.interval > 0.0 { self.interval + SMOOTHING * (took - self.interval) } else { took };
        }
    }
}

impl Engine {
    /// Enqueues a prompt behind what is in the cache; [`Engine::next_id`] gives the token that follows.
    pub fn prompt(&mut self, tokens: &[u32], sampling: Sampling) -> Result<()> {
        self.answered = 0;
        let run = self.enqueue_prompt(tokens, Request::Sample(sampling))?;
        self.expect_id(run, sampling.log_prob)
    }

    /// Enqueues a step: the token sampled last goes through the model, and the next one is sampled.
    pub fn step(&mut self, sampling: Sampling) -> Result<()> {
        self.check_room(1)?;
        let run = self.enqueue(&[0], Feed::Sampled, Request::Sample(sampling))?;
        self.expect_id(run, sampling.log_prob)
    }

    pub(crate) fn expect_id(&mut self, run: Run, log_prob: bool) -> Result<()> {
        let id = self.read(&run.program, net::SAMPLED)?;
        let log_prob = if log_prob { Some(self.read(&run.program, net::LOG_PROBS)?) } else { None };
        self.ahead.steps.push_back(Step { run, at: self.n_past, id, log_prob });
        Ok(())
    }

    /// Steps that are under way.
    pub fn under_way(&self) -> usize {
        self.ahead.steps.len()
    }

    /// Whether one more step should be enqueued before the next id is waited for.
    pub fn has_time(&self) -> bool {
        self.under_way() < self.ahead.depth()
    }

    /// Waits for the oldest step that is under way: its token, and its log-probability if that was asked for.
    pub fn next_id(&mut self) -> Result<(u32, Option<f32>)> {
        let step = self.ahead.steps.pop_front().ok_or_else(|| Error::Request("no step is under way".into()))?;
        let id = self.wait(step.id)?;
        let log_prob = step.log_prob.map(|p| self.wait(p)).transpose()?;
        self.ahead.note_token();
        // What came before this run has been handed over by now.
        self.scheduler().settle(step.run.number);
        let short = || Error::Plan("a device gave less than a number".into());
        let id = i32::from_le_bytes(*id.first_chunk().ok_or_else(short)?);
        let id = u32::try_from(id).map_err(|_| Error::Request("a device gave a negative token".into()))?;
        let log_prob = match &log_prob {
            Some(bytes) => Some(f32::from_le_bytes(*bytes.first_chunk().ok_or_else(short)?)),
            None => None,
        };
        self.text.sampled(step.at, id);
        self.answered += 1;
        self.recoveries = 0;
        Ok((id, log_prob))
    }
}
