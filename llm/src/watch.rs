//! Says who keeps a run waiting, while it waits.

use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use bytes::Bytes;
use outboard_core::Pending;
use outboard_scheduler::Scheduler;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A wait that takes longer is told of: some steps of a large model on a slow device do not.
const FIRST: Duration = Duration::from_secs(5);
/// And again and again after this long.
const EVERY: Duration = Duration::from_secs(5);
/// How soon a wait notices that it was cancelled.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A wait that takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// What is waited for: a device's id, or endpoints.
    pub who: String,
    /// What it has to do.
    pub doing: String,
    /// How long it has been.
    pub after: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting {} s for {} ({})", self.after.as_secs(), self.who, self.doing)
    }
}

/// Is told of waits that take long.
pub type Watch = dyn Fn(&Stall) + Send + Sync;

impl PlacedModel {
    /// Has `watch` told of waits for devices that take long, every few seconds while they last.
    pub fn set_watch(&mut self, watch: Arc<Watch>) {
        self.watch = Some(watch.clone());
        let next = Mutex::new(FIRST);
        self.placement.scheduler.on_wait(Arc::new(move |device, after| {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            // A wait that is shorter than the last one is another.
            if after + EVERY < *next {
                *next = FIRST;
            }
            if after >= *next {
                *next = after + EVERY;
                watch(&Stall { who: device.to_owned(), doing: "bytes for another device".into(), after });
            }
        }));
    }

    /// Waits for a result, for as long as devices get further; ends early if the run is cancelled, or a device is lost.
    pub(crate) fn wait(&self, mut pending: Pending<Bytes>) -> Result<Bytes> {
        let start = Instant::now();
        let mut late: Option<Late<'_>> = None;
        // Most results come before there is anything to look at.
        let mut patience = None;
        loop {
            if let Some(result) = pending.wait_more(TICK) {
                return Ok(result?);
            }
            let after = start.elapsed();
            self.check_under_way()?;
            let patience = patience.get_or_insert_with(|| self.scheduler().patience());
            if let Some(after) = patience.over(Instant::now(), self.scheduler().progress()) {
                let who = late.as_ref().and_then(Late::first).unwrap_or("the devices");
                let what = format!("{who} to get any further with a {}", self.doing());
                return Err(outboard_core::Error::Timeout { what, after }.into());
            }
            if after < FIRST {
                continue;
            }
            let late = late.get_or_insert_with(|| Late::new(self.scheduler()));
            if let (Some(who), Some(watch)) = (late.who(), &self.watch) {
                watch(&Stall { who, doing: self.doing(), after });
            }
        }
    }

    /// Fails if what is under way will not come: the run is cancelled, or a device is lost.
    pub(crate) fn check_under_way(&self) -> Result<()> {
        self.check_cancelled()?;
        self.scheduler().failure().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Fails if the run is cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        let is_cancelled = self.scheduler().cancel_token().load(Ordering::Relaxed);
        if is_cancelled { Err(outboard_core::Error::Cancelled.into()) } else { Ok(()) }
    }

    /// What is under way, for people.
    fn doing(&self) -> String {
        let busy: Vec<_> = self.sequences.iter().flatten().filter(|state| state.job.is_some()).collect();
        match busy.as_slice() {
            [state] if state.answered == 0 => format!("prompt of {} tokens", state.text.len()),
            [state] => format!("decode step {}", state.answered),
            [] => "text".into(),
            several => format!("step of {} sequences", several.len()),
        }
    }
}

/// Finds out which device is late, by asking all how far they are.
struct Late<'a> {
    scheduler: &'a Scheduler,
    probes: Vec<(String, Pending<()>)>,
    next: Instant,
}

impl<'a> Late<'a> {
    fn new(scheduler: &'a Scheduler) -> Late<'a> {
        // Time for the answers of those that are not late.
        Late { scheduler, probes: scheduler.probe(), next: Instant::now() + 5 * TICK }
    }

    /// The first device that has not come to what it was asked, when it is time to say so: those behind it wait for it.
    fn who(&mut self) -> Option<String> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        self.probes.retain_mut(|(_, answer)| answer.try_take().is_none());
        if self.probes.is_empty() {
            // All have moved on since they were asked; what comes now is another wait.
            self.probes = self.scheduler.probe();
            self.next = now + 5 * TICK;
            return None;
        }
        self.first().map(str::to_owned)
    }

    /// The first device that had not come to what it was asked when last looked at.
    fn first(&self) -> Option<&str> {
        self.probes.first().map(|(device, _)| device.as_str())
    }
}

/// Does something that may take long, and meanwhile tells `watch` for whom it waits.
pub(crate) fn watched<T>(watch: Option<&Watch>, who: String, doing: &str, work: impl FnOnce() -> T) -> T {
    let Some(watch) = watch else { return work() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (start, done) = (Instant::now(), &done);
        let teller = scope.spawn(move || {
            let mut next = FIRST;
            while !done.load(Ordering::Acquire) {
                std::thread::park_timeout(TICK);
                if start.elapsed() >= next && !done.load(Ordering::Acquire) {
                    watch(&Stall { who: who.clone(), doing: doing.to_owned(), after: start.elapsed() });
                    next += EVERY;
                }
            }
        });
        // Even if it panics: the scope waits for the teller.
        let _end = End { done, teller: teller.thread() };
        work()
    })
}

/// Ends the telling when it is dropped.
struct End<'a> {
    done: &'a AtomicBool,
    teller: &'a Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        self.teller.unpark();
    }
}

/// Whether a run was stopped by its caller.
pub(crate) fn is_cancelled(error: &Error) -> bool {
    matches!(error, Error::Core(outboard_core::Error::Cancelled))
}
