//! What `outboard plan` measures: tokens, a prompt, and the head.

use super::picture::Timeline;
use crate::measure::{Sample, Side, Test, median, progress};
use crate::print;
use crate::trace::{LastLayer, TokenTime, Trace, Tracer};
use anyhow::Result;
use outboard::Model;
use outboard_llm::PlacedModel;
use std::time::{Duration, Instant};

/// Tokens that are decoded: enough for a mean, and few enough for a large model on a slow host.
const DECODE: usize = 32;
/// Tokens of the prompt, if the context has room for them.
const PROMPT: usize = 512;
/// Repetitions, of which the one with the median time counts.
const REPETITIONS: usize = 5;
/// No further repetition begins after this long.
const ENOUGH: Duration = Duration::from_secs(15);
/// Tokens that go through the layers alone, in each repetition.
const ALONE: usize = 8;

/// All that is measured.
pub(super) struct Measurements {
    pub(super) decode: Measured,
    pub(super) prompt: Measured,
    /// What the head takes of a token, in milliseconds; `None` if that is not known.
    pub(super) head_ms: Option<f64>,
}

impl Measurements {
    pub(super) fn take(side: &mut Side, tracer: &Tracer, loaded: &Model) -> Result<Measurements> {
        let n_ctx = side.engine.n_ctx();
        let decode = Measured::take(side, tracer, loaded, Test::Decode(DECODE.min(n_ctx - 2)))?;
        let prompt = Measured::take(side, tracer, loaded, Test::Prompt(PROMPT.min(n_ctx)))?;
        let head_ms = head_ms(side, tracer, loaded, &decode)?;
        progress("")?;
        Ok(Measurements { decode, prompt, head_ms })
    }

    /// Where the time went, device by device.
    pub(super) fn times(&self, engine: &PlacedModel) -> Times {
        Times { token: self.decode.times(engine, self.decode.test.tokens()), prompt: self.prompt.times(engine, 1) }
    }

    /// One token, as the picture shows it.
    pub(super) fn timeline(&self, engine: &PlacedModel) -> Option<Timeline> {
        let id = |d: usize| engine.loads().get(d).map(|l| l.id.as_str());
        let first = id(engine.route().first())?;
        let last = if engine.route().is_ring() { LastLayer::WithFirst } else { LastLayer::Elsewhere };
        let Measured { test, sample, trace, .. } = &self.decode;
        let token = trace.one_token(first, last, sample.range, test.tokens())?;
        let row = |device: &str| engine.loads().iter().position(|l| l.id == device);
        let work = trace.work(token).into_iter();
        let spans = work.filter_map(|(device, start, end)| Some((row(device)?, start, end))).collect();
        Some(Timeline { ms: print::ms(token.1 - token.0), spans })
    }
}

/// What each device did for a token and for the whole prompt; `None` if that is not known.
pub(super) struct Times {
    pub(super) token: Option<Vec<TokenTime>>,
    pub(super) prompt: Option<Vec<TokenTime>>,
}

impl Times {
    /// Whether both are known.
    pub(super) fn are_known(&self) -> bool {
        self.token.is_some() && self.prompt.is_some()
    }

    /// Those of a device, for a token and for the prompt, if both are known.
    pub(super) fn of(&self, device: usize) -> Option<(&TokenTime, &TokenTime)> {
        Some((self.token.as_ref()?.get(device)?, self.prompt.as_ref()?.get(device)?))
    }
}

/// The repetition of a test whose time is the median.
pub(super) struct Measured {
    pub(super) test: Test,
    pub(super) sample: Sample,
    pub(super) trace: Trace,
    pub(super) repetitions: usize,
}

impl Measured {
    fn take(side: &mut Side, tracer: &Tracer, loaded: &Model, test: Test) -> Result<Measured> {
        progress(&format!("{}: warm-up", test.name()))?;
        side.run(loaded, test.warm_up(), 0)?;
        let start = Instant::now();
        let mut taken = Vec::new();
        while taken.is_empty() || taken.len() < REPETITIONS && start.elapsed() < ENOUGH {
            progress(&format!("{}: {} of {REPETITIONS}", test.name(), taken.len() + 1))?;
            taken.push(side.traced(tracer, loaded, test, taken.len() as u64)?);
        }
        taken.sort_by(|(a, _), (b, _)| a.ms_per_token().total_cmp(&b.ms_per_token()));
        let repetitions = taken.len();
        let (sample, trace) = taken.swap_remove(repetitions / 2);
        Ok(Measured { test, sample, trace, repetitions })
    }

    /// The time of the test, in milliseconds.
    pub(super) fn ms(&self) -> f64 {
        self.sample.ms_per_token() * self.sample.tokens as f64
    }

    /// What each of these devices did, each time divided by `n`; `None` if that is not known.
    fn times(&self, engine: &PlacedModel, n: usize) -> Option<Vec<TokenTime>> {
        let times = self.trace.token_times(self.sample.range, n)?;
        let wire_ms = times.first()?.wire_ms;
        let each_ms = self.ms() / n.max(1) as f64;
        let of = |id: &String| {
            let idle = || TokenTime { device: id.clone(), compute_ms: 0.0, wire_ms, waiting_ms: each_ms - wire_ms };
            times.iter().find(|t| t.device == *id).cloned().unwrap_or_else(idle)
        };
        Some(engine.loads().iter().map(|load| of(&load.id)).collect())
    }
}

/// What the head takes of a token, on the device with the end of the model, in milliseconds: the difference to tokens that go through
/// the layers alone. `None` if that is not known.
fn head_ms(side: &mut Side, tracer: &Tracer, loaded: &Model, decode: &Measured) -> Result<Option<f64>> {
    progress("head")?;
    let n = ALONE.min(side.engine.n_ctx());
    let load = side.engine.loads().get(side.engine.route().last());
    let Some(last) = load.map(|l| l.id.clone()) else { return Ok(None) };
    let of = |times: &[TokenTime]| times.iter().find(|t| t.device == last).map(|t| t.compute_ms);
    // Warm-up: the graph is not there yet.
    side.layers_alone(tracer, loaded, n)?;
    let mut alone = Vec::new();
    for _ in 0..decode.repetitions {
        alone.extend(side.layers_alone(tracer, loaded, n)?.as_deref().and_then(of));
    }
    let with_head = decode.times(&side.engine, decode.test.tokens()).as_deref().and_then(of);
    Ok(with_head.filter(|_| !alone.is_empty()).map(|with_head| (with_head - median(&alone)).max(0.0)))
}
