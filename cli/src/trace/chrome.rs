//! A trace as a file of the "Trace Event Format" (JSON), which Perfetto and Chrome show: a row for every device queue, a row for
//! every link between devices, and what went over each connection as a curve.

use super::{Span, Trace};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufWriter, Result, Write};
use std::path::Path;
use std::time::Instant;

/// Process number of this process's own rows.
const CLIENT: usize = 1;
/// Process number of the links between devices.
const LINKS: usize = 2;
/// The first number of a host's devices.
const FIRST_HOST: usize = 3;

/// One event; times in microseconds.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    /// X: a span, C: values of a curve, M: a name of a row.
    ph: &'static str,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

struct Writer<W> {
    out: W,
    zero: Instant,
    /// Whether an event stands before the next one.
    begun: bool,
}

pub(super) fn write(trace: &Trace, path: &Path, phases: &[(&str, Instant, Instant)]) -> Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    write_to(&mut out, trace, phases)?;
    out.flush()
}

fn write_to(out: impl Write, trace: &Trace, phases: &[(&str, Instant, Instant)]) -> Result<()> {
    let first = trace.spans.iter().map(|s| s.start).chain(phases.iter().map(|p| p.1)).min();
    let mut w = Writer { out, zero: first.unwrap_or_else(Instant::now), begun: false };
    w.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    w.name("process_name", CLIENT, 0, "outboard")?;
    w.name("thread_name", CLIENT, 1, "phases")?;
    for &(name, start, end) in phases {
        w.span(name, CLIENT, 1, start, end)?;
    }
    let mut hosts: Vec<&str> = Vec::new();
    // Queues that did something, each with its row.
    let mut rows: HashMap<(&str, u64), (usize, usize)> = HashMap::new();
    for span in &trace.spans {
        let key = (&*span.device, span.queue);
        let next = rows.len() + 1;
        let (pid, tid) = match rows.get(&key) {
            Some(row) => *row,
            None => {
                let (host, device) = span.device.rsplit_once('/').unwrap_or(("this host", &span.device));
                let known = hosts.iter().position(|h| *h == host);
                let number = known.unwrap_or(hosts.len());
                let row = (FIRST_HOST + number, next);
                if known.is_none() {
                    hosts.push(host);
                    w.name("process_name", row.0, 0, host)?;
                }
                w.name("thread_name", row.0, row.1, &format!("{device} queue {}", span.queue))?;
                rows.insert(key, row);
                row
            }
        };
        w.span(&span.what, pid, tid, span.start, span.end)?;
    }
    w.name("process_name", LINKS, 0, "links")?;
    for (tid, (name, ranges)) in links(&trace.spans).iter().enumerate() {
        w.name("thread_name", LINKS, tid + 1, name)?;
        for &(start, end) in ranges {
            w.span("tensor", LINKS, tid + 1, start, end)?;
        }
    }
    let mut last: HashMap<usize, &super::Sample> = HashMap::new();
    for sample in &trace.samples {
        if let (Some(before), Some(link)) = (last.insert(sample.link, sample), trace.links.get(sample.link)) {
            let seconds = (sample.at - before.at).as_secs_f64().max(1e-6);
            let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds / 1e3).round();
            let args =
                json!({"sent": rate(sample.sent, before.sent), "received": rate(sample.received, before.received)});
            let (name, ts) = (format!("{link} kB/s"), Some(w.us(before.at)));
            w.event(&Event { name: &name, ph: "C", pid: LINKS, tid: 0, ts, dur: None, args })?;
        }
    }
    w.out.write_all(b"\n]}\n")
}

impl<W: Write> Writer<W> {
    /// Microseconds since the first event; what came before it, such as a sample, stands there too.
    fn us(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.zero).as_secs_f64() * 1e6
    }

    fn event(&mut self, event: &Event<'_>) -> Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }

    fn span(&mut self, name: &str, pid: usize, tid: usize, start: Instant, end: Instant) -> Result<()> {
        let (ts, dur) = (self.us(start), end.saturating_duration_since(start).as_secs_f64() * 1e6);
        self.event(&Event { name, ph: "X", pid, tid, ts: Some(ts), dur: Some(dur), args: Value::Null })
    }

    fn name(&mut self, kind: &str, pid: usize, tid: usize, name: &str) -> Result<()> {
        self.event(&Event { name: kind, ph: "M", pid, tid, ts: None, dur: None, args: json!({"name": name}) })
    }
}

type Ranges = Vec<(Instant, Instant)>;

/// How long tensors were on their way, by link: from the end of a device's work to the beginning of the work of another one
/// that has had nothing to do in between. It is what the spans tell, whichever way the bytes went.
fn links(spans: &[Span]) -> BTreeMap<String, Ranges> {
    let mut work: Vec<&Span> = spans.iter().filter(|s| &*s.what == "execute").collect();
    work.sort_by_key(|s| s.start);
    let mut links: BTreeMap<String, Ranges> = BTreeMap::new();
    for pair in work.windows(2) {
        let [from, to] = pair else { continue };
        if from.device != to.device && from.end < to.start {
            links.entry(format!("{} to {}", from.device, to.device)).or_default().push((from.end, to.start));
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Sample;
    use std::time::Duration;

    #[test]
    fn rows_for_queues_and_links() {
        let t = Instant::now();
        let ms = |n| t + Duration::from_millis(n);
        let span = |device: &str, queue, what: &str, start, end| Span {
            device: device.into(),
            queue,
            what: what.into(),
            start: ms(start),
            end: ms(end),
        };
        let sample = |at, sent| Sample { link: 0, at: ms(at), sent, received: 0 };
        let trace = Trace {
            spans: vec![
                span("a:1/CPU0", 7, "execute", 0, 4),
                span("a:1/CPU1", 8, "accept", 0, 5),
                span("a:1/CPU1", 8, "execute", 5, 9),
                span("CPU0", 3, "execute", 11, 12),
            ],
            samples: vec![sample(0, 0), sample(10, 50_000)],
            links: vec!["a:1".into()],
            ..Trace::default()
        };
        let mut out = Vec::new();
        write_to(&mut out, &trace, &[("decode", ms(0), ms(12))]).unwrap();
        let file: Value = serde_json::from_slice(&out).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let named = |kind: &str| {
            let of_kind = events.iter().filter(|e| e["name"] == kind);
            of_kind.map(|e| e["args"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(named("process_name"), ["outboard", "a:1", "this host", "links"]);
        assert_eq!(
            named("thread_name"),
            ["phases", "CPU0 queue 7", "CPU1 queue 8", "CPU0 queue 3", "a:1/CPU0 to a:1/CPU1", "a:1/CPU1 to CPU0"]
        );
        let tensors: Vec<_> = events.iter().filter(|e| e["name"] == "tensor").collect();
        assert_eq!((tensors[0]["ts"].as_f64(), tensors[0]["dur"].as_f64()), (Some(4000.0), Some(1000.0)));
        let curve = events.iter().find(|e| e["ph"] == "C").unwrap();
        assert_eq!((curve["name"].as_str(), curve["args"]["sent"].as_f64()), (Some("a:1 kB/s"), Some(5000.0)));
    }
}
