//! One server: asked for what its devices did, how far away it is, and what went over its link.

use super::monitor::{Next, State};
use super::{Reach, ServerState};
use outboard_core::Device;
use outboard_core::device::TimeRange as Range;
use outboard_core::lock;
use outboard_rpc_client::{NetStats, RemoteDevice, RemoteSpan, RemoteTrace, Tracing};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A server that has not answered for so long is called silent.
const SILENT: Duration = Duration::from_secs(3);
/// Calls of which the shortest maps the server's clock and is called the round trip.
const CALLS: usize = 8;

/// What is known of a server.
#[derive(Debug)]
pub(super) struct Polled {
    endpoint: String,
    reach: Option<Reach>,
    /// When it was asked what it has not answered yet.
    asked: Option<Instant>,
    /// Which session the rest is of, by a device of it.
    of: Option<u64>,
    /// The last calls, without their spans.
    calls: VecDeque<RemoteTrace>,
    /// From when to when all is known that its devices did.
    known: Option<Range>,
    bytes: NetStats,
    /// When that was so.
    counted: Option<Instant>,
    bytes_per_second: Option<NetStats>,
}

/// Asks a server for as long as somebody looks, until the end.
pub(super) fn watch(state: &State, place: usize) {
    let Some(polled) = state.servers.get(place) else { return };
    loop {
        match state.next() {
            Next::Ask => {
                ask(state, place);
                state.pause();
            }
            Next::Rest => {
                if let Some(device) = state.devices_of(Some(place)).first() {
                    let _ = RemoteDevice::of(device.as_ref()).map(|remote| remote.trace(Tracing::Stop));
                }
                lock(polled).rests();
                state.rest();
            }
            Next::End => return,
        }
    }
}

fn ask(state: &State, place: usize) {
    let Some(polled) = state.servers.get(place) else { return };
    let devices = state.devices_of(Some(place));
    let Some(remote) = devices.first().and_then(|device| RemoteDevice::of(device.as_ref())) else {
        lock(polled).is_gone();
        return state.forget_memory(place);
    };
    let start = Instant::now();
    lock(polled).asked = Some(start);
    match remote.trace(Tracing::GoOn) {
        Ok(trace) => {
            let bytes = remote.net_stats();
            let spans = lock(polled).answers(remote.uid(), start, trace, bytes);
            state.push_spans(spans.iter().map(|(device, range)| (device.as_str(), *range)));
            state.ask_memory(Some(place));
        }
        Err(error) => {
            lock(polled).is_lost(error.to_string());
            state.forget_memory(place);
        }
    }
}

impl Polled {
    pub(super) fn new(endpoint: String) -> Polled {
        Polled {
            endpoint,
            reach: None,
            asked: None,
            of: None,
            calls: VecDeque::new(),
            known: None,
            bytes: NetStats::default(),
            counted: None,
            bytes_per_second: None,
        }
    }

    /// Nobody asks it for now.
    fn rests(&mut self) {
        *self = Polled { bytes: self.bytes, ..Polled::new(std::mem::take(&mut self.endpoint)) };
    }

    /// Nobody has a connection to it any more. Why may be known.
    fn is_gone(&mut self) {
        match self.reach.take() {
            Some(Reach::Lost(why)) => self.is_lost(why),
            _ => self.is_lost("the connection is lost".into()),
        }
    }

    fn is_lost(&mut self, why: String) {
        self.rests();
        self.reach = Some(Reach::Lost(why));
    }

    /// Takes an answer to what was asked at `start`; gives what its devices worked on, by this process's clock.
    fn answers(&mut self, of: u64, start: Instant, mut trace: RemoteTrace, bytes: NetStats) -> Vec<(String, Range)> {
        if self.of != Some(of) {
            self.rests();
            self.of = Some(of);
        }
        (self.reach, self.asked) = (Some(Reach::Answers), None);
        let spans = std::mem::take(&mut trace.spans);
        // It records from the first question on, and has forgotten some if too many came.
        let since = self.known.filter(|_| trace.dropped == 0).map_or_else(Instant::now, |(since, _)| since);
        self.known = Some((since, start));
        self.count(trace.at, bytes);
        if self.calls.len() >= CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(trace);
        let Some(clock) = self.calls.iter().min_by_key(|call| call.error) else { return Vec::new() };
        let is_work = |span: &RemoteSpan| matches!(span.what.as_str(), "execute" | "copy" | "fill");
        let here = |span: RemoteSpan| Some((span.device, (clock.local(span.start_us)?, clock.local(span.end_us)?)));
        spans.into_iter().filter(is_work).filter_map(here).collect()
    }

    fn count(&mut self, at: Instant, bytes: NetStats) {
        let passed = self.counted.map(|before| at.saturating_duration_since(before).as_secs_f64());
        self.bytes_per_second = passed.filter(|passed| *passed > 0.0).map(|passed| {
            let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / passed) as u64;
            NetStats {
                sent_bytes: rate(bytes.sent_bytes, self.bytes.sent_bytes),
                recv_bytes: rate(bytes.recv_bytes, self.bytes.recv_bytes),
                peer_bytes: rate(bytes.peer_bytes, self.bytes.peer_bytes),
            }
        });
        (self.bytes, self.counted) = (bytes, Some(at));
    }

    /// From when to when all is known that its devices did, if it answers.
    pub(super) fn known(&self) -> Option<Range> {
        self.known.filter(|_| self.reach == Some(Reach::Answers))
    }

    pub(super) fn state(&self, now: Instant) -> ServerState {
        let silent = self.asked.map(|asked| now.saturating_duration_since(asked)).filter(|for_| *for_ > SILENT);
        let round_trip = self.calls.iter().map(|call| call.error * 2).min();
        ServerState {
            endpoint: self.endpoint.clone(),
            reach: silent.map(Reach::Silent).or_else(|| self.reach.clone()),
            round_trip,
            bytes: self.bytes,
            bytes_per_second: self.bytes_per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(at: Instant, error_us: u64, dropped: u64) -> RemoteTrace {
        let span = |what: &str, start_us, end_us| RemoteSpan {
            queue: 1,
            device: "host:1/CPU0".into(),
            what: what.into(),
            start_us,
            end_us,
        };
        let spans = vec![span("execute", 1_000, 3_000), span("wait", 3_000, 4_000)];
        RemoteTrace { spans, dropped, now_us: 5_000, at, error: Duration::from_micros(error_us) }
    }

    fn bytes(sent_bytes: u64) -> NetStats {
        NetStats { sent_bytes, ..NetStats::default() }
    }

    #[test]
    fn a_server_is_known_from_its_first_answer_on() {
        let mut polled = Polled::new("host:1".into());
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        assert_eq!((polled.known(), polled.state(zero).reach), (None, None));
        polled.asked = Some(at(0));
        assert_eq!(polled.state(at(4_000)).reach, Some(Reach::Silent(Duration::from_secs(4))));
        let spans = polled.answers(1, at(0), answer(at(10), 500, 0), bytes(1_000));
        // What it worked on, by this clock: its 5 ms are our 10.
        assert_eq!(spans, [("host:1/CPU0".to_owned(), (at(6), at(8)))]);
        let since = polled.known().unwrap().0;
        polled.answers(1, at(1_000), answer(at(1_010), 900, 0), bytes(3_000));
        assert_eq!(polled.known(), Some((since, at(1_000))));
        let state = polled.state(at(1_020));
        assert_eq!((state.reach, state.round_trip), (Some(Reach::Answers), Some(Duration::from_millis(1))));
        assert_eq!(state.bytes_per_second, Some(bytes(2_000)));
        // Some is missing, so that only what comes from now on counts.
        polled.answers(1, at(2_000), answer(at(2_010), 900, 1), bytes(3_000));
        assert!(polled.known().unwrap().0 > since);
        polled.is_lost("gone".into());
        let state = polled.state(at(2_020));
        assert_eq!((state.reach, state.round_trip), (Some(Reach::Lost("gone".into())), None));
        assert_eq!((polled.known(), state.bytes_per_second), (None, None));
        polled.is_gone();
        assert_eq!(polled.state(at(2_020)).reach, Some(Reach::Lost("gone".into())));
        // It has come back, with another clock.
        polled.answers(2, at(3_000), answer(at(3_010), 900, 0), bytes(10));
        assert_eq!(polled.state(at(3_020)).round_trip, Some(Duration::from_micros(1_800)));
        assert_eq!(polled.state(at(3_020)).bytes_per_second, None);
    }
}
