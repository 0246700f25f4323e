//! What a server counts and measures, for Prometheus, as rpc-server does. No text, key or address of a client is among it.

use crate::texts::Engine;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAnswer {
    path: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEnd {
    end: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Seconds from 1 ms on, each bucket twice the one before.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(1e-3, 2.0, 18))
}

/// What a server counts and measures.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OfAnswer, Counter>,
    texts: Family<OfEnd, Counter>,
    refused: Family<OfReason, Counter>,
    prompt_tokens: Counter,
    tokens: Counter,
    wait: Histogram,
    first: Histogram,
    each: Histogram,
    connections: Gauge,
    waiting: Gauge,
    running: Gauge,
    slots: Gauge,
}

/// Registers metrics.
struct Book(Registry);

impl Book {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn seconds(&mut self, name: &str, help: &str) -> Histogram {
        let metric = times();
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut b = Book(Registry::with_prefix("outboard_serve"));
        let build: Family<Build, Gauge> = b.add("build_info", "Version, always 1", Family::default());
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
        Metrics {
            requests: b.add("requests", "Requests that were answered", Family::default()),
            texts: b.add("texts", "Texts that have ended, by how", Family::default()),
            refused: b.add("refused", "Requests and connections that were refused, by reason", Family::default()),
            prompt_tokens: b.add("prompt_tokens", "Tokens of prompts whose texts are done", Counter::default()),
            tokens: b.add("tokens", "Tokens that were generated, of texts that are done", Counter::default()),
            wait: b.seconds("wait", "Time until a text had a place"),
            first: b.seconds("first_token", "Time from a request to the first token of a text"),
            each: b.seconds("token", "Mean time of a text's tokens behind the first"),
            connections: b.add("connections", "Connections that are open", Gauge::default()),
            waiting: b.add("waiting", "Texts that wait for a place", Gauge::default()),
            running: b.add("running", "Texts that have a place", Gauge::default()),
            slots: b.add("slots", "Places for texts", Gauge::default()),
            registry: b.0,
        }
    }

    pub(crate) fn request(&self, path: &'static str, status: u16) {
        self.requests.get_or_create(&OfAnswer { path, status }).inc();
    }

    pub(crate) fn ended(&self, end: &'static str) {
        self.texts.get_or_create(&OfEnd { end }).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&OfReason { reason }).inc();
    }

    pub(crate) fn tokens(&self, prompt: usize, generated: usize, decode: Duration) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.tokens.inc_by(generated as u64);
        if generated > 1 {
            self.each.observe(decode.as_secs_f64() / (generated - 1) as f64);
        }
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.wait.observe(time.as_secs_f64());
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first.observe(time.as_secs_f64());
    }

    /// One connection more, or less.
    pub(crate) fn connection(&self, change: i64) {
        self.connections.inc_by(change);
    }

    /// All of it, as OpenMetrics has it.
    pub(crate) fn render(&self, engine: &Engine) -> Result<String, fmt::Error> {
        let (waiting, free, slots) = (engine.queue.waiting(), engine.queue.free(), engine.runner.plan().sequences);
        self.waiting.set(signed(waiting));
        self.slots.set(signed(slots));
        self.running.set(signed(slots.saturating_sub(free)));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
