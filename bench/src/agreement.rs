//! How far llama.cpp, compiled for this machine, is from the log-probabilities that llama.cpp gave on another one.
//!
//! The texts of `integration/tests/data/greedy.json` came from a build for AVX2. Two builds that add in another order round the
//! right sides of quantized products differently; how much that changes a log-probability says what a test of another program
//! may ask for. `cargo run --release --bin agreement -- MODEL.gguf NAME` in the folder `bench`.

use anyhow::{Context, Result, ensure};
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use std::num::NonZeroU32;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (model, name) = (args.next().context("a GGUF file")?, args.next().context("its name in greedy.json")?);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/tests/data/greedy.json");
    let reference: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let cases = reference[&name].as_array().with_context(|| format!("{name} is not in greedy.json"))?;
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let loaded = LlamaModel::load_from_file(&backend, model, &LlamaModelParams::default().with_n_gpu_layers(0))?;
    let params = LlamaContextParams::default().with_n_ctx(NonZeroU32::new(128)).with_n_threads(1);
    let params = params.with_n_threads_batch(1).with_type_k(KvCacheType::F16).with_type_v(KvCacheType::F16);
    let mut context = loaded.new_context(&backend, params)?;
    let (mut differences, mut flipped) = (Vec::new(), Vec::new());
    for case in cases {
        context.clear_kv_cache();
        let numbers =
            |v: &serde_json::Value| v.as_array().map(|a| a.iter().filter_map(|v| v.as_f64()).collect::<Vec<_>>());
        let prompt = numbers(&case["tokens"]).context("tokens")?;
        let mut next: Vec<LlamaToken> = prompt.iter().map(|&t| LlamaToken(t as i32)).collect();
        for step in case["steps"].as_array().context("steps")? {
            let step = numbers(step).context("a step")?;
            let [id, want, second] = step[..] else { anyhow::bail!("a step has three numbers") };
            context.decode(&mut LlamaBatch::get_one(&next)?)?;
            let logits = context.get_logits_ith(-1);
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
            let got = *logits.get(id as usize).context("the token is outside the vocabulary")?;
            if got < max {
                flipped.push(want - second);
            }
            differences.push(f64::from(got - max) - sum.ln() - want);
            next = vec![LlamaToken(id as i32)];
        }
    }
    ensure!(!differences.is_empty(), "there are no steps");
    let rms = (differences.iter().map(|d| d * d).sum::<f64>() / differences.len() as f64).sqrt();
    let worst = differences.iter().fold(0f64, |m, d| m.max(d.abs()));
    let over = differences.iter().filter(|d| d.abs() > 0.05).count();
    let lead = flipped.iter().copied().fold(0f64, f64::max);
    println!(
        "{name} by llama.cpp here: {} steps; log-probabilities differ by {rms:.4} (rms), {worst:.4} at most, by more than 0.05 in \
         {over} steps; another token in {} steps, where the lead was {lead:.4} at most",
        differences.len(),
        flipped.len()
    );
    Ok(())
}
