//! What a server counts and measures, for Prometheus.
//!
//! Labels take few values: devices, kinds, and names that clients have proven, of which only the first [`METRICS_NAMES`] have metrics
//! of their own. No secret, ticket, path or address of a client is among them.

pub(crate) mod http;

use crate::accounts::ANONYMOUS;
use crate::limits::METRICS_NAMES;
use crate::lock;
use crate::server::Shared;
use outboard_core::Error;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What names beyond [`METRICS_NAMES`] are called.
const OTHER: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDevice {
    device: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClient {
    client: Arc<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBoth {
    device: String,
    client: Arc<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClientBytesLabels {
    client: Arc<String>,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerBytesLabels {
    peer: Arc<String>,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    protocol: String,
}

/// Seconds from 10 us on, each bucket four times the one before.
type Times<S> = Family<S, Histogram, fn() -> Histogram>;

fn times() -> Histogram {
    Histogram::new(exponential_buckets(1e-5, 4.0, 12))
}

/// Names that have metrics of their own.
#[derive(Debug, Default)]
struct Names(Mutex<HashSet<Arc<String>>>);

impl Names {
    fn label(&self, name: &str) -> Arc<String> {
        let mut known = lock(&self.0);
        if let Some(name) = known.get(&name.to_owned()) {
            return name.clone();
        }
        if known.len() >= METRICS_NAMES {
            return Arc::new(OTHER.to_owned());
        }
        let name = Arc::new(name.to_owned());
        known.insert(name.clone());
        name
    }
}

/// What a server counts and measures.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    clients: Names,
    peers: Names,
    opened: Counter,
    executed: Family<OfBoth, Counter>,
    compute: Times<OfDevice>,
    transfers: Times<OfKind>,
    depth: Family<OfDevice, Gauge>,
    client_bytes: Family<ClientBytesLabels, Counter>,
    peer_bytes: Family<PeerBytesLabels, Counter>,
    errors: Family<OfKind, Counter>,
    refused: Family<OfReason, Counter>,
    blobs: Family<OfKind, Counter>,
    blob_bytes: Family<OfKind, Counter>,
    now: Now,
}

/// What is looked at when somebody asks.
#[derive(Debug, Default)]
struct Now {
    connections: Gauge,
    links: Gauge,
    draining: Gauge,
    sessions: Family<OfClient, Gauge>,
    total: Family<OfDevice, Gauge>,
    free: Family<OfDevice, Gauge>,
    used: Family<OfBoth, Gauge>,
}

/// What one session's queue on one device adds to.
#[derive(Clone, Debug)]
pub(crate) struct QueueMeter {
    executed: Counter,
    compute: Histogram,
    /// Commands that wait for the device or for their answers to be read.
    pub(crate) depth: Gauge,
}

impl QueueMeter {
    /// A graph was run.
    pub(crate) fn executed(&self, start: Instant, end: Instant) {
        self.executed.inc();
        self.compute.observe(end.saturating_duration_since(start).as_secs_f64());
    }
}

/// Bytes of one client.
#[derive(Debug)]
pub(crate) struct ByteMeter {
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
}

/// Measures a transfer until it is dropped.
#[derive(Debug)]
pub(crate) struct Timer {
    start: Instant,
    times: Histogram,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.times.observe(self.start.elapsed().as_secs_f64());
    }
}

/// Registers metrics.
struct Book(Registry);

impl Book {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn unit<M: Metric + Clone>(&mut self, name: &str, help: &str, unit: Unit, metric: M) -> M {
        self.0.register_with_unit(name, help, unit, metric.clone());
        metric
    }
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut b = Book(Registry::with_prefix("outboard"));
        let build: Family<Build, Gauge> =
            b.add("build_info", "Version and protocol versions, always 1", Family::default());
        let protocol = format!("{}-{}", outboard_proto::MIN_VERSION, outboard_proto::MAX_VERSION);
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION"), protocol }).set(1);
        let bytes = || Unit::Bytes;
        let now = Now {
            connections: b.add("connections", "Connections that are open", Gauge::default()),
            links: b.add("peer_links", "Links to other servers that are open", Gauge::default()),
            draining: b.add("draining", "1 while no new sessions are taken because the server stops", Gauge::default()),
            sessions: b.add("sessions", "Sessions that are open, by client", Family::default()),
            total: b.unit("device_memory_total", "Memory that clients may take", bytes(), Family::default()),
            free: b.unit("device_memory_free", "Memory that is free", bytes(), Family::default()),
            used: b.unit("client_memory", "Memory that clients have on devices", bytes(), Family::default()),
        };
        Metrics {
            opened: b.add("sessions_opened", "Sessions that were opened", Counter::default()),
            executed: b.add("executed_graphs", "Graphs that devices have run", Family::default()),
            compute: b.unit(
                "graph_compute",
                "Time that devices took for graphs",
                Unit::Seconds,
                Family::new_with_constructor(times),
            ),
            transfers: b.unit(
                "transfer",
                "Time of uploads and downloads of more than 64 KiB, and of tensors to other servers",
                Unit::Seconds,
                Family::new_with_constructor(times),
            ),
            depth: b.add("queue_depth", "Commands that wait for the device or for their answers", Family::default()),
            client_bytes: b.unit("client_transferred", "Bytes to and from clients", bytes(), Family::default()),
            peer_bytes: b.unit("peer_transferred", "Bytes to and from other servers", bytes(), Family::default()),
            errors: b.add("errors", "Errors that clients were answered with, by blame", Family::default()),
            refused: b.add("refused", "Connections and sessions that were refused, by reason", Family::default()),
            blobs: b.add("cache_blobs", "Weights that clients asked for, by whether they were here", Family::default()),
            blob_bytes: b.unit("cache", "Bytes of those weights", bytes(), Family::default()),
            clients: Names::default(),
            peers: Names::default(),
            now,
            registry: b.0,
        }
    }

    /// A session was opened.
    pub(crate) fn opened(&self) {
        self.opened.inc();
    }

    /// The meter of a queue.
    pub(crate) fn queue(&self, device: &str, client: Option<&str>) -> QueueMeter {
        let of = OfDevice { device: device.to_owned() };
        let client = self.clients.label(client.unwrap_or(ANONYMOUS));
        QueueMeter {
            executed: self.executed.get_or_create_owned(&OfBoth { device: of.device.clone(), client }),
            compute: self.compute.get_or_create_owned(&of),
            depth: self.depth.get_or_create_owned(&of),
        }
    }

    /// The meter of a client's connection.
    pub(crate) fn client(&self, name: Option<&str>) -> ByteMeter {
        let client = self.clients.label(name.unwrap_or(ANONYMOUS));
        let counter =
            |direction| self.client_bytes.get_or_create_owned(&ClientBytesLabels { client: client.clone(), direction });
        ByteMeter { sent: counter("sent"), received: counter("received") }
    }

    /// Counts bytes to another server. To be asked for once it has proven to be one, because clients choose the addresses.
    pub(crate) fn to_peer(&self, address: &str) -> Counter {
        self.peer_bytes.get_or_create_owned(&PeerBytesLabels { peer: self.peers.label(address), direction: "sent" })
    }

    /// Counts bytes from another server.
    pub(crate) fn received_from(&self, address: &str) -> Counter {
        self.peer_bytes.get_or_create_owned(&PeerBytesLabels { peer: self.peers.label(address), direction: "received" })
    }

    /// Measures a transfer from now on.
    pub(crate) fn transfer(&self, kind: &'static str) -> Timer {
        Timer { start: Instant::now(), times: self.transfers.get_or_create_owned(&OfKind { kind }) }
    }

    /// A client was answered with an error.
    pub(crate) fn error(&self, error: &Error) {
        let kind = match error {
            Error::Peer { .. } => "peer",
            Error::Request(_) => "request",
            Error::Device { .. } => "device",
            Error::OutOfMemory { .. } => "out_of_memory",
            Error::Timeout { .. } => "timeout",
            Error::Cancelled => "cancelled",
            Error::Misuse(_) => "misuse",
        };
        self.errors.get_or_create(&OfKind { kind }).inc();
    }

    /// Something came that cannot be decoded.
    pub(crate) fn undecodable(&self) {
        self.errors.get_or_create(&OfKind { kind: "undecodable" }).inc();
    }

    /// A connection or a session was refused.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&OfReason { reason }).inc();
    }

    /// Somebody asked for a blob.
    pub(crate) fn blob(&self, here: bool, bytes: u64) {
        let kind = if here { "hit" } else { "miss" };
        self.blobs.get_or_create(&OfKind { kind }).inc();
        self.blob_bytes.get_or_create(&OfKind { kind }).inc_by(bytes);
    }

    /// All of it, as text.
    fn render(&self, shared: &Shared) -> Result<String, std::fmt::Error> {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let count = |n: usize| number(n as u64);
        let now = &self.now;
        now.connections.set(count(shared.open_connections()));
        now.links.set(count(shared.peers.open_links()));
        now.draining.set(shared.draining.load(Ordering::Relaxed).into());
        let mut sessions: HashMap<Arc<String>, i64> = HashMap::new();
        for session in lock(&shared.sessions).values() {
            *sessions.entry(self.clients.label(session.account.name().unwrap_or(ANONYMOUS))).or_default() += 1;
        }
        now.sessions.clear();
        for (client, n) in sessions {
            now.sessions.get_or_create(&OfClient { client }).set(n);
        }
        now.used.clear();
        for device in shared.devices.all() {
            let of = OfDevice { device: device.info().name.clone() };
            if let Ok(memory) = device.memory() {
                now.total.get_or_create(&of).set(number(memory.total));
                now.free.get_or_create(&of).set(number(memory.free));
            }
            for (name, bytes) in shared.accounts.memory(device.uid()) {
                let of = OfBoth { device: of.device.clone(), client: self.clients.label(&name) };
                now.used.get_or_create(&of).inc_by(number(bytes));
            }
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        let metrics = Metrics::new();
        for n in 0..3 * METRICS_NAMES {
            metrics.to_peer(&format!("10.0.0.1:{n}")).inc();
        }
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with("outboard_peer_transferred_bytes_total{")).collect();
        assert_eq!(lines.len(), METRICS_NAMES + 1);
        let rest = format!("{{peer=\"other\",direction=\"sent\"}} {}", 2 * METRICS_NAMES);
        assert!(lines.iter().any(|l| l.ends_with(&rest)), "{}", lines.last().unwrap());
    }

    #[test]
    fn names_cannot_write_lines_of_their_own() {
        let metrics = Metrics::new();
        metrics.client(Some("a\"} 1\nevil 2")).received.inc();
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        assert!(!text.lines().any(|l| l.starts_with("evil")), "{text}");
    }
}
