//! The card's clock: it counts ticks that are no nanoseconds, from a moment of its own.

use std::time::{Duration, Instant};

/// Ticks in 16 microseconds: 52 MHz or so, like the timestamps of some cards.
const TICKS: u64 = 833;
const PERIOD: Duration = Duration::from_micros(16);

/// A moment of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks(u64);

/// The clock, and what the host knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When it showed `then`.
    start: Instant,
    then: Ticks,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { start: Instant::now(), then: Ticks(7_000_000_000) }
    }

    /// What it shows now.
    pub(crate) fn now(&self) -> Ticks {
        let ticks = self.start.elapsed().as_nanos() * u128::from(TICKS) / PERIOD.as_nanos();
        Ticks(self.then.0 + u64::try_from(ticks).unwrap_or(u64::MAX / 2))
    }

    /// The host's moment of a tick.
    pub(crate) fn to_host(self, ticks: Ticks) -> Instant {
        let since = u128::from(ticks.0.saturating_sub(self.then.0)) * PERIOD.as_nanos() / u128::from(TICKS);
        self.start + Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_back_within_a_tick() {
        let clock = Clock::new();
        let before = Instant::now();
        let ticks = clock.now();
        let after = Instant::now();
        let tick = PERIOD / 833 + Duration::from_nanos(1);
        assert!(clock.to_host(ticks) + tick >= before && clock.to_host(ticks) <= after);
    }
}
