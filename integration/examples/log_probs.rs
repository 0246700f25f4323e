//! How far this build's log-probabilities are from llama.cpp's, step by step over the reference texts: a table per device.
//! `cargo run --release -p outboard-integration --example log_probs -- smollm2 [DEVICE..]` with `cpu`, `portable` or `reference`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_cpu::{CpuOptions, Isa, cpu_device};
use outboard_host::{Host, MemoryBudget, open_mapped};
use outboard_integration::{Step, cases, model};
use outboard_llm::gguf::Gguf;
use outboard_llm::{Engine, LoadOptions, Model};
use outboard_reference::reference_device;
use std::sync::Arc;

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
        let mut engine = Engine::load(model.clone(), vec![device], &options, &|_, _| {}).unwrap();
        let mut diffs = Vec::new();
        // Lead of the reference's token over its second where this device prefers another one.
        let mut flipped: Vec<f32> = Vec::new();
        for case in cases(name) {
            engine.truncate(0);
            let (n_vocab, first) = (model.hparams().n_vocab, case.tokens.len() - 1);
            let mut tokens = case.tokens.clone();
            tokens.extend(case.steps.iter().map(|s| s.0));
            // One at a time, as a generation does.
            for (i, &token) in tokens[..tokens.len() - 1].iter().enumerate() {
                let logits = engine.logits(&[token]).unwrap();
                assert_eq!(logits.len(), n_vocab);
                if i >= first {
                    let Step(id, want, second) = case.steps[i - first];
                    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
                    if logits[id as usize] < max {
                        flipped.push(want - second);
                    }
                    diffs.push(logits[id as usize] - max - sum.ln() as f32 - want);
                }
            }
        }
        let rms = (diffs.iter().map(|d| d * d).sum::<f32>() / diffs.len() as f32).sqrt();
        let worst = diffs.iter().fold(0f32, |m, d| m.max(d.abs()));
        let over = diffs.iter().filter(|d| d.abs() > 0.05).count();
        let lead = flipped.iter().copied().fold(0f32, f32::max);
        println!(
            "{name} on {kind}: {} steps; log-probabilities differ by {rms:.4} (rms), {worst:.4} at most, by more than 0.05 in {over} \
             steps; another token in {} steps, where the lead was {lead:.4} at most",
            diffs.len(),
            flipped.len()
        );
        all.push((kind.to_owned(), diffs));
    }
    if let [(a, x), (b, y)] = &all[..] {
        let d: Vec<f32> = x.iter().zip(y).map(|(x, y)| x - y).collect();
        let rms = (d.iter().map(|d| d * d).sum::<f32>() / d.len() as f32).sqrt();
        println!("{a} against {b}: rms {rms:.4}, worst {:.4}", d.iter().fold(0f32, |m, d| m.max(d.abs())));
    }
}
