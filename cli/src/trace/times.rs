//! Where the time of a token went, device by device.

use super::{Span, Trace};
use crate::print;
use outboard_core::device::{TimeRange as Range, TimeShares};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device's part of the time of a token, in milliseconds. The three add up to the whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TokenTime {
    pub(crate) device: String,
    /// It computed.
    pub(crate) compute_ms: f64,
    /// No device computed: what was needed was on its way, or this process was at work.
    pub(crate) wire_ms: f64,
    /// It waited while another device computed.
    pub(crate) waiting_ms: f64,
}

/// Where the last layer of a model is that is on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLayer {
    /// On the device with the first one, which goes on with a token as soon as it has the one before.
    WithFirst,
    Elsewhere,
}

impl Span {
    /// Whether the device worked in this span; waits, and the little that moves bytes for the network, are not work.
    pub(super) fn is_work(&self) -> bool {
        matches!(&*self.what, "execute" | "copy" | "fill")
    }
}

impl Trace {
    /// Where the time of each of `n` tokens went that came between `from` and `to`. `None` where that cannot be said: nothing was
    /// recorded, or not all of it.
    pub(crate) fn token_times(&self, (from, to): Range, n: usize) -> Option<Vec<TokenTime>> {
        if self.dropped > 0 || !self.errors.is_empty() || n == 0 || to <= from {
            return None;
        }
        let mut work: BTreeMap<&Arc<str>, Vec<Range>> = BTreeMap::new();
        for span in self.spans.iter().filter(|s| s.is_work() && s.end > from && s.start < to) {
            work.entry(&span.device).or_default().push((span.start.max(from), span.end.min(to)));
        }
        let per_token = |time: Duration| print::ms(time) / n as f64;
        let (devices, work): (Vec<_>, Vec<_>) = work.into_iter().unzip();
        let time = |(device, shares): (&Arc<str>, TimeShares)| TokenTime {
            device: device.to_string(),
            compute_ms: per_token(shares.compute),
            wire_ms: per_token(shares.wire),
            waiting_ms: per_token(shares.waiting),
        };
        let times: Vec<TokenTime> = devices.into_iter().zip(TimeShares::of(to - from, &work)).map(time).collect();
        (!times.is_empty()).then_some(times)
    }

    /// The milliseconds between `from` and `to` in which no device worked, for each of `n` tokens, by the device whose work came before
    /// and the one whose work came next: `wire_ms`, boundary by boundary.
    pub(crate) fn gaps(&self, (from, to): Range, n: usize) -> BTreeMap<(String, String), f64> {
        let mut gaps = BTreeMap::new();
        let mut last: Option<&Span> = None;
        for span in self.spans.iter().filter(|s| s.is_work()) {
            if let Some(before) = last {
                let gap = span.start.min(to).saturating_duration_since(before.end.max(from));
                if !gap.is_zero() {
                    let boundary = (before.device.to_string(), span.device.to_string());
                    *gaps.entry(boundary).or_default() += print::ms(gap) / n.max(1) as f64;
                }
            }
            if last.is_none_or(|last| span.end > last.end) {
                last = Some(span);
            }
        }
        gaps
    }

    /// From when to when one of the `n` tokens was made that came between `from` and `to`: from the beginning of the work of the
    /// device with the first layer to the same moment of the next token. Of all tokens, the one whose time is the median.
    pub(crate) fn one_token(&self, first: &str, last: LastLayer, (from, to): Range, n: usize) -> Option<Range> {
        let begins = |s: &&Span| &*s.what == "execute" && &*s.device == first && s.start >= from && s.start <= to;
        let spans: Vec<&Span> = self.spans.iter().filter(begins).collect();
        // A device may have several parts of the graph, of which the first comes after the longest pause: or before it, where the last
        // layer is there as well.
        let parts = ((spans.len() as f64 / n.max(1) as f64).round() as usize).max(1);
        let pause = |pair: &[&Span]| match pair {
            [before, next] => next.start.saturating_duration_since(before.end),
            _ => Duration::ZERO,
        };
        let pauses = spans.windows(2).take(parts).map(pause).enumerate();
        let begin = match (parts, last) {
            (1, _) => 0,
            (_, LastLayer::WithFirst) => pauses.max_by_key(|(_, pause)| *pause)?.0,
            (_, LastLayer::Elsewhere) => pauses.max_by_key(|(_, pause)| *pause)?.0 + 1,
        };
        let token = |spans: &[&Span]| Some((spans.first()?.start, spans.last()?.start));
        let mut tokens: Vec<Range> = spans.get(begin..)?.windows(parts + 1).step_by(parts).filter_map(token).collect();
        tokens.sort_by_key(|(start, end)| *end - *start);
        tokens.get(tokens.len() / 2).copied()
    }

    /// What devices worked on between `from` and `to`: the device, and from when to when, in milliseconds behind `from`.
    pub(crate) fn work(&self, (from, to): Range) -> Vec<(&str, f64, f64)> {
        let within = |s: &&Span| s.is_work() && s.end > from && s.start < to;
        let after = |at: Instant| print::ms(at.min(to).saturating_duration_since(from));
        self.spans.iter().filter(within).map(|s| (&*s.device, after(s.start), after(s.end))).collect()
    }
}

/// The times as a line per device, for people.
pub(crate) fn time_lines(times: &[TokenTime]) -> String {
    let width = times.iter().map(|t| t.device.chars().count()).max().unwrap_or(0);
    let one = |t: &TokenTime| {
        let TokenTime { device, compute_ms, wire_ms, waiting_ms } = t;
        format!("{device:width$}  {compute_ms:>7.2} ms compute  {wire_ms:>7.2} ms wire  {waiting_ms:>7.2} ms waiting\n")
    };
    times.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(zero: Instant, device: &str, what: &str, start: u64, end: u64) -> Span {
        let ms = |n| zero + Duration::from_millis(n);
        Span { device: device.into(), queue: 1, what: what.into(), start: ms(start), end: ms(end) }
    }

    #[test]
    fn gaps_are_the_time_on_the_wire_boundary_by_boundary() {
        let t = Instant::now();
        let ms = |n| t + Duration::from_millis(n);
        // A, then B after 2, then A after 3; what is not work does not count.
        let mut spans = Vec::new();
        for token in 0..5 {
            let at = 15 * token;
            let one = [("A", "execute", 0, 6), ("B", "accept", 6, 8), ("B", "execute", 8, 12), ("A", "accept", 12, 15)];
            spans.extend(one.map(|(device, what, start, end)| span(t, device, what, at + start, at + end)));
        }
        let trace = Trace { spans, ..Trace::default() };
        let range = (ms(10), ms(40));
        let gaps = trace.gaps(range, 2);
        let boundary = |a: &str, b: &str| gaps.get(&(a.into(), b.into())).copied();
        assert_eq!((boundary("A", "B"), boundary("B", "A"), gaps.len()), (Some(2.0), Some(3.0), 2));
        let wire = trace.token_times(range, 2).unwrap()[0].wire_ms;
        assert!((gaps.values().sum::<f64>() - wire).abs() < 1e-9, "{wire}");
        let token = trace.one_token("A", LastLayer::Elsewhere, (ms(0), ms(60)), 4).unwrap();
        assert_eq!(token.1 - token.0, Duration::from_millis(15));
        assert_eq!(trace.work(token), [("A", 0.0, 6.0), ("B", 8.0, 12.0)]);
        assert_eq!(trace.one_token("C", LastLayer::Elsewhere, range, 2), None);
    }

    #[test]
    fn a_token_begins_with_the_first_part_of_a_device() {
        let t = Instant::now();
        let ms = |n| t + Duration::from_millis(n);
        // A, B and A again; then C, until the next token.
        let parts = |token: u64| {
            let at = 20 * token;
            [("A", 0, 2), ("B", 3, 4), ("A", 5, 7), ("C", 8, 18)]
                .map(|(device, start, end)| span(t, device, "execute", at + start, at + end))
        };
        let trace = Trace { spans: (0..6).flat_map(parts).collect(), ..Trace::default() };
        // The first part of the first token was before.
        let token = trace.one_token("A", LastLayer::Elsewhere, (ms(4), ms(104)), 5).unwrap();
        assert_eq!(token.1 - token.0, Duration::from_millis(20));
        let work = trace.work(token);
        assert_eq!(work, [("A", 0.0, 2.0), ("B", 3.0, 4.0), ("A", 5.0, 7.0), ("C", 8.0, 18.0)]);
        // A has both ends: it waits for B in the middle.
        let parts = |token: u64| {
            let at = 20 * token;
            [("A", 0, 3), ("B", 4, 15), ("A", 16, 20)]
                .map(|(device, start, end)| span(t, device, "execute", at + start, at + end))
        };
        let trace = Trace { spans: (0..6).flat_map(parts).collect(), ..Trace::default() };
        let token = trace.one_token("A", LastLayer::WithFirst, (ms(4), ms(104)), 5).unwrap();
        assert_eq!(trace.work(token), [("A", 0.0, 3.0), ("B", 4.0, 15.0), ("A", 16.0, 20.0)]);
    }

    #[test]
    fn three_parts_that_add_up() {
        let t = Instant::now();
        let ms = |n| t + Duration::from_millis(n);
        let span = |device: &str, what: &str, start, end| span(t, device, what, start, end);
        // Two tokens from 10 to 30: A computes 4 and 4, B 3 and 3, both for 1 at the same time.
        let spans = vec![
            span("A", "execute", 6, 14),
            span("B", "accept", 10, 15),
            span("B", "execute", 15, 18),
            span("A", "execute", 20, 24),
            span("B", "execute", 23, 26),
            span("A", "execute", 40, 50),
        ];
        let mut trace = Trace { spans, ..Trace::default() };
        let time = |device: &str, compute_ms, wire_ms, waiting_ms| TokenTime {
            device: device.into(),
            compute_ms,
            wire_ms,
            waiting_ms,
        };
        // Covered by any: 10-14, 15-18, 20-26, which is 13 of 20.
        let expected = vec![time("A", 4.0, 3.5, 2.5), time("B", 3.0, 3.5, 3.5)];
        assert_eq!(trace.token_times((ms(10), ms(30)), 2), Some(expected.clone()));
        let lines = time_lines(&expected);
        assert_eq!(lines.lines().next(), Some("A     4.00 ms compute     3.50 ms wire     2.50 ms waiting"));
        assert_eq!(trace.token_times((ms(60), ms(70)), 2), None, "nobody did anything");
        trace.dropped = 1;
        assert_eq!(trace.token_times((ms(10), ms(30)), 2), None, "not all of it is there");
    }
}
