//! How far queues and devices are, and deadlines that count from when they last got further.
//!
//! One graph may take minutes on a slow device, so how long a wait lasts says nothing about whether it will end. What tells is whether
//! anything moves meanwhile: a queue counts its commands, a device the nodes that it computes.

use crate::device::Queue;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a queue is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// It has nothing to do.
    Nothing,
    /// A graph is waiting for its turn on the device.
    Turn,
    /// A graph is being computed.
    Graph,
    /// Bytes are being written, read or copied on this host.
    Copy,
    /// It waits for another queue of this host.
    Queue,
    /// It waits for bytes that somebody else is to give, such as another server.
    Bytes,
}

impl Doing {
    /// Everything, each at the place of its number.
    pub const ALL: [Doing; 6] = [Doing::Nothing, Doing::Turn, Doing::Graph, Doing::Copy, Doing::Queue, Doing::Bytes];
}

/// How far a queue is. Its own thread writes it; anyone may read it at any time.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    /// Place in [`Doing::ALL`].
    doing: AtomicU8,
}

impl Progress {
    /// What the queue is at from now on.
    pub fn begin(&self, doing: Doing) {
        self.doing.store(doing as u8, Ordering::Relaxed);
    }

    /// A command is done.
    pub fn done(&self) {
        self.begin(Doing::Nothing);
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// A command is done that was behind others on the device; what the queue is at is another one.
    pub(crate) fn done_behind(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The device has nothing more of the queue.
    pub(crate) fn idle(&self) {
        let at_work = |doing: u8| doing == Doing::Graph as u8 || doing == Doing::Copy as u8;
        let nothing = |doing| at_work(doing).then_some(Doing::Nothing as u8);
        let _ = self.doing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, nothing);
    }

    /// Commands that are done.
    pub fn commands(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// What the queue is at.
    pub fn doing(&self) -> Doing {
        let doing = self.doing.load(Ordering::Relaxed);
        Doing::ALL.get(usize::from(doing)).copied().unwrap_or(Doing::Nothing)
    }
}

/// A deadline that counts from when a number last changed. It has no clock: time is an argument.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    limit: Duration,
    since: Instant,
    seen: u64,
}

impl Patience {
    /// A deadline of `limit` from `now`, when the number is `progress`.
    pub fn new(limit: Duration, now: Instant, progress: u64) -> Patience {
        Patience { limit, since: now, seen: progress }
    }

    /// Takes note of the number. Gives how long it has not changed if the deadline has passed.
    pub fn over(&mut self, now: Instant, progress: u64) -> Option<Duration> {
        if progress != self.seen {
            (self.seen, self.since) = (progress, now);
        }
        let still = now.saturating_duration_since(self.since);
        (still >= self.limit).then_some(still)
    }
}

/// Waits until everything that a queue was given is done, as [`Queue::finish`] does, for as long as `progress` changes at least once in
/// `limit`.
pub fn finish(queue: &dyn Queue, limit: Duration, progress: impl Fn() -> u64) -> Result<()> {
    loop {
        let before = progress();
        match queue.finish(limit) {
            Err(Error::Timeout { .. }) if progress() != before => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_says_what_it_is_at() {
        let progress = Progress::default();
        assert_eq!((progress.commands(), progress.doing()), (0, Doing::Nothing));
        for doing in Doing::ALL {
            progress.begin(doing);
            assert_eq!(progress.doing(), doing);
        }
        progress.done();
        assert_eq!((progress.commands(), progress.doing()), (1, Doing::Nothing));
    }

    #[test]
    fn patience_lasts_while_the_number_changes() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut patience = Patience::new(Duration::from_secs(10), start, 7);
        assert_eq!(patience.over(at(9), 7), None);
        // A number that gets smaller has changed as well: another server counts anew.
        assert_eq!(patience.over(at(9), 1), None);
        assert_eq!(patience.over(at(18), 1), None);
        assert_eq!(patience.over(at(20), 1), Some(Duration::from_secs(11)));
        assert_eq!(patience.over(at(21), 2), None);
    }
}
