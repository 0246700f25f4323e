//! How far this build's log-probabilities are from llama.cpp's, step by step over the reference texts: a table per device.
//! `cargo run --release -p outboard-integration --example log_probs -- smollm2 [DEVICE..]` with `cpu`, `portable` or `reference`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::Host;
use outboard_cpu::{CpuOptions, Isa, cpu_device};
use outboard_host::MemoryBudget;
use outboard_integration::{Forced, cases, model};
use outboard_llm::gguf::Gguf;
use outboard_llm::{LoadOptions, Model, PlacedModel};
use outboard_reference::reference_device;
use outboard_system::open_mapped;
use std::sync::Arc;

/// Tokens of a prompt that are read together.
const PROMPT: usize = 128;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().expect("a model's name");
    let path = model(name).expect("the model");
    let model = Arc::new(Model::new(Gguf::parse(open_mapped(&path).unwrap()).unwrap()).unwrap());
    let mut all: Vec<(String, Vec<f32>)> = Vec::new();
    for kind in args[1..].iter().map(String::as_str) {
        let (host, budget) = (Host::new(), MemoryBudget::new(None));
        let device = match kind {
            "reference" => reference_device(&host, "REF", &budget),
            "portable" => cpu_device(&host, "CPU0", CpuOptions { isa: Isa::PORTABLE, threads: 2 }, &budget),
            _ => cpu_device(&host, "CPU0", CpuOptions::with_threads(2), &budget),
        };
        let options = LoadOptions { n_ctx: 128, ..LoadOptions::default() };
        let mut engine = PlacedModel::load(model.clone(), vec![device], &options, &|_, _| {}).unwrap();
        let mut forced = Forced::default();
        for case in cases(name) {
            forced.add(&mut engine, &case, PROMPT).unwrap();
        }
        let over = forced.differences.iter().filter(|d| d.abs() > 0.05).count();
        println!(
            "{name} on {kind}: {} steps; log-probabilities differ by {:.4} (rms), {:.4} at most, by more than 0.05 in {over} steps; \
             another token in {} steps, where the lead was {:.4} at most",
            forced.differences.len(),
            forced.rms(),
            forced.worst(),
            forced.others.len(),
            forced.lead()
        );
        all.push((kind.to_owned(), forced.differences));
    }
    if let [(a, x), (b, y)] = &all[..] {
        let d: Vec<f32> = x.iter().zip(y).map(|(x, y)| x - y).collect();
        let rms = (d.iter().map(|d| d * d).sum::<f32>() / d.len() as f32).sqrt();
        println!("{a} against {b}: rms {rms:.4}, worst {:.4}", d.iter().fold(0f32, |m, d| m.max(d.abs())));
    }
}
