//! What is read of a text: it comes as a whole, when all of the text has been read.

use crate::error::{Error, Result};
use crate::runner::Shared;
use crate::text::wait_for;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// Where it goes.
pub(crate) type Recipient<T> = UnboundedSender<Result<T>>;

/// What is being computed of a text: [`PendingResult::wait`] for threads, a [`Future`] for tasks, of any runtime. Dropping it ends it, and others have its
/// place.
#[must_use = "what is dropped is not computed"]
pub struct PendingResult<T> {
    // Before the runner, which waits for the thread.
    came: UnboundedReceiver<Result<T>>,
    _runner: Arc<Shared>,
}

impl<T> fmt::Debug for PendingResult<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResult").finish_non_exhaustive()
    }
}

impl<T> PendingResult<T> {
    pub(crate) fn new(came: UnboundedReceiver<Result<T>>, runner: Arc<Shared>) -> PendingResult<T> {
        PendingResult { came, _runner: runner }
    }

    /// Waits for it. Fails with what ends it: what happens to a device, and that it would not fit.
    pub fn wait(mut self) -> Result<T> {
        wait_for(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl<T> Future for PendingResult<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let gone = || Err(Error::Bug("the thread that reads texts has ended".into()));
        self.came.poll_recv(cx).map(|came| came.unwrap_or_else(gone))
    }
}
