//! What a host with a GPU has to show, in one program that needs nothing but a driver there: the conformance suite, kernels and models timed, texts
//! compared with llama.cpp's, several devices behind an `rpc-server`, and cases under NVIDIA's compute-sanitizer. Everything goes into one JSON file.
//!
//! `cargo build --release -p outboard-gpu-check -p outboard-cli -p outboard-rpc-server`, then copy the three programs into a folder of the host.

mod conformance;
mod kernels;
mod model;
mod programs;
mod random;
mod sanitizer;
mod servers;
mod texts;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::Filter;
use outboard_core::{DType, Device, Host};
use outboard_output as output;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Parser)]
#[command(about = "Checks and measures the GPUs of this host")]
struct Args {
    /// Devices, as `rpc-server -d` has them
    #[arg(short, long, value_name = "D,D,..", default_value = "cuda,vulkan")]
    devices: String,
    /// What is done; all of it if nothing is said
    #[arg(long, value_enum, value_name = "PART,..", value_delimiter = ',')]
    only: Vec<Part>,
    /// A model whose texts llama.cpp has given, by its name in the catalogue: smollm2=FILE
    #[arg(short, long, value_name = "NAME=FILE", value_parser = named_file)]
    model: Vec<(String, PathBuf)>,
    /// Some cases of every op, in place of all
    #[arg(long)]
    quick: bool,
    /// Cases of these ops only
    #[arg(long, value_name = "OP,..", value_delimiter = ',')]
    ops: Vec<String>,
    /// NVIDIA's compute-sanitizer, if it is not on PATH
    #[arg(long, value_name = "FILE", env = "OUTBOARD_SANITIZER")]
    sanitizer: Option<PathBuf>,
    /// Longest time for each of its tools
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    sanitizer_limit: u64,
    /// Types of weights that kernels and models are timed with
    #[arg(long, value_name = "T,..", value_delimiter = ',', default_value = "Q4_0,Q4_K,Q8_0,F16", value_parser = dtype)]
    types: Vec<DType>,
    /// Layers of the model that is timed; 32 make one of 8B
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    layers: u32,
    /// Where that model is written, and removed again
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    scratch: PathBuf,
    /// Leave the models there
    #[arg(long)]
    keep: bool,
    /// Where the report is written
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    json: PathBuf,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Every case of every op against the reference.
    Conformance,
    /// Products, beside the rate of a copy.
    Kernels,
    /// Decoding and prompts of a model with random weights.
    Models,
    /// Texts against llama.cpp's.
    Texts,
    /// Several devices of one server.
    Servers,
    /// Some cases of every op under each tool of NVIDIA's compute-sanitizer.
    Sanitizer,
}

/// Models whose texts llama.cpp has given.
const MODELS: [&str; 3] = ["smollm2", "qwen2.5-coder", "gemma3"];

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or_else(|| format!("{text} is not NAME=FILE"))?;
    if !MODELS.contains(&name) {
        return Err(format!("there are no texts of {name}, but of {}", MODELS.join(", ")));
    }
    Ok((name.to_owned(), file.into()))
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| format!("there is no type {text}"))
}

/// What one part came to: its part of the report, and what is wrong.
#[derive(Default)]
struct Outcome {
    report: Value,
    wrong: Vec<String>,
}

fn main() -> ExitCode {
    outboard_backends::run_if_helper();
    let args = Args::parse();
    match check(&args) {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => {
            let _ = output::err(format_args!("{}\n", wrong.join("\n")));
            ExitCode::FAILURE
        }
        Err(why) => {
            let _ = output::err(format_args!("gpu-check: {why:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Runs all that is wanted. Returns what is wrong.
fn check(args: &Args) -> Result<Vec<String>> {
    conformance::known_ops(&args.ops)?;
    let specs = specs(&args.devices)?;
    let devices = local_devices(&Host::new(), &specs, None, None)?;
    let (mut report, mut wrong) = (Map::new(), Vec::new());
    report.insert("devices".into(), devices.iter().map(|device| describe(device.as_ref())).collect());
    let parts = if args.only.is_empty() { Part::value_variants() } else { &args.only };
    for &part in parts {
        let name = part.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        output::out(format_args!("\n== {name}\n"))?;
        let done = run(args, part, &specs, &devices);
        let outcome = done.unwrap_or_else(|why| Outcome { wrong: vec![format!("{why:#}")], ..Outcome::default() });
        outcome.wrong.iter().try_for_each(|why| output::out(format_args!("WRONG {why}\n")))?;
        wrong.extend(outcome.wrong.iter().map(|why| format!("{name}: {why}")));
        report.insert(name, json!({ "report": outcome.report, "wrong": outcome.wrong }));
        // Also of what comes before an end.
        write(&args.json, &report)?;
    }
    Ok(wrong)
}

fn run(args: &Args, part: Part, specs: &[DeviceSpec], devices: &[Arc<dyn Device>]) -> Result<Outcome> {
    match part {
        Part::Conformance => conformance::run(specs, devices, &cases(args)),
        Part::Kernels => kernels::run(devices, &args.types),
        Part::Models => model::run(devices, args),
        Part::Texts => texts::run(devices, &args.model),
        Part::Servers => servers::run(devices, &args.model),
        Part::Sanitizer => sanitizer::run(devices, args),
    }
}

/// Which cases are wanted.
fn cases(args: &Args) -> Filter {
    Filter { quick: args.quick, ops: args.ops.clone(), ..Filter::default() }
}

/// The devices of a list. A backend that has none is left out, if another one has some.
fn specs(list: &str) -> Result<Vec<DeviceSpec>> {
    let (mut specs, mut without) = (Vec::new(), Vec::new());
    for name in list.split(',') {
        match DeviceSpec::parse_list(name) {
            Ok(found) => specs.extend(found),
            Err(why) => without.push(why),
        }
    }
    without.iter().try_for_each(|why| output::out(format_args!("left out: {why}\n")))?;
    if specs.is_empty() {
        bail!("no device to check among {list}");
    }
    Ok(specs)
}

fn describe(device: &dyn Device) -> Value {
    let info = device.info();
    json!({
        "id": info.id,
        "description": info.description,
        "backend": info.backend,
        "memory": info.memory_total,
        "capabilities": info.capabilities,
    })
}

fn write(path: &Path, report: &Map<String, Value>) -> Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}
