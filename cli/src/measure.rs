//! Prompts and decoding measured on a set of devices, for `bench` and `plan`.

mod samples;

pub(crate) use samples::{Range, Sample, mean, median, quantile, stddev};

use crate::args::ModelArgs;
use crate::devices;
use crate::model;
use crate::trace::{Links, TokenTime, Trace, Tracer};
use anyhow::{Result, bail};
use outboard::{Devices, Model};
use outboard_core::device::RoundTrips;
use outboard_core::op::Sampler;
use outboard_llm::{GenerateOptions, LogProbs, PlacedModel, Sampling, Sequence, generate};
use outboard_output as output;
use outboard_rpc_client::RemoteDevice;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Tokens that decoding warms up with: enough for every graph to be there and for what adapts to the network to settle.
const WARM_UP: usize = 32;

/// Round trips that are measured.
const ROUND_TRIPS: usize = 21;

/// The time of a round trip, the median of several: `trip` makes one.
pub(crate) fn round_trip<E>(trip: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    Ok(RoundTrips::measure(ROUND_TRIPS, trip)?.median())
}

/// One measurement to make, of each of some sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Prompt(usize),
    Decode(usize),
}

impl Test {
    pub(crate) fn name(self) -> String {
        match self {
            Test::Prompt(n) => format!("pp{n}"),
            Test::Decode(n) => format!("tg{n}"),
        }
    }

    pub(crate) fn tokens(self) -> usize {
        let (Test::Prompt(n) | Test::Decode(n)) = self;
        n
    }

    /// Tokens of context that it needs: decoding begins behind one token and chooses one more than it counts.
    pub(crate) fn ctx(self) -> usize {
        match self {
            Test::Prompt(n) => n,
            Test::Decode(n) => n + 2,
        }
    }

    /// The same, as short as a run may be that is not counted.
    pub(crate) fn warm_up(self) -> Test {
        match self {
            Test::Prompt(n) => Test::Prompt(n),
            Test::Decode(n) => Test::Decode(n.min(WARM_UP)),
        }
    }
}

/// Where devices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All on this host.
    Local,
    /// Some on servers.
    Remote,
}

/// A set of devices with the model on them.
pub(crate) struct Side {
    /// Those that hold a part of it.
    pub(crate) devices: Vec<String>,
    /// Where those are.
    pub(crate) reach: Reach,
    pub(crate) engine: PlacedModel,
    /// The one that is measured.
    sequence: Sequence,
}

impl Side {
    /// Puts a model on devices.
    pub(crate) fn load(loaded: &Model, set: Devices, args: &ModelArgs) -> Result<Side> {
        let options = model::load_options(args, loaded, &set)?;
        Side::new(model::load(loaded, &set, &options)?)
    }

    /// A model that is on its devices.
    pub(crate) fn new(mut engine: PlacedModel) -> Result<Side> {
        let sequence = engine.open()?;
        let used = engine.loads().iter().zip(engine.devices()).filter(|(l, _)| l.is_used());
        let remote = used.clone().any(|(_, d)| RemoteDevice::of(d.as_ref()).is_some());
        let reach = if remote { Reach::Remote } else { Reach::Local };
        Ok(Side { devices: used.map(|(l, _)| l.id.clone()).collect(), reach, engine, sequence })
    }

    /// Runs a test once, and records what every device did meanwhile.
    pub(crate) fn traced(
        &mut self,
        tracer: &Tracer,
        loaded: &Model,
        test: Test,
        round: u64,
    ) -> Result<(Sample, Trace)> {
        let recording = tracer.start(self.engine.devices(), Links::Left)?;
        let sample = self.run(loaded, test, round);
        let trace = recording.finish();
        Ok((sample?, trace))
    }

    /// How long each device computes for a token that only goes through the layers, in milliseconds, from `n` of them, the cache being
    /// empty; `None` if that is not known.
    pub(crate) fn layers_alone(&mut self, tracer: &Tracer, loaded: &Model, n: usize) -> Result<Option<Vec<TokenTime>>> {
        let (engine, sequence, token) = (&mut self.engine, self.sequence, [start_token(loaded)]);
        engine.truncate(sequence, 0)?;
        let recording = tracer.start(engine.devices(), Links::Left)?;
        let start = Instant::now();
        // One after the other, as tokens are decoded.
        let done = (0..n).try_for_each(|_| engine.fill_cache(sequence, &token));
        let range = (start, Instant::now());
        let trace = recording.finish();
        done?;
        engine.truncate(sequence, 0)?;
        Ok(trace.token_times(range, n))
    }

    /// Runs a test once in so many sequences side by side, the cache being empty: the tokens of all of them count.
    pub(crate) fn run_many(&mut self, loaded: &Model, test: Test, np: usize, round: u64) -> Result<Sample> {
        if np == 1 {
            return self.run(loaded, test, round);
        }
        let engine = &mut self.engine;
        engine.truncate(self.sequence, 0)?;
        let sequences = (1..np).map(|_| engine.open()).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<Sequence> = [self.sequence].into_iter().chain(sequences.iter().copied()).collect();
        let before = devices::net(engine.devices());
        let range = measure_many(engine, &all, test, round)?;
        let net = devices::net(engine.devices()).since(before);
        sequences.into_iter().try_for_each(|sequence| engine.close(sequence))?;
        engine.truncate(self.sequence, 0)?;
        Ok(Sample { tokens: np * test.tokens(), range, net, gaps: Vec::new() })
    }

    /// Runs a test once, the cache being empty.
    pub(crate) fn run(&mut self, loaded: &Model, test: Test, round: u64) -> Result<Sample> {
        let (engine, sequence) = (&mut self.engine, self.sequence);
        let n_vocab = engine.model().hparams().n_vocab;
        engine.truncate(sequence, 0)?;
        let before = devices::net(engine.devices());
        let mut gaps = Vec::new();
        let range = match test {
            Test::Prompt(n) => {
                let mut random = Random(round + 1);
                let tokens: Vec<u32> = (0..n).map(|_| random.below(n_vocab)).collect();
                let start = Instant::now();
                engine.eval(sequence, &tokens, Sampler::GREEDY)?;
                (start, Instant::now())
            }
            Test::Decode(n) => decode(engine, sequence, loaded, n, &mut gaps)?,
        };
        let net = devices::net(engine.devices()).since(before);
        // What was enqueued beyond the last token must not run into the time of the next one.
        engine.truncate(sequence, 0)?;
        engine.eval(sequence, &[start_token(loaded)], Sampler::GREEDY)?;
        Ok(Sample { tokens: test.tokens(), range, net, gaps })
    }
}

/// Runs a test in these sequences: from when to when their tokens were read, or came behind the first of each.
fn measure_many(engine: &mut PlacedModel, sequences: &[Sequence], test: Test, round: u64) -> Result<Range> {
    let n_vocab = engine.model().hparams().n_vocab;
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
    let mut random = Random(round + 1);
    let (prompt, most) = match test {
        Test::Prompt(n) => (n, 1),
        Test::Decode(n) => (1, n + 1),
    };
    let start = Instant::now();
    for &sequence in sequences {
        let tokens: Vec<u32> = (0..prompt).map(|_| random.below(n_vocab)).collect();
        engine.begin(sequence, &tokens, sampling, most)?;
    }
    let (mut came, mut first) = (0, start);
    while engine.next_token()?.is_some() {
        came += 1;
        if came == sequences.len() {
            first = Instant::now();
        }
    }
    if came != most * sequences.len() {
        bail!("only {came} of {} tokens came", most * sequences.len());
    }
    let end = Instant::now();
    Ok(if most == 1 { (start, end) } else { (first, end) })
}

/// From when to when `n` tokens behind the first came; the times between pieces of text go to `gaps`.
fn decode(
    engine: &mut PlacedModel,
    sequence: Sequence,
    loaded: &Model,
    n: usize,
    gaps: &mut Vec<Duration>,
) -> Result<Range> {
    let options = GenerateOptions { n_predict: Some(n + 1), ignore_eos: true, ..GenerateOptions::default() };
    let mut last: Option<Instant> = None;
    let mut on_text = |_: &str| {
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            gaps.push(now - last);
        }
        ControlFlow::Continue(())
    };
    let start = Instant::now();
    let generation = generate(engine, sequence, loaded.tokenizer(), &[start_token(loaded)], &options, &mut on_text)?;
    if generation.tokens.len() != n + 1 {
        bail!("only {} of {} tokens came: {:?}", generation.tokens.len(), n + 1, generation.finish);
    }
    let first = start + generation.prompt_time;
    Ok((first, first + generation.decode_time))
}

fn start_token(loaded: &Model) -> u32 {
    loaded.tokenizer().bos().or(loaded.tokenizer().eos()).unwrap_or(0)
}

/// SplitMix64 (Steele, Lea and Flood, 2014): prompts without a pattern, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n.max(1) as u64) as u32
    }
}

/// A line that the next one overwrites, on a terminal only.
pub(crate) fn progress(text: &str) -> Result<()> {
    if output::err_is_terminal() {
        return Ok(output::err(format_args!("\r\x1b[K{text}"))?);
    }
    Ok(output::check()?)
}
