//! `outboard bench`: tokens per second for prompts (`pp`) and for decoding (`tg`), in the habits of llama-bench.
//!
//! `--local` and `--beside` measure further sets of devices in the same run, repetition by repetition in turns, so that ratios
//! and differences hold on a machine whose speed changes from one minute to the next.

mod report;

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs, Sequences, usage};
use crate::devices;
use crate::measure::{Sample, Side, Test, progress};
use crate::model;
use crate::trace::Tracer;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use outboard::Model;
use outboard::devices::Available;
use outboard_output as output;
use report::Row;
use std::process::ExitCode;

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
    /// Sequences at once, or several numbers: every test is made with each of them, of a model that is loaded anew; tokens per second are those of all
    /// together
    #[arg(long = "np", alias = "parallel", value_name = "N,..", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    n_parallel: Vec<u16>,
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

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let tests = tests(args);
    let Some(needed) = tests.iter().map(|t| t.ctx()).max() else {
        return Err(usage("there is nothing to measure: give -p or -n a number above 0"));
    };
    let loaded = model::open(args.model.only()?)?;
    let beside: Vec<String> = args.beside.iter().flat_map(|names| split(names)).collect();
    let available = devices::available(&args.devices, &beside)?;
    let tracer = Tracer::new(available.host());
    let (mut table, mut rows) = (None, Vec::new());
    for &np in &args.n_parallel {
        let np = usize::from(np);
        // A model for one sequence does without what keeps several apart.
        let mut sides = sides(args, &loaded, &available, needed, np)?;
        let widest = || report::Table::new(&loaded, sides.iter().map(|s| s.devices.as_slice()));
        let table = table.get_or_insert_with(widest);
        for &test in &tests {
            let new = rows_of(args, &loaded, &tracer, &mut sides, (test, np))?;
            if args.output == Output::Md {
                new.iter().try_for_each(|row| output::out(table.lines(row)))?;
            }
            rows.extend(new);
        }
    }
    match args.output {
        Output::Md => output::out(report::comparisons(&rows))?,
        Output::Json => print_json(&rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of a set of devices.
fn split(names: &str) -> Vec<String> {
    names.split(['+', ',']).map(str::to_owned).collect()
}

/// What is measured: prompts, then decoding.
fn tests(args: &Args) -> Vec<Test> {
    let prompts = args.n_prompt.iter().filter(|&&n| n > 0).map(|&n| Test::Prompt(n as usize));
    prompts.chain(args.n_gen.iter().filter(|&&n| n > 0).map(|&n| Test::Decode(n as usize))).collect()
}

/// The model on each set of devices for so many sequences, each with a context of `needed` tokens at least.
fn sides(args: &Args, loaded: &Model, available: &Available, needed: usize, np: usize) -> Result<Vec<Side>> {
    let mut sets = vec![available.choose(&args.devices.dev)?];
    if args.local {
        sets.push(available.local());
    }
    for names in &args.beside {
        sets.push(available.choose(&split(names))?);
    }
    let mut model_args = ModelArgs { sequences: Sequences::Apart(np), ..args.model.clone() };
    model_args.ctx.get_or_insert(u32::try_from(needed.next_multiple_of(CTX_STEP)).context("-p or -n is too large")?);
    let mut sides = Vec::new();
    for set in sets {
        let side = Side::load(loaded, set, &model_args)?;
        let n_ctx = side.engine.n_ctx();
        if needed > n_ctx {
            bail!("the tests need a context of {needed} tokens, there are {n_ctx}: make it larger with -c");
        }
        sides.push(side);
        // The parts of -ts are those of the first set.
        model_args.tensor_split = None;
    }
    Ok(sides)
}

/// Measures a test on all sides, and compares the first one with the others.
fn rows_of(
    args: &Args,
    loaded: &Model,
    tracer: &Tracer,
    sides: &mut [Side],
    (test, np): (Test, usize),
) -> Result<Vec<Row>> {
    let samples = samples(args, loaded, sides, test, np)?;
    let mut rows = Vec::new();
    for (side, mine) in sides.iter_mut().zip(&samples) {
        let mut row = Row::new(test.name(), np, side.devices.clone(), side.reach, mine);
        if let (Test::Decode(_), 1) = (test, np) {
            // Once more, and not counted: recording takes a little time itself.
            let (sample, trace) = side.traced(tracer, loaded, test, 0)?;
            row.token_times = trace.token_times(sample.range, test.tokens()).unwrap_or_default();
        }
        rows.push(row);
    }
    progress("")?;
    if let (Some((first, others)), Some((mine, beside))) = (rows.split_first_mut(), samples.split_first()) {
        first.compare(mine, others, beside);
    }
    Ok(rows)
}

/// The repetitions of a test, by side, in turns.
fn samples(args: &Args, loaded: &Model, sides: &mut [Side], test: Test, np: usize) -> Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); sides.len()];
    if !args.no_warmup {
        for side in sides.iter_mut() {
            side.run_many(loaded, test.warm_up(), np, 0)?;
        }
    }
    for round in 0..args.repetitions as usize {
        progress(&format!("{}: {} of {}", test.name(), round + 1, args.repetitions))?;
        // Who begins changes, so that nobody always comes after the same neighbour.
        for i in 0..sides.len() {
            let number = (i + round) % sides.len();
            samples[number].push(sides[number].run_many(loaded, test, np, round as u64)?);
        }
    }
    Ok(samples)
}
