//! Where the time of a token went, device by device.

use super::{Span, Trace};
use crate::print;
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

/// From when to when.
type Range = (Instant, Instant);

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
        let any = covered(work.values().flatten().copied().collect());
        let per_token = |time: Duration| print::ms(time) / n as f64;
        let whole = to - from;
        let times = work.into_iter().map(|(device, ranges)| {
            let own = covered(ranges);
            TokenTime {
                device: device.to_string(),
                compute_ms: per_token(own),
                wire_ms: per_token(whole.saturating_sub(any)),
                waiting_ms: per_token(any.saturating_sub(own)),
            }
        });
        let times: Vec<TokenTime> = times.collect();
        (!times.is_empty()).then_some(times)
    }
}

/// How much time ranges cover together.
fn covered(mut ranges: Vec<Range>) -> Duration {
    ranges.sort_unstable();
    let mut sum = Duration::ZERO;
    let mut until: Option<Instant> = None;
    for (start, end) in ranges {
        let start = until.map_or(start, |until| start.max(until));
        if end > start {
            sum += end - start;
            until = Some(end);
        }
    }
    sum
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

    #[test]
    fn three_parts_that_add_up() {
        let t = Instant::now();
        let ms = |n| t + Duration::from_millis(n);
        let span = |device: &str, what: &str, start, end| Span {
            device: device.into(),
            queue: 1,
            what: what.into(),
            start: ms(start),
            end: ms(end),
        };
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
