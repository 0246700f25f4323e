//! Where the time of tokens went: from what devices worked on, and when texts were under way.

use super::TokenTime;
use outboard_core::device::{TimeRange as Range, TimeShares, covered};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Times of tokens are means over so long.
pub(super) const WINDOW: Duration = Duration::from_secs(5);
/// What began longer ago than this has ended and is known, mostly.
pub(super) const SETTLED: Duration = Duration::from_secs(1);
/// What is older is forgotten.
const KEPT: Duration = Duration::from_secs(15);
/// Spans of a device, and tokens, that are kept.
const MOST: usize = 1 << 16;

/// What devices worked on, by id.
#[derive(Debug, Default)]
pub(super) struct Spans(HashMap<String, VecDeque<Range>>);

impl Spans {
    pub(super) fn push(&mut self, device: &str, range: Range) {
        let spans = match self.0.get_mut(device) {
            Some(spans) => spans,
            None => self.0.entry(device.to_owned()).or_default(),
        };
        forget(spans, range.1, |range| range.1);
        spans.push_back(range);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn of(&self, device: &str) -> impl Iterator<Item = Range> {
        self.0.get(device).into_iter().flatten().copied()
    }
}

/// When texts were under way, and when tokens came.
#[derive(Debug, Default)]
pub(super) struct Activity {
    since: Option<Instant>,
    past: VecDeque<Range>,
    tokens: VecDeque<Instant>,
}

impl Activity {
    /// From now on texts are under way.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// None is any more.
    pub(super) fn end(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            forget(&mut self.past, now, |range| range.1);
            self.past.push_back((since, now));
        }
    }

    /// A token has come.
    pub(super) fn token(&mut self, now: Instant) {
        forget(&mut self.tokens, now, |at| *at);
        self.tokens.push_back(now);
    }

    /// How many have come between two moments.
    pub(super) fn tokens(&self, (from, to): Range) -> usize {
        self.tokens.iter().filter(|at| **at >= from && **at < to).count()
    }

    /// When texts were under way between two moments.
    fn ranges(&self, window: Range) -> Vec<Range> {
        let now = self.since.map(|since| (since, window.1.max(since)));
        self.past.iter().copied().chain(now).filter_map(|range| common(range, window)).collect()
    }
}

/// Drops what is older than anybody asks for.
fn forget<T>(kept: &mut VecDeque<T>, now: Instant, at: impl Fn(&T) -> Instant) {
    let is_old = |first: &T| now.saturating_duration_since(at(first)) > KEPT;
    while kept.len() >= MOST || kept.front().is_some_and(is_old) {
        kept.pop_front();
    }
}

fn common(a: Range, b: Range) -> Option<Range> {
    let (from, to) = (a.0.max(b.0), a.1.min(b.1));
    (from < to).then_some((from, to))
}

/// The mean time of a token within a window, and the parts of it on devices with a part of the model. `None` where that cannot be said: no token has come,
/// or a device has not told what it did.
pub(super) fn token_times(
    spans: &Spans,
    activity: &Activity,
    devices: &[&str],
    window: Range,
) -> Option<(Duration, Vec<TokenTime>)> {
    let tokens = u32::try_from(activity.tokens(window)).ok().filter(|n| *n > 0)?;
    let active = activity.ranges(window);
    let within = |device: &&str| -> Vec<Range> {
        let clip = |span: Range| active.iter().filter_map(move |range| common(span, *range));
        spans.of(device).flat_map(clip).collect()
    };
    let work: Vec<Vec<Range>> = devices.iter().map(within).collect();
    if work.is_empty() || work.iter().any(Vec::is_empty) {
        return None;
    }
    let total = covered(active);
    let time = |shares: TimeShares| {
        let TimeShares { compute, wire, waiting } = shares;
        TokenTime { compute: compute / tokens, wire: wire / tokens, waiting: waiting / tokens }
    };
    Some((total / tokens, TimeShares::of(total, &work).into_iter().map(time).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_token_add_up_and_idle_time_does_not_count() {
        let zero = Instant::now();
        let ms = |n| zero + Duration::from_millis(n);
        let (mut spans, mut activity) = (Spans::default(), Activity::default());
        // Two texts, 10 to 30 and 50 to 60; three tokens. A computes 4 and 4 and 2, B 3 and 3 and 5, both for 1 at the same time.
        for (from, to) in [(10, 30), (50, 60)] {
            activity.begin(ms(from));
            activity.begin(ms(from + 1));
            activity.end(ms(to));
        }
        [20, 29, 59].into_iter().for_each(|at| activity.token(ms(at)));
        [(6, 14), (20, 24), (50, 52)].into_iter().for_each(|(from, to)| spans.push("A", (ms(from), ms(to))));
        [(15, 18), (23, 26), (40, 45), (53, 58)].into_iter().for_each(|(from, to)| spans.push("B", (ms(from), ms(to))));
        let window = (ms(0), ms(100));
        let (total, times) = token_times(&spans, &activity, &["A", "B"], window).unwrap();
        assert_eq!(total, Duration::from_millis(10));
        let us = |us| Duration::from_micros(us);
        // Covered by any: 10-14, 15-18, 20-26, 50-52, 53-58, which is 20 of 30.
        let (compute, wire, waiting) = (us(10_000) / 3, us(10_000) / 3, us(10_000) / 3);
        assert_eq!(times[0], TokenTime { compute, wire, waiting });
        let (compute, waiting) = (us(11_000) / 3, us(9_000) / 3);
        assert_eq!(times[1], TokenTime { compute, wire, waiting });
        // A device that has told nothing, and a window without a token.
        assert_eq!(token_times(&spans, &activity, &["A", "C"], window), None);
        assert_eq!(token_times(&spans, &activity, &["A", "B"], (ms(30), ms(59))), None);
        // Under way until now.
        activity.begin(ms(90));
        activity.token(ms(95));
        spans.push("A", (ms(90), ms(94)));
        let (total, times) = token_times(&spans, &activity, &["A"], (ms(80), ms(100))).unwrap();
        assert_eq!((total, times[0].compute, times[0].wire), (us(10_000), us(4_000), us(6_000)));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let zero = Instant::now();
        let (mut spans, mut activity) = (Spans::default(), Activity::default());
        for second in 0..60 {
            let at = zero + Duration::from_secs(second);
            spans.push("A", (at, at));
            activity.token(at);
            activity.begin(at);
            activity.end(at);
        }
        let most = 16;
        assert_eq!((spans.of("A").count(), activity.tokens.len(), activity.past.len()), (most, most, most));
        (0..=MOST).for_each(|_| activity.token(zero + Duration::from_secs(60)));
        assert_eq!(activity.tokens.len(), MOST);
    }
}
