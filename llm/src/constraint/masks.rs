//! What may follow the tokens of texts that have a form, found on a thread for each text.
//!
//! Forms come from strangers. Whatever one costs, other texts do not wait for it: they give it the time that a form usually takes, and go on without it.

use super::{Constraint, TokenSet};
use crate::error::{Error, Result};
use crate::sequence::Sequence;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Other texts wait so long for what may come next in one, at most: several times what most forms take.
pub(crate) const PATIENCE: Duration = Duration::from_millis(5);
/// A text whose form takes longer to say what may come next ends with an error.
const MOST: Duration = Duration::from_secs(10);
/// The same until its form is prepared ([`super::FormedText::prepare`]).
const MOST_PREPARED: Duration = Duration::from_secs(60);
/// Threads of texts that have ended, which are still at work when another text begins, at most.
const MOST_LEFT: usize = 8;

/// Finds what may come next in texts.
pub(crate) struct Masks {
    found: Receiver<Found>,
    sender: Sender<Found>,
    /// A thread has a clone for as long as it is at work.
    at_work: Arc<()>,
}

/// What may come next in a text; `None` if it is complete and nothing may.
pub(crate) struct Found {
    pub(crate) sequence: Sequence,
    pub(crate) allowed: Result<Option<TokenSet>>,
}

impl Masks {
    pub(crate) fn new() -> Masks {
        let (sender, found) = channel();
        Masks { found, sender, at_work: Arc::default() }
    }

    /// Begins a text, while so many others wait for what may come next in them. Fails with [`Error::Busy`] if too many that have ended are still at work.
    pub(crate) fn begin(&self, constraint: &Constraint, sequence: Sequence, waiting: usize) -> Result<Formed> {
        // One of them is that of this.
        if Arc::strong_count(&self.at_work) > waiting + MOST_LEFT {
            return Err(Error::Busy("forms of texts that have ended are still being worked out".into()));
        }
        let (ids, tokens) = channel::<(u32, Option<Arc<()>>)>();
        let (mut text, found) = (constraint.begin(), self.sender.clone());
        let (first, prepared) = (text.first(), Arc::<OnceLock<Instant>>::default());
        // The text holds it for as long as it waits for anything.
        let waits = Arc::downgrade(&prepared);
        let work = move || {
            let ready = unpanicked(|| text.prepare(&|| waits.strong_count() > 0));
            if let Some(prepared) = waits.upgrade() {
                let _ = prepared.set(Instant::now());
            }
            while let Ok((id, _at_work)) = tokens.recv() {
                let allowed = ready.clone().and_then(|()| unpanicked(|| text.push(id)));
                let _ = found.send(Found { sequence, allowed });
            }
        };
        let thread = std::thread::Builder::new().name("outboard-mask".into()).spawn(work);
        thread.map_err(|e| Error::Busy(format!("there is no thread for the text's form: {e}")))?;
        Ok(Formed { first, ids, at_work: Arc::downgrade(&self.at_work), prepared, asked: None })
    }

    /// What has been found, and is waited for until then.
    pub(crate) fn next(&self, until: Option<Instant>) -> Option<Found> {
        let patience = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        self.found.recv_timeout(patience).ok()
    }
}

/// A caller's own form may do anything.
fn unpanicked<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::Internal("a text's form has panicked".into())))
}

/// A text that has a form. Its thread ends when this is dropped, as soon as it has nothing to do.
pub(crate) struct Formed {
    /// What it may begin with.
    pub(crate) first: TokenSet,
    ids: Sender<(u32, Option<Arc<()>>)>,
    at_work: Weak<()>,
    /// Since when its form is prepared.
    prepared: Arc<OnceLock<Instant>>,
    asked: Option<Instant>,
}

impl Formed {
    /// Takes a token. What may follow comes from [`Masks::next`].
    pub(crate) fn push(&mut self, id: u32) -> Result<()> {
        self.asked = Some(Instant::now());
        let sent = self.ids.send((id, self.at_work.upgrade()));
        sent.map_err(|_| Error::Internal("the thread of a text's form has ended".into()))
    }

    /// What may follow has come.
    pub(crate) fn answered(&mut self) {
        self.asked = None;
    }

    /// Since when it waits for what may follow.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.asked
    }

    /// Fails if it has waited too long: for those that have taken what has been found.
    pub(crate) fn check_wait(&self) -> Result<()> {
        let Some(asked) = self.asked else { return Ok(()) };
        match self.prepared.get() {
            Some(&prepared) if asked.max(prepared).elapsed() > MOST => {
                Err(Error::Request(format!("what may come next in its form was not found in {} s", MOST.as_secs())))
            }
            None if asked.elapsed() > MOST_PREPARED => {
                let seconds = MOST_PREPARED.as_secs();
                Err(Error::Busy(format!("the text's form was not prepared in {seconds} s, beside those of others")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_its_time_from_when_it_is_prepared() {
        let ago = |time: Duration| Instant::now().checked_sub(time).unwrap();
        let waits = |asked: Duration, prepared: Option<Duration>| {
            let since = Arc::<OnceLock<Instant>>::default();
            prepared.map(|prepared| since.set(ago(prepared)));
            let first = TokenSet::new(8, [1]);
            let formed =
                Formed { first, ids: channel().0, at_work: Weak::new(), prepared: since, asked: Some(ago(asked)) };
            formed.check_wait().map_err(|error| matches!(error, Error::Busy(_)))
        };
        let (short, long, second) = (MOST / 2, MOST * 2, Duration::from_secs(1));
        assert_eq!(waits(long, None), Ok(()));
        assert_eq!(waits(long, Some(short)), Ok(()));
        assert_eq!(waits(short, Some(long)), Ok(()));
        assert_eq!(waits(long, Some(long)), Err(false), "the form takes too long");
        assert_eq!(waits(MOST_PREPARED + second, None), Err(true), "others do");
    }
}
