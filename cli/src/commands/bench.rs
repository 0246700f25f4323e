//! `outboard bench`: tokens per second for prompts (`pp`) and for decoding (`tg`), in the habits of llama-bench.
//!
//! `--local` and `--beside` measure further sets of devices in the same run, repetition by repetition in turns, so that ratios
//! and differences hold on a machine whose speed changes from one minute to the next.

mod report;
mod samples;

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs};
use crate::devices::{self, Available, DeviceSet, Net};
use crate::model;
use crate::trace::Tracer;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use outboard_llm::engine::GREEDY;
use outboard_llm::{Engine, GenerateOptions, generate};
use outboard_rpc_client::RemoteDevice;
use report::Row;
use samples::{Range, Sample};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Tokens that decoding warms up with: enough for every graph to be there and for what adapts to the network to settle.
const WARM_UP: usize = 32;
/// The context is a multiple of this many tokens.
const CTX_STEP: usize = 256;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Tokens of a prompt, or several numbers; 0 leaves the test out
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<u32>,
    /// Tokens to decode, or several numbers; 0 leaves the test out
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<u32>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Also measure the local CPU device alone (with -t threads), in turns with the others
    #[arg(long)]
    local: bool,
    /// Also measure these devices alone, in turns with the others; may be given several times
    #[arg(long, value_name = "D+D..")]
    beside: Vec<String>,
    /// Begin without a run that is not counted
    #[arg(long)]
    no_warmup: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    output: Output,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Md,
    Json,
}

/// One measurement to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Prompt(usize),
    Decode(usize),
}

impl Test {
    fn name(self) -> String {
        match self {
            Test::Prompt(n) => format!("pp{n}"),
            Test::Decode(n) => format!("tg{n}"),
        }
    }

    fn tokens(self) -> usize {
        let (Test::Prompt(n) | Test::Decode(n)) = self;
        n
    }

    /// Tokens of context that it needs: decoding begins behind one token and chooses one more than it counts.
    fn ctx(self) -> usize {
        match self {
            Test::Prompt(n) => n,
            Test::Decode(n) => n + 2,
        }
    }
}

/// A set of devices with the model on them.
struct Side {
    devices: Vec<String>,
    remote: bool,
    engine: Engine,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let prompts = args.n_prompt.iter().filter(|&&n| n > 0).map(|&n| Test::Prompt(n as usize));
    let tests: Vec<Test> =
        prompts.chain(args.n_gen.iter().filter(|&&n| n > 0).map(|&n| Test::Decode(n as usize))).collect();
    let Some(needed) = tests.iter().map(|t| t.ctx()).max() else {
        bail!("there is nothing to measure: give -p or -n a number above 0")
    };
    let loaded = model::open(&args.model.model)?;
    let available = Available::open(&args.devices)?;
    let tracer = Tracer::new(available.host());
    let mut sets = vec![available.choose(&args.devices.dev)?];
    if args.local {
        sets.push(available.local());
    }
    for names in &args.beside {
        let names: Vec<String> = names.split(['+', ',']).map(str::to_owned).collect();
        sets.push(available.choose(&names)?);
    }
    let mut model_args = args.model.clone();
    model_args.ctx.get_or_insert(u32::try_from(needed.next_multiple_of(CTX_STEP)).context("-p or -n is too large")?);
    let mut sides = Vec::new();
    for set in sets {
        let side = Side::load(&loaded, set, &model_args)?;
        if needed > side.engine.n_ctx() {
            bail!(
                "the tests need a context of {needed} tokens, there are {}: make it larger with -c",
                side.engine.n_ctx()
            );
        }
        sides.push(side);
        // The parts of -ts are those of the first set.
        model_args.tensor_split = None;
    }
    let mut table = report::Table::new(&loaded, sides.iter().map(|s| s.devices.as_slice()));
    let mut rows = Vec::new();
    for test in tests {
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); sides.len()];
        if !args.no_warmup {
            for side in &mut sides {
                side.run(&loaded, warm_up(test), 0)?;
            }
        }
        for round in 0..args.repetitions as usize {
            progress(&format!("{}: {} of {}", test.name(), round + 1, args.repetitions));
            // Who begins changes, so that nobody always comes after the same neighbour.
            for i in 0..sides.len() {
                let number = (i + round) % sides.len();
                samples[number].push(sides[number].run(&loaded, test, round as u64)?);
            }
        }
        let from = rows.len();
        for (side, mine) in sides.iter_mut().zip(&samples) {
            let mut row = Row::new(test.name(), side.devices.clone(), side.remote, mine);
            if let Test::Decode(_) = test {
                // Once more, and not counted: recording takes a little time itself.
                let recording = tracer.start(side.engine.devices(), false)?;
                let sample = side.run(&loaded, test, 0);
                row.token_times = recording.finish().token_times(sample?.range, test.tokens()).unwrap_or_default();
            }
            rows.push(row);
        }
        progress("");
        let (first, others) = rows[from..].split_at_mut(1);
        if let (Some(first), Some((mine, beside))) = (first.first_mut(), samples.split_first()) {
            first.compare(mine, others, beside);
        }
        if args.output == Output::Md {
            rows[from..].iter().for_each(|row| table.print(row));
        }
    }
    match args.output {
        Output::Md => report::print_comparisons(&rows),
        Output::Json => print_json(&rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn warm_up(test: Test) -> Test {
    match test {
        Test::Prompt(n) => Test::Prompt(n),
        Test::Decode(n) => Test::Decode(n.min(WARM_UP)),
    }
}

/// A line that the next one overwrites, on a terminal only.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

impl Side {
    fn load(loaded: &model::Loaded, set: DeviceSet, args: &ModelArgs) -> Result<Side> {
        let options = model::load_options(args, &loaded.model, &set)?;
        let engine = model::load(loaded, set, &options)?;
        let used =
            engine.loads().iter().zip(engine.devices()).filter(|(l, _)| l.layers.is_some() || l.weight_bytes > 0);
        let remote = used.clone().any(|(_, d)| RemoteDevice::of(d.as_ref()).is_some());
        Ok(Side { devices: used.map(|(l, _)| l.id.clone()).collect(), remote, engine })
    }

    /// Runs a test once, the cache being empty.
    fn run(&mut self, loaded: &model::Loaded, test: Test, round: u64) -> Result<Sample> {
        let engine = &mut self.engine;
        let n_vocab = engine.model().hparams().n_vocab;
        engine.truncate(0);
        let before = devices::net(engine.devices());
        let mut gaps = Vec::new();
        let range = match test {
            Test::Prompt(n) => {
                let mut random = Random(round + 1);
                let tokens: Vec<u32> = (0..n).map(|_| random.below(n_vocab)).collect();
                let start = Instant::now();
                engine.eval(&tokens, GREEDY)?;
                (start, Instant::now())
            }
            Test::Decode(n) => decode(engine, loaded, n, &mut gaps)?,
        };
        let after = devices::net(engine.devices());
        // What was enqueued beyond the last token must not run into the time of the next one.
        engine.truncate(0);
        engine.eval(&[start_token(loaded)], GREEDY)?;
        let net = Net {
            sent_bytes: after.sent_bytes - before.sent_bytes,
            recv_bytes: after.recv_bytes - before.recv_bytes,
            peer_bytes: after.peer_bytes - before.peer_bytes,
        };
        Ok(Sample { tokens: test.tokens(), range, net, gaps })
    }
}

/// From when to when `n` tokens behind the first came; the times between pieces of text go to `gaps`.
fn decode(engine: &mut Engine, loaded: &model::Loaded, n: usize, gaps: &mut Vec<Duration>) -> Result<Range> {
    let options = GenerateOptions {
        n_predict: Some(n + 1),
        sample: GREEDY,
        penalty: None,
        ignore_eos: true,
        stop: Vec::new(),
        log_probs: false,
    };
    let mut last: Option<Instant> = None;
    let mut on_text = |_: &str| {
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            gaps.push(now - last);
        }
        ControlFlow::Continue(())
    };
    let start = Instant::now();
    let generation = generate(engine, &loaded.tokenizer, &[start_token(loaded)], &options, &mut on_text)?;
    if generation.tokens.len() != n + 1 {
        bail!("only {} of {} tokens came: {:?}", generation.tokens.len(), n + 1, generation.finish);
    }
    let first = start + generation.prompt_time;
    Ok((first, first + generation.decode_time))
}

fn start_token(loaded: &model::Loaded) -> u32 {
    loaded.tokenizer.bos().or(loaded.tokenizer.eos()).unwrap_or(0)
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
