//! What may follow the tokens of texts that have a form, found on a thread for each text.
//!
//! Forms come from strangers. Whatever one costs, other texts do not wait for it: they give it the time that a form usually takes, and go on without it.

use super::{Constraint, FormedText, TokenSet};
use crate::error::{Error, Result};
use crate::sequence::Sequence;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Other texts wait so long for what may come next in one, at most: several times what most forms take.
pub(crate) const PATIENCE: Duration = Duration::from_millis(5);
/// A text whose form takes longer to say what may come next ends with an error.
const MOST: Duration = Duration::from_secs(10);
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
        let first = text.first();
        let work = move || {
            while let Ok((id, _at_work)) = tokens.recv() {
                let _ = found.send(Found { sequence, allowed: push(text.as_mut(), id) });
            }
        };
        let thread = std::thread::Builder::new().name("outboard-mask".into()).spawn(work);
        thread.map_err(|e| Error::Busy(format!("there is no thread for the text's form: {e}")))?;
        Ok(Formed { first, ids, at_work: Arc::downgrade(&self.at_work), asked: None })
    }

    /// What has been found, and is waited for until then.
    pub(crate) fn next(&self, until: Option<Instant>) -> Option<Found> {
        let patience = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        self.found.recv_timeout(patience).ok()
    }
}

fn push(text: &mut dyn FormedText, id: u32) -> Result<Option<TokenSet>> {
    // A caller's own form may do anything.
    let pushed = catch_unwind(AssertUnwindSafe(|| text.push(id)));
    pushed.unwrap_or_else(|_| Err(Error::Internal("a text's form has panicked".into())))
}

/// A text that has a form. Its thread ends when this is dropped, as soon as it has nothing to do.
pub(crate) struct Formed {
    /// What it may begin with.
    pub(crate) first: TokenSet,
    ids: Sender<(u32, Option<Arc<()>>)>,
    at_work: Weak<()>,
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
        match self.asked {
            Some(asked) if asked.elapsed() > MOST => {
                Err(Error::Request(format!("what may come next in its form was not found in {} s", MOST.as_secs())))
            }
            _ => Ok(()),
        }
    }
}
