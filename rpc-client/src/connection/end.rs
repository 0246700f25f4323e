//! Whether a connection is over, and whether its server gets any further.

use crate::lock;
use outboard_core::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The end of a connection.
pub(super) struct End {
    /// Set when the connection is over, to the reason.
    reason: OnceLock<Error>,
    over: watch::Sender<bool>,
    /// The reason is that the server has got no further.
    stalled: AtomicBool,
    /// The last user has let go.
    leaving: AtomicBool,
}

impl End {
    pub(super) fn new() -> End {
        End {
            reason: OnceLock::new(),
            over: watch::Sender::new(false),
            stalled: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
        }
    }

    /// Why the connection is over, if it is.
    pub(super) fn reason(&self) -> Option<&Error> {
        self.reason.get()
    }

    /// Fails if the connection is over.
    pub(super) fn check(&self) -> Result<()> {
        self.reason.get().cloned().map_or(Ok(()), Err)
    }

    /// Ends the connection. The first reason counts.
    pub(super) fn set(&self, reason: Error) {
        let _ = self.reason.set(reason);
        self.over.send_replace(true);
    }

    /// Notes, before the end, that the server has got no further.
    pub(super) fn set_stalled(&self) {
        if self.reason.get().is_none() {
            self.stalled.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(super) fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Completes at the end.
    pub(super) async fn reached(&self) {
        // An error means that the sender is gone, which `self` holds.
        let _ = self.over.subscribe().wait_for(|&over| over).await;
    }
}

/// What was seen of a server's progress.
#[derive(Default)]
pub(super) struct Moves {
    /// Changes while the server does something that is waited for.
    count: AtomicU64,
    /// When another server that waits for this one was last seen to.
    wanted: Mutex<Option<Instant>>,
}

impl Moves {
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn want(&self) {
        *lock(&self.wanted) = Some(Instant::now());
    }

    pub(super) fn are_wanted(&self, within: Duration) -> bool {
        lock(&self.wanted).is_some_and(|at| at.elapsed() <= within)
    }
}
