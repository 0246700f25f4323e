//! What a server counts and measures, for Prometheus, as rpc-server does. No text, key or address of a client is among it.

use crate::engine::Engine;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAnswer {
    path: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

/// Labels that depend on how many models there are: with one there is none that names it.
type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Seconds from 1 ms on, each bucket twice the one before.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(1e-3, 2.0, 18))
}

/// What a server counts and measures, of all models.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OfAnswer, Counter>,
    refused: Family<Labels, Counter>,
    connections: Gauge,
}

/// The same of one model.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    /// `None` if there is no other one.
    model: Option<String>,
    texts: Family<Labels, Counter>,
    refused: Family<Labels, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    tokens: Counter,
    wait: Histogram,
    first: Histogram,
    each: Histogram,
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

    fn put(&mut self, name: &str, help: &str, unit: Option<Unit>, metric: impl Metric) {
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, metric),
            None => self.0.register(name, help, metric),
        }
    }

    /// One for each model, with a label where there are several.
    fn each<M: Metric + TypedMetric + Clone>(
        &mut self,
        models: &[&str],
        (name, help, unit): (&'static str, &'static str, Option<Unit>),
        new: fn() -> M,
    ) -> Each<M> {
        if let [_] = models {
            let metric = new();
            self.put(name, help, unit, metric.clone());
            return Each::Only(metric);
        }
        let family = Family::new_with_constructor(new);
        self.put(name, help, unit, family.clone());
        Each::Labelled(family)
    }
}

/// A metric of each model.
enum Each<M> {
    /// There is one model.
    Only(M),
    Labelled(Family<OfModel, M>),
}

impl<M: Clone> Each<M> {
    fn of(&self, model: &str) -> M {
        match self {
            Each::Only(metric) => metric.clone(),
            Each::Labelled(family) => family.get_or_create(&OfModel { model: model.to_owned() }).clone(),
        }
    }
}

impl Metrics {
    /// Of these models: what is counted of all, and of each.
    pub(crate) fn new(models: &[&str]) -> (Metrics, Vec<ModelMetrics>) {
        let mut b = Book(Registry::with_prefix("outboard_serve"));
        let build: Family<Build, Gauge> = b.add("build_info", "Version, always 1", Family::default());
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
        let requests = b.add("requests", "Requests that were answered", Family::default());
        let texts: Family<Labels, Counter> = b.add("texts", "Texts that have ended, by how", Family::default());
        let refused: Family<Labels, Counter> =
            b.add("refused", "Requests and connections that were refused, by reason", Family::default());
        let prompts =
            ("prompt_tokens", "Tokens of prompts, and of texts that were read for embeddings or probabilities", None);
        let prompts = b.each(models, prompts, Counter::default);
        let cached = ("cached_tokens", "Those of prompts whose texts are done that the cache had already", None);
        let cached = b.each(models, cached, Counter::default);
        let generated = ("tokens", "Tokens that were generated", None);
        let generated = b.each(models, generated, Counter::default);
        let seconds = Some(Unit::Seconds);
        let wait = b.each(models, ("wait", "Time until a text had a place", seconds.clone()), times);
        let first = ("first_token", "Time from a request to the first token of a text", seconds.clone());
        let first = b.each(models, first, times);
        let each = ("token", "Mean time of a text's tokens behind the first", seconds);
        let each = b.each(models, each, times);
        let connections = b.add("connections", "Connections that are open", Gauge::default());
        let mut gauges = |name: &'static str, help: &'static str| b.each(models, (name, help, None), Gauge::default);
        let waiting = gauges("waiting", "Texts that wait for a place");
        let running = gauges("running", "Texts that have a place");
        let slots = gauges("slots", "Places for texts");
        let of = |model: &&str| ModelMetrics {
            model: (models.len() > 1).then(|| (*model).to_owned()),
            texts: texts.clone(),
            refused: refused.clone(),
            prompt_tokens: prompts.of(model),
            cached_tokens: cached.of(model),
            tokens: generated.of(model),
            wait: wait.of(model),
            first: first.of(model),
            each: each.of(model),
            waiting: waiting.of(model),
            running: running.of(model),
            slots: slots.of(model),
        };
        let of_models = models.iter().map(of).collect();
        (Metrics { registry: b.0, requests, refused, connections }, of_models)
    }

    pub(crate) fn request(&self, path: &'static str, status: u16) {
        self.requests.get_or_create(&OfAnswer { path, status }).inc();
    }

    /// Before it was known which model was meant.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&vec![("reason", reason.to_owned())]).inc();
    }

    /// One connection more, or less.
    pub(crate) fn connection(&self, change: i64) {
        self.connections.inc_by(change);
    }

    /// All of it, as OpenMetrics has it.
    pub(crate) fn render<'e>(&self, engines: impl Iterator<Item = &'e Engine>) -> Result<String, fmt::Error> {
        for engine in engines {
            let (waiting, free, slots) = (engine.queue.waiting(), engine.queue.free(), engine.runner.plan().sequences);
            engine.metrics.waiting.set(signed(waiting));
            engine.metrics.slots.set(signed(slots));
            engine.metrics.running.set(signed(slots.saturating_sub(free)));
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl ModelMetrics {
    fn labels(&self, name: &'static str, value: &'static str) -> Labels {
        let model = self.model.clone().map(|model| ("model", model));
        std::iter::once((name, value.to_owned())).chain(model).collect()
    }

    pub(crate) fn ended(&self, end: &'static str) {
        self.texts.get_or_create(&self.labels("end", end)).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&self.labels("reason", reason)).inc();
    }

    /// A prompt has been read.
    pub(crate) fn read(&self, prompt: usize) {
        self.prompt_tokens.inc_by(prompt as u64);
    }

    /// So many tokens of a prompt were in the cache.
    pub(crate) fn cached(&self, tokens: usize) {
        self.cached_tokens.inc_by(tokens as u64);
    }

    /// A token has come.
    pub(crate) fn token(&self) {
        self.tokens.inc();
    }

    /// A text is done, with so many tokens, those behind the first in this time.
    pub(crate) fn done(&self, tokens: usize, decode: Duration) {
        self.ended("done");
        if tokens > 1 {
            self.each.observe(decode.as_secs_f64() / (tokens - 1) as f64);
        }
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.wait.observe(time.as_secs_f64());
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first.observe(time.as_secs_f64());
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(models: &[&str]) -> String {
        let (metrics, each) = Metrics::new(models);
        for of_model in &each {
            of_model.read(3);
            (0..2).for_each(|_| of_model.token());
            of_model.done(2, Duration::from_millis(4));
        }
        metrics.render(std::iter::empty()).unwrap()
    }

    #[test]
    fn a_model_is_named_where_there_are_several() {
        let (one, two) = (text(&["a"]), text(&["a", "b"]));
        for line in ["texts_total{end=\"done\"} 1", "tokens_total 2", "wait_seconds_count 0", "slots 0"] {
            assert!(one.lines().any(|l| l == format!("outboard_serve_{line}")), "{line} in {one}");
        }
        for line in ["texts_total{end=\"done\",model=\"b\"} 1", "tokens_total{model=\"a\"} 2", "slots{model=\"b\"} 0"] {
            assert!(two.lines().any(|l| l == format!("outboard_serve_{line}")), "{line} in {two}");
        }
    }
}
