//! The threads that place and check blobs. Calls take turns on them, so that no client holds the others up.

use super::call::{Call, Ended};
use super::line::Line;
use crate::fair::{FairRoom, FairShare};
use crate::limits::BLOB_THREADS;
use crate::lock;
use crate::logs::limited;
use outboard_core::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a call rests whose blobs wait for the disk.
const BEHIND: Duration = Duration::from_millis(5);

/// The threads. They end when this is dropped.
pub(super) struct Workers(Arc<Pool>);

struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    /// Threads that are at work: a client may have what it leaves to others, because a call may wait for its device.
    busy: Arc<FairRoom>,
}

struct State {
    line: Line<Call>,
    stop: bool,
}

/// A call that is worked on, or waits for its turn. Dropped, it ends soon.
pub(crate) struct Underway {
    pool: Arc<Pool>,
    cancelled: Arc<AtomicBool>,
}

impl Workers {
    pub(super) fn start() -> Result<Workers> {
        let state = Mutex::new(State { line: Line::new(), stop: false });
        let workers =
            Workers(Arc::new(Pool { state, changed: Condvar::new(), busy: FairRoom::new(BLOB_THREADS as u64) }));
        for n in 0..BLOB_THREADS {
            let pool = workers.0.clone();
            let spawned = std::thread::Builder::new().name(format!("place {n}")).spawn(move || pool.work());
            spawned.map_err(|e| Error::Request(format!("no thread to place weights: {e}")))?;
        }
        Ok(workers)
    }

    pub(super) fn start_call(&self, call: Call) -> Underway {
        let underway = Underway { pool: self.0.clone(), cancelled: call.cancelled() };
        self.0.push(call);
        underway
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.0.state).stop = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let void = lock(&self.pool.state).line.remove(Call::is_void);
        for call in void {
            // That may free buffers, which may take long.
            let session = call.session.clone();
            session.worker.post(move || drop(call));
        }
    }
}

impl Pool {
    fn push(&self, call: Call) {
        let (client, session) = call.who();
        lock(&self.state).line.push(client, session, call);
        self.changed.notify_one();
    }

    /// The call whose turn is next, and its client's part of the threads; `None` when the server stops.
    fn next(&self) -> Option<(Call, FairShare)> {
        let mut state = lock(&self.state);
        while !state.stop {
            let mut share = None;
            let call = state.line.pop(|client| {
                share = self.busy.try_take(client, 1);
                share.is_some()
            });
            if let Some(next) = call.zip(share) {
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn work(&self) {
        while let Some((mut call, share)) = self.next() {
            let others_wait = || !lock(&self.state).line.is_empty();
            let ended = catch_unwind(AssertUnwindSafe(|| call.turn(&others_wait)));
            // Another call of the client may be next now.
            drop(share);
            self.changed.notify_one();
            match ended {
                Ok(Ended::Call) => {}
                Ok(Ended::Turn) => self.push(call),
                Ok(Ended::Behind) => {
                    std::thread::sleep(BEHIND);
                    self.push(call);
                }
                Err(_) => limited!(error, "placing weights panicked; this is a bug of Outboard"),
            }
        }
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workers")
    }
}
