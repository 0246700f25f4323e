//! The timeline of a queue: how far it is, and the error that ended it if one did.

use crate::error::{Error, Result};
use crate::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// How often a wait looks whether it is still wanted. Ends of waits that matter for speed come by notification.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct Timeline {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reached: u64,
    poison: Option<Error>,
}

impl Timeline {
    pub(crate) fn reach(&self, value: u64) {
        let mut state = lock(&self.state);
        state.reached = state.reached.max(value);
        drop(state);
        self.changed.notify_all();
    }

    /// The first error stays.
    pub(crate) fn poison(&self, error: Error) {
        lock(&self.state).poison.get_or_insert(error);
        self.changed.notify_all();
    }

    pub(crate) fn error(&self) -> Option<Error> {
        lock(&self.state).poison.clone()
    }

    /// Waits until `value` is reached, the timeline is poisoned, `cancel` is set or `limit` has passed.
    pub(crate) fn wait(&self, value: u64, limit: Duration, cancel: &AtomicBool, what: &str) -> Result<()> {
        let end = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            if state.reached >= value {
                return Ok(());
            }
            if let Some(error) = &state.poison {
                return Err(error.clone());
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if Instant::now() >= end {
                return Err(Error::Timeout { what: what.to_owned(), after: limit });
            }
            state = self.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}
