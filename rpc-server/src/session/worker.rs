//! The thread of a session, for what may block: allocation, compilation, freeing.

use crate::logs::limited;
use outboard_core::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other. The thread ends when all its handles are gone and its jobs are done. What waits is bounded by
/// those who wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Worker(Sender<Job>);

impl Worker {
    pub(crate) fn start(session: &str) -> Result<Worker> {
        let session = session.to_owned();
        let (jobs, todo) = channel::<Job>();
        std::thread::Builder::new()
            .name("session".into())
            .spawn(move || {
                for job in todo {
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        limited!(error, session, "a request panicked; this is a bug of Outboard");
                    }
                }
            })
            .map_err(|e| Error::Request(format!("no thread for a session: {e}")))?;
        Ok(Worker(jobs))
    }

    /// Runs a job after those before it.
    pub(crate) fn post(&self, job: impl FnOnce() + Send + 'static) {
        // The thread lives as long as `self`, so that this cannot fail.
        let _ = self.0.send(Box::new(job));
    }

    /// Runs a job and waits for its result.
    pub(crate) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let (done, result) = oneshot::channel();
        self.post(move || {
            let _ = done.send(job());
        });
        let panicked = || Error::Request("the request failed because of a bug of the server; see its log".into());
        result.await.unwrap_or_else(|_| Err(panicked()))
    }
}
