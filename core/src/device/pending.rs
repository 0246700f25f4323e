//! Results of commands that are still under way.

use crate::error::{Error, Result};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The result of a command that is still under way.
pub struct Pending<T> {
    shared: Arc<Promise<T>>,
    what: Arc<str>,
}

/// The other end of a [`Pending`]. Dropped without an answer, the waiter gets an error.
pub struct Completer<T> {
    shared: Arc<Promise<T>>,
    what: Arc<str>,
    answered: bool,
}

type Then<T> = Box<dyn FnOnce(Result<T>) + Send>;

struct Promise<T> {
    state: Mutex<Promised<T>>,
    there: Condvar,
}

enum Promised<T> {
    Waiting,
    /// Nobody waits; this is called with the result.
    Then(Then<T>),
    There(Result<T>),
    Taken,
}

impl<T> Promise<T> {
    /// Every value is whole after each statement, so that a panic elsewhere takes nothing away.
    fn lock(&self) -> MutexGuard<'_, Promised<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same when something is there, or `timeout` is over.
    fn lock_within(&self, timeout: Duration) -> MutexGuard<'_, Promised<T>> {
        let waiting = |state: &mut Promised<T>| matches!(state, Promised::Waiting);
        let waited = self.there.wait_timeout_while(self.lock(), timeout, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl<T> Promised<T> {
    fn take(&mut self) -> Option<Result<T>> {
        match std::mem::replace(self, Promised::Taken) {
            Promised::There(result) => Some(result),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<T> Pending<T> {
    /// A result to be given later; `what` is named if it does not come.
    pub fn new(what: impl Into<Arc<str>>) -> (Completer<T>, Pending<T>) {
        let what = what.into();
        let shared = Arc::new(Promise { state: Mutex::new(Promised::Waiting), there: Condvar::new() });
        (Completer { shared: shared.clone(), what: what.clone(), answered: false }, Pending { shared, what })
    }

    /// A result that is there.
    pub fn ready(result: Result<T>) -> Pending<T> {
        let (completer, pending) = Pending::new("a result that is there");
        completer.complete(result);
        pending
    }

    /// Waits at most `timeout`.
    pub fn wait(mut self, timeout: Duration) -> Result<T> {
        let late = |what: &str| Error::Timeout { what: what.to_owned(), after: timeout };
        self.wait_more(timeout).unwrap_or_else(|| Err(late(&self.what)))
    }

    /// Waits at most `timeout`, and may be asked again if nothing came.
    pub fn wait_more(&mut self, timeout: Duration) -> Option<Result<T>> {
        self.shared.lock_within(timeout).take()
    }

    /// Whether the result is there, or comes within `timeout`. It is left there.
    pub fn comes_within(&self, timeout: Duration) -> bool {
        !matches!(*self.shared.lock_within(timeout), Promised::Waiting)
    }

    /// The result if it is there.
    pub fn try_take(&mut self) -> Option<Result<T>> {
        self.shared.lock().take()
    }

    /// Calls `then` with the result as soon as it is there, on the thread that completes it, so that it must not wait; here
    /// and now if it is there already.
    pub fn then(self, then: impl FnOnce(Result<T>) + Send + 'static) {
        let mut state = self.shared.lock();
        match state.take() {
            Some(result) => {
                drop(state);
                then(result);
            }
            None => *state = Promised::Then(Box::new(then)),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", self.what)
    }
}

impl<T> Completer<T> {
    /// Gives the result. A waiter that has gone does not matter.
    pub fn complete(mut self, result: Result<T>) {
        self.give(result);
    }

    fn give(&mut self, result: Result<T>) {
        self.answered = true;
        let mut state = self.shared.lock();
        match std::mem::replace(&mut *state, Promised::Taken) {
            Promised::Then(then) => {
                drop(state);
                then(result);
            }
            _ => {
                *state = Promised::There(result);
                drop(state);
                self.shared.there.notify_all();
            }
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if !self.answered {
            let (device, detail) = (self.what.to_string(), "ended before it answered".into());
            self.give(Err(Error::Device { device, op: None, detail }));
        }
    }
}

impl<T> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completer({})", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_that_is_dropped_is_an_error() {
        let (completer, pending) = Pending::<u8>::new("CPU0");
        drop(completer);
        assert!(matches!(pending.wait(Duration::from_secs(1)), Err(Error::Device { .. })));
        let (_completer, pending) = Pending::<u8>::new("CPU0");
        assert!(matches!(pending.wait(Duration::from_millis(1)), Err(Error::Timeout { .. })));
        assert_eq!(Pending::ready(Ok(3)).wait(Duration::ZERO), Ok(3));
    }

    #[test]
    fn pending_may_be_asked_again_or_call_back() {
        let (completer, mut pending) = Pending::new("CPU0");
        assert_eq!(pending.try_take(), None);
        assert_eq!(pending.wait_more(Duration::from_millis(1)), None);
        completer.complete(Ok(5));
        assert_eq!(pending.wait_more(Duration::ZERO), Some(Ok(5)));
        let (to, got) = std::sync::mpsc::channel();
        let (early, pending) = Pending::new("CPU0");
        let sender = to.clone();
        pending.then(move |result| sender.send(result).unwrap());
        assert!(got.try_recv().is_err());
        early.complete(Ok(6));
        assert_eq!(got.try_recv().unwrap(), Ok(6));
        let sender = to.clone();
        Pending::ready(Ok(7)).then(move |result| sender.send(result).unwrap());
        assert_eq!(got.try_recv().unwrap(), Ok(7));
        let (dropped, pending) = Pending::<u8>::new("CPU0");
        pending.then(move |result| to.send(result).unwrap());
        drop(dropped);
        assert!(got.try_recv().unwrap().is_err());
    }
}
