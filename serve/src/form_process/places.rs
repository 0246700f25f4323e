//! How many processes follow forms at a time, and how many of them begin.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Processes that begin at a time: each takes a core for as long as the vocabulary is large.
const BEGINNING: usize = 2;

/// Places of processes.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    beginning: usize,
}

/// The place of a process. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

/// A process begins until this is dropped.
#[derive(Debug)]
pub(super) struct Beginning(Arc<Places>);

impl Places {
    /// For so many processes.
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, taken: Mutex::default(), changed: Condvar::new() })
    }

    /// A place for a process that begins now; `None` if there is none.
    pub(super) fn begin(self: &Arc<Self>) -> Option<(Place, Beginning)> {
        let mut taken = self.taken();
        if taken.all == self.most || taken.beginning == BEGINNING {
            return None;
        }
        taken.all += 1;
        taken.beginning += 1;
        Some((Place(self.clone()), Beginning(self.clone())))
    }

    /// Waits until a place may be free, or so long.
    pub(super) fn wait(&self, at_most: Duration) {
        let waited = self.changed.wait_timeout(self.taken(), at_most);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Wakes those that wait.
    pub(super) fn changed(&self) {
        self.changed.notify_all();
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken().all -= 1;
        self.0.changed();
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.taken().beginning -= 1;
        self.0.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_begin_at_a_time_and_all_have_a_place() {
        let places = Places::new(3);
        let [a, b] = [(); 2].map(|()| places.begin().unwrap());
        assert!(places.begin().is_none(), "two begin");
        drop(a.1);
        let c = places.begin().unwrap();
        drop((b.1, c.1));
        assert!(places.begin().is_none(), "there are three");
        drop(a.0);
        assert!(places.begin().is_some());
    }
}
