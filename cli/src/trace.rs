//! What every device did and when, here and on the servers, by this process's clock.
//!
//! Local devices tell it through their `Host`; servers are asked once a second, and map their clocks to ours by the middle of a
//! call (as NTP does, RFC 5905 section 8), of which the shortest of the last few is taken: it is the least wrong.

mod chrome;
mod times;

pub(crate) use times::{LastLayer, TokenTime, time_lines};

use anyhow::{Context, Result};
use outboard_core::Host;
use outboard_core::{Device, at_once};
use outboard_rpc_client::{RemoteDevice, RemoteSpan, RemoteTrace, Tracing};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two questions to a server, which keeps some seconds' worth.
const FETCH_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the bytes that went over a link.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// Calls of which the shortest maps a server's clock: few enough that clocks do not drift apart in the meantime.
const CLOCK_CALLS: usize = 8;
/// Spans that are kept, of all devices: about 100 MB, half an hour of decoding.
const MAX_SPANS: usize = 1 << 20;
/// Samples of bytes that are kept: three hours of one link.
const MAX_SAMPLES: usize = 1 << 20;

/// One command that a queue has run.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// The device's id.
    pub(crate) device: Arc<str>,
    pub(crate) queue: u64,
    pub(crate) what: Arc<str>,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// Bytes over the link to a server until a moment.
#[derive(Clone, Debug)]
struct Sample {
    /// Number of the endpoint.
    link: usize,
    at: Instant,
    sent: u64,
    received: u64,
}

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    spans: Vec<Span>,
    samples: Vec<Sample>,
    /// Endpoints, by number.
    links: Vec<String>,
    /// Spans that are missing.
    dropped: u64,
    /// Why a server has told nothing.
    pub(crate) errors: Vec<String>,
}

/// What is recorded of the links to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Bytes that have gone over them, many times a second.
    Sampled,
    /// Nothing.
    Left,
}

/// Records what devices do; one for a `Host`.
pub(crate) struct Tracer(Arc<Local>);

/// Records until it is finished.
pub(crate) struct Recording {
    stop: Sender<()>,
    thread: JoinHandle<Trace>,
    local: Arc<Local>,
}

/// What local devices do.
#[derive(Default)]
struct Local {
    on: AtomicBool,
    spans: Mutex<(Vec<Span>, u64)>,
}

impl Tracer {
    /// Listens to the devices of `host`, which tells one listener.
    pub(crate) fn new(host: &Host) -> Tracer {
        let local = Arc::new(Local::default());
        let to = local.clone();
        host.set_trace(move |e| {
            if to.on.load(Ordering::Relaxed) && e.what != "signal" {
                let (device, what) = (e.device.into(), e.what.into());
                let span = Span { device, queue: e.queue, what, start: e.start, end: e.end };
                let mut spans = to.spans.lock().unwrap_or_else(PoisonError::into_inner);
                if spans.0.len() < MAX_SPANS { spans.0.push(span) } else { spans.1 += 1 }
            }
        });
        Tracer(local)
    }

    /// Begins to record what `devices` do, and the local ones. One recording at a time.
    pub(crate) fn start(&self, devices: &[Arc<dyn Device>], links: Links) -> Result<Recording> {
        let local = self.0.clone();
        *local.spans.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        local.on.store(true, Ordering::Relaxed);
        let mut collector = Collector::new(outboard::devices::one_of_each_server(devices));
        // Before this returns, so that what is enqueued next is recorded.
        collector.fetch(Tracing::GoOn);
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || {
                let mut fetched = Instant::now();
                let every = match links {
                    Links::Sampled => SAMPLE_EVERY,
                    Links::Left => FETCH_EVERY,
                };
                while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    if links == Links::Sampled {
                        collector.sample();
                    }
                    if fetched.elapsed() >= FETCH_EVERY {
                        collector.fetch(Tracing::GoOn);
                        fetched = Instant::now();
                    }
                }
                collector.fetch(Tracing::Stop);
                collector.trace
            })
            .context("no thread for the trace")?;
        Ok(Recording { stop, thread, local })
    }
}

impl Recording {
    /// Ends the recording and gives what there is.
    pub(crate) fn finish(self) -> Trace {
        drop(self.stop);
        let mut trace = self.thread.join().unwrap_or_default();
        self.local.on.store(false, Ordering::Relaxed);
        let mut local = self.local.spans.lock().unwrap_or_else(PoisonError::into_inner);
        trace.dropped += local.1;
        trace.spans.append(&mut local.0);
        drop(local);
        trace.spans.sort_by_key(|s| s.start);
        trace
    }
}

impl Trace {
    /// Writes the file that <https://ui.perfetto.dev> and `chrome://tracing` show. `phases` are spans of this process.
    pub(crate) fn write(&self, path: &Path, phases: &[(&str, Instant, Instant)]) -> Result<()> {
        chrome::write(self, path, phases).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Asks servers.
struct Collector {
    servers: Vec<Server>,
    trace: Trace,
}

struct Server {
    device: Arc<dyn Device>,
    /// The last calls.
    clocks: VecDeque<RemoteTrace>,
    /// It has not answered; it is not asked again.
    failed: bool,
}

impl Collector {
    fn new(devices: Vec<Arc<dyn Device>>) -> Collector {
        let endpoint = |d: &Arc<dyn Device>| RemoteDevice::of(d.as_ref()).map(|r| r.endpoint().to_string());
        let links = devices.iter().filter_map(endpoint).collect();
        let server = |device| Server { device, clocks: VecDeque::new(), failed: false };
        Collector { servers: devices.into_iter().map(server).collect(), trace: Trace { links, ..Trace::default() } }
    }

    fn fetch(&mut self, then: Tracing) {
        let ask = |server: &Server| {
            let remote = RemoteDevice::of(server.device.as_ref()).filter(|_| !server.failed)?;
            Some(remote.trace(then))
        };
        let answers = at_once(&self.servers, ask);
        for (server, answer) in self.servers.iter_mut().zip(answers) {
            match answer {
                Some(Ok(answer)) => server.take(answer, &mut self.trace),
                Some(Err(e)) => {
                    server.failed = true;
                    self.trace.errors.push(e.to_string());
                }
                None => {}
            }
        }
    }

    fn sample(&mut self) {
        let at = Instant::now();
        for (link, server) in self.servers.iter().enumerate() {
            let Some(remote) = RemoteDevice::of(server.device.as_ref()) else { continue };
            if self.trace.samples.len() < MAX_SAMPLES {
                let stats = remote.own_net_stats();
                self.trace.samples.push(Sample { link, at, sent: stats.sent_bytes, received: stats.recv_bytes });
            }
        }
    }
}

impl Server {
    fn take(&mut self, mut answer: RemoteTrace, trace: &mut Trace) {
        let spans = std::mem::take(&mut answer.spans);
        trace.dropped += answer.dropped;
        if self.clocks.len() >= CLOCK_CALLS {
            self.clocks.pop_front();
        }
        self.clocks.push_back(answer);
        let Some(clock) = self.clocks.iter().min_by_key(|c| c.error) else { return };
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut name = |text: &str| {
            let known = names.iter().find(|n| ***n == *text).cloned();
            known.unwrap_or_else(|| {
                names.push(text.into());
                names.last().cloned().unwrap_or_default()
            })
        };
        for RemoteSpan { queue, device, what, start_us, end_us } in spans {
            let times = clock.local(start_us).zip(clock.local(end_us));
            match times.filter(|_| trace.spans.len() < MAX_SPANS) {
                Some((start, end)) => {
                    trace.spans.push(Span { device: name(&device), queue, what: name(&what), start, end });
                }
                None => trace.dropped += 1,
            }
        }
    }
}
