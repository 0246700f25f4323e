//! Whether a card can still be used: it may be lost, and it may hang.

use crate::lock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// It is used.
const OPEN: u8 = 0;
/// It is not used any more, and may still be at what it was given.
const GIVEN_UP: u8 = 1;
/// It does nothing any more.
const LOST: u8 = 2;

/// Whether a card is used, and when something that it was given last came to an end. One that is given up or lost stays so.
#[derive(Debug)]
pub struct CardHealth {
    state: AtomicU8,
    /// What was first said of a card that is lost.
    cause: OnceLock<String>,
    patience: Duration,
    ended: Mutex<Instant>,
}

impl CardHealth {
    /// Of a card that is given up when nothing comes to an end for longer than `patience` while somebody waits.
    pub fn new(patience: Duration) -> CardHealth {
        let (state, cause) = (AtomicU8::new(OPEN), OnceLock::new());
        CardHealth { state, cause, patience, ended: Mutex::new(Instant::now()) }
    }

    /// How long nothing may come to an end.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// It does nothing any more, for this reason, unless another one is known.
    pub fn lose(&self, why: impl Into<String>) {
        let _ = self.cause.set(why.into());
        self.state.store(LOST, Ordering::Release);
    }

    /// Why it cannot be used any more, if that is so.
    pub fn end(&self) -> Option<&str> {
        match self.state.load(Ordering::Acquire) {
            LOST => Some(self.cause.get().map_or("", String::as_str)),
            GIVEN_UP => Some("it hung, and was given up"),
            _ => None,
        }
    }

    /// Whether it is lost, or was given up.
    pub fn is_over(&self) -> bool {
        self.state.load(Ordering::Relaxed) != OPEN
    }

    /// Whether it is lost: then it does nothing any more, and needs no memory.
    pub fn is_lost(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LOST
    }

    /// Something that it was given has come to an end.
    pub fn goes_on(&self) {
        *lock(&self.ended) = Instant::now();
    }

    /// Why there is nothing to wait for any more, as an error: it is over, or nothing has come to an end for too long since the wait began. Then it is
    /// given up, and `given_up` is called, once for a card.
    pub fn check(&self, waits_since: Instant, given_up: impl FnOnce()) -> Result<(), String> {
        if let Some(why) = self.end() {
            return Err(format!("{why} while this waited"));
        }
        let last = waits_since.max(*lock(&self.ended));
        if last.elapsed() < self.patience {
            return Ok(());
        }
        if self.state.compare_exchange(OPEN, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            given_up();
        }
        Err(format!("nothing that it was given came to an end within {:?}: it is given up", self.patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_hangs_is_given_up_once_and_one_that_goes_on_is_not() {
        let long = CardHealth::new(Duration::from_secs(600));
        let begun = Instant::now();
        assert_eq!(long.check(begun, || panic!("it does not hang")), Ok(()));
        let short = CardHealth::new(Duration::ZERO);
        let mut said = 0;
        let why = short.check(begun, || said += 1).unwrap_err();
        assert!(why.contains("within 0ns: it is given up"), "{why}");
        assert_eq!(short.check(begun, || said += 1), Err("it hung, and was given up while this waited".into()));
        assert_eq!((said, short.is_over(), short.is_lost()), (1, true, false));
    }

    #[test]
    fn what_was_said_first_of_a_lost_card_stays() {
        let card = CardHealth::new(Duration::from_secs(600));
        assert_eq!(card.end(), None);
        card.lose("one");
        card.lose("two");
        assert_eq!((card.end(), card.is_over(), card.is_lost()), (Some("one"), true, true));
        assert_eq!(card.check(Instant::now(), || panic!("it is over already")), Err("one while this waited".into()));
    }
}
