//! How long runs take, by when what they give comes.

use std::collections::VecDeque;
use std::time::Instant;

/// Times between steps that are remembered. Half of them may be waits for the network and not a step's.
pub(super) const RECENT: usize = 9;

/// How long a run takes, by when what it gives comes.
#[derive(Default)]
pub(super) struct Pace {
    /// The last times from one run's results to those of the next, in seconds.
    recent: VecDeque<f64>,
    /// When results came last, as long as others are under way behind them.
    last: Option<Instant>,
}

/// Adds to the last few of something.
pub(super) fn remember<T>(last: &mut VecDeque<T>, new: T) {
    if last.len() == RECENT {
        last.pop_front();
    }
    last.push_back(new);
}

impl Pace {
    /// Whether there has been one.
    pub(super) fn is_known(&self) -> bool {
        !self.recent.is_empty()
    }

    /// Nothing is under way any more: until the next results there is a pause.
    pub(super) fn pause(&mut self) {
        self.last = None;
    }

    /// Seconds of a run: the median, because results that were late come together with those behind them. 0 before there is one.
    pub(super) fn step(&self) -> f64 {
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    /// Takes note of results that have come. Behind the last ones under way there is no run, but a pause.
    pub(super) fn note(&mut self, now: Instant, more_are_under_way: bool) {
        let before = std::mem::replace(&mut self.last, more_are_under_way.then_some(now));
        let Some(before) = before else { return };
        remember(&mut self.recent, now.duration_since(before).as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_step_takes_neither_the_pause_between_texts_nor_the_way_of_late_ids() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut pace = Pace::default();
        assert_eq!(pace.step(), 0.0);
        pace.note(start, true);
        pace.note(start + ms(10), false);
        // The next text.
        pace.note(start + ms(500), true);
        assert_eq!(pace.step(), 0.01);
        // Too few are under way: four come together, and then nothing for the way there and back.
        for burst in 1..4 {
            (0..4).for_each(|i| pace.note(start + ms(500 + 100 * burst + 10 * i), true));
        }
        assert_eq!(pace.step(), 0.01);
        // Steps become slower.
        (0..6).for_each(|i| pace.note(start + ms(900 + 20 * i), true));
        assert_eq!(pace.step(), 0.02);
    }
}
