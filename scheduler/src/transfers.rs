//! What devices hand one another while runs are under way.

use bytes::Bytes;
use outboard_core::{Pending, Ticket};
use std::collections::VecDeque;

/// Transfers among devices, and their bytes, that are enqueued before everything enqueued is waited for. Bytes that are handed
/// over before the other side takes them wait in a server's memory, which keeps as many for a session.
const MAX_TRANSFERS: usize = 256;
const MAX_BYTES: u64 = 256 << 20;

/// A transfer whose bytes are on their way, and not yet taken.
pub(crate) enum InTransit {
    /// There are none.
    Nothing,
    /// They come from the other device itself.
    Offered(Ticket),
    /// They come through this process.
    Read(Pending<Bytes>),
}

/// The transfers among devices that are not known to be done, counted by run.
#[derive(Debug, Default)]
pub(crate) struct OpenTransfers {
    count: usize,
    bytes: u64,
    last_run: u64,
    /// Runs that are not known to be done, the oldest first.
    runs: VecDeque<RunTransfers>,
}

/// What one run hands over.
#[derive(Debug)]
struct RunTransfers {
    run: u64,
    count: usize,
    bytes: u64,
}

impl OpenTransfers {
    /// Begins another run and gives its number.
    pub(crate) fn begin_run(&mut self) -> u64 {
        self.last_run += 1;
        // A run that hands nothing over is not counted.
        if self.runs.back().is_some_and(|run| run.count == 0) {
            self.runs.pop_back();
        }
        self.runs.push_back(RunTransfers { run: self.last_run, count: 0, bytes: 0 });
        self.last_run
    }

    /// Adds a transfer to the last run.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        if let Some(run) = self.runs.back_mut() {
            run.count += 1;
            run.bytes += bytes;
        }
    }

    /// Whether what is open has to be done before another transfer of so many bytes.
    pub(crate) fn is_full(&self, bytes: u64) -> bool {
        self.count >= MAX_TRANSFERS || self.count > 0 && self.bytes.saturating_add(bytes) > MAX_BYTES
    }

    /// Everything before `run` is done.
    pub(crate) fn settle(&mut self, run: u64) {
        while let Some(done) = self.runs.front().filter(|oldest| oldest.run < run) {
            self.count -= done.count;
            self.bytes -= done.bytes;
            self.runs.pop_front();
        }
    }

    /// Everything is done.
    pub(crate) fn settle_all(&mut self) {
        *self = OpenTransfers { last_run: self.last_run, ..OpenTransfers::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_settled_in_their_order() {
        let mut open = OpenTransfers::default();
        let first = open.begin_run();
        open.add(MAX_BYTES - 1);
        assert!(!open.is_full(1) && open.is_full(2));
        let empty = open.begin_run();
        let last = open.begin_run();
        open.add(1);
        assert!(open.is_full(1) && open.runs.len() == 2, "{empty} hands nothing over: {open:?}");
        open.settle(first);
        assert!(open.is_full(1));
        open.settle(last);
        assert_eq!((open.count, open.bytes), (1, 1));
        open.settle_all();
        assert_eq!((open.count, open.begin_run()), (0, last + 1));
        assert!(!open.is_full(2 * MAX_BYTES), "one that is larger goes alone");
        (0..MAX_TRANSFERS).for_each(|_| open.add(0));
        assert!(open.is_full(0));
    }
}
