//! What a session's queues did and when, for the client that wants to know where its time goes.
//!
//! Nothing is kept until the client has asked, and no more than a bounded number of spans that it has not fetched.

use crate::lock;
use crate::metrics::QueueMeter;
use outboard_core::{Queue, Result};
use outboard_proto::limits::MAX_TRACE_SPANS;
use outboard_proto::v1;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The recorder of a session.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Zero of the clock.
    start: Instant,
    on: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// When recording began; `None` while it is off.
    since: Option<Instant>,
    spans: VecDeque<Span>,
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Span {
    queue: u64,
    device: Arc<str>,
    what: &'static str,
    start_us: u64,
    end_us: u64,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { start: Instant::now(), on: AtomicBool::new(false), kept: Mutex::default() }
    }
}

impl Trace {
    /// Watches a queue that is opened under `handle`, and counts the graphs that it runs.
    pub(crate) fn watch(
        self: &Arc<Self>,
        queue: &dyn Queue,
        handle: u64,
        device: &str,
        meter: QueueMeter,
    ) -> Result<()> {
        let (trace, device) = (self.clone(), Arc::<str>::from(device));
        queue.set_trace(Box::new(move |e| {
            if e.what == "execute" {
                meter.executed(e.start, e.end);
            }
            // Signals take no time, and there are many.
            if trace.on.load(Ordering::Relaxed) && e.what != "signal" {
                trace.record(handle, &device, e.what, e.start, e.end);
            }
        }))
    }

    fn record(&self, queue: u64, device: &Arc<str>, what: &'static str, start: Instant, end: Instant) {
        let device = device.clone();
        let span = Span { queue, device, what, start_us: self.us(start), end_us: self.us(end) };
        let mut kept = lock(&self.kept);
        // What began before recording did is not part of it; a call may have ended it in between.
        if kept.since.is_none_or(|since| start < since) {
            return;
        }
        if kept.spans.len() >= MAX_TRACE_SPANS {
            kept.spans.pop_front();
            kept.dropped += 1;
        }
        kept.spans.push_back(span);
    }

    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }

    /// Gives what was recorded and forgets it; `record` says whether to go on.
    pub(crate) fn fetch(&self, record: bool) -> v1::TraceResponse {
        let kept = {
            let mut kept = lock(&self.kept);
            self.on.store(record, Ordering::Relaxed);
            let since = record.then(|| kept.since.unwrap_or_else(Instant::now));
            std::mem::replace(&mut *kept, Kept { since, ..Kept::default() })
        };
        let mut queues: BTreeMap<u64, v1::QueueTrace> = BTreeMap::new();
        for Span { queue, device, what, start_us, end_us } in kept.spans {
            let new = || v1::QueueTrace { queue, device: device.to_string(), spans: Vec::new() };
            let span = v1::TraceSpan { what: what.to_owned(), start_us, end_us };
            queues.entry(queue).or_insert_with(new).spans.push(span);
        }
        let queues = queues.into_values().collect();
        v1::TraceResponse { now_us: self.us(Instant::now()), queues, dropped: kept.dropped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// In the future, so that it comes after any call.
    fn record(trace: &Trace, queue: u64, at_ms: u64) {
        let at = trace.start + Duration::from_secs(1000) + Duration::from_millis(at_ms);
        trace.record(queue, &"CPU0".into(), "execute", at, at + Duration::from_millis(1));
    }

    #[test]
    fn nothing_is_kept_unless_asked_and_then_given_once() {
        let trace = Trace::default();
        record(&trace, 1, 0);
        assert!(trace.fetch(true).queues.is_empty());
        record(&trace, 1, 5);
        record(&trace, 2, 7);
        trace.record(2, &"CPU0".into(), "execute", trace.start, Instant::now());
        let got = trace.fetch(false);
        assert_eq!(got.queues.iter().map(|q| (q.queue, q.spans.len())).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
        let span = &got.queues[0].spans[0];
        assert_eq!((span.what.as_str(), span.start_us, span.end_us), ("execute", 1_000_005_000, 1_000_006_000));
        record(&trace, 1, 9);
        assert_eq!(trace.fetch(true).queues, []);
    }

    #[test]
    fn a_client_that_does_not_fetch_loses_the_oldest() {
        let trace = Trace::default();
        trace.fetch(true);
        (0..MAX_TRACE_SPANS as u64 + 3).for_each(|i| record(&trace, 1, i));
        let got = trace.fetch(true);
        assert_eq!((got.dropped, got.queues[0].spans.len()), (3, MAX_TRACE_SPANS));
        assert_eq!((got.queues[0].spans[0].start_us, trace.fetch(true).dropped), (1_000_003_000, 0));
    }
}
