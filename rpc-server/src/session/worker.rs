//! The thread of a session, for what may block: allocation, compilation, freeing.

use crate::limits::SESSION_JOBS;
use crate::logs::limited;
use outboard_core::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::{Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other. The thread ends when all its handles are gone and its jobs are done.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    jobs: Sender<Job>,
    /// Places of jobs that somebody waits for.
    places: Arc<Semaphore>,
}

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
        Ok(Worker { jobs, places: Arc::new(Semaphore::new(SESSION_JOBS)) })
    }

    /// Runs a job after those before it. For jobs whose number is bounded elsewhere: frees, ends of queues, that of the session.
    pub(crate) fn post(&self, job: impl FnOnce() + Send + 'static) {
        // The thread lives as long as `self`, so that this cannot fail.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Runs a job and waits for its result. The job keeps its place until it is done, also if nobody waits for it any more.
    pub(crate) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| Error::Cancelled)?;
        let (done, result) = oneshot::channel();
        self.post(move || {
            let result = job();
            drop(place);
            let _ = done.send(result);
        });
        let panicked = || Error::Request("the request failed because of a bug of the server; see its log".into());
        result.await.unwrap_or_else(|_| Err(panicked()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn few_jobs_wait_and_those_that_are_given_up_keep_their_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let worker = Worker::start("test").unwrap();
            let (go, wait) = channel::<()>();
            worker.post(move || wait.recv().unwrap());
            let (held, ran) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
            for _ in 0..10 * SESSION_JOBS {
                let (held, ran) = (held.clone(), ran.clone());
                let job = worker.run(move || {
                    drop(held);
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                });
                // Whoever asked has gone.
                assert!(tokio::time::timeout(Duration::from_millis(1), job).await.is_err());
            }
            assert_eq!(Arc::strong_count(&held), 1 + SESSION_JOBS);
            go.send(()).unwrap();
            worker.run(|| Ok(())).await.unwrap();
            assert_eq!((ran.load(Ordering::SeqCst), Arc::strong_count(&held)), (SESSION_JOBS, 1));
        });
    }
}
