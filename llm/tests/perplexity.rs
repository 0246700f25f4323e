//! Perplexity against the same figure made by hand of the logits, for every way of cutting chunks into micro-batches.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::Device;
use outboard_core::Host;
use outboard_core::op::Sampler;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::perplexity::scored;
use outboard_llm::{Error, Estimate, LoadOptions, PlacedModel, perplexity};
use std::ops::ControlFlow;
use std::sync::Arc;

const CTX: usize = 16;
/// Tokens of a chunk that count: those behind the first of its second half.
const SCORED: usize = 7;

fn load(name: &str, devices: usize, n_ctx: usize, n_ubatch: usize) -> PlacedModel {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |d: usize| cpu_device(&host, &format!("CPU{d}"), CpuOptions::with_threads(1), &budget);
    let devices: Vec<Arc<dyn Device>> = (0..devices).map(cpu).collect();
    let split = vec![1.0; devices.len()];
    let options = LoadOptions { n_ctx, n_ubatch, scores: scored(n_ctx), split, ..LoadOptions::default() };
    PlacedModel::load(small::model(name), devices, &options, &|_, _| {}).unwrap()
}

fn text() -> Vec<u32> {
    (0..60).map(|i| i * i * 37 % 128).collect()
}

/// Perplexity after each chunk.
fn estimates(engine: &mut PlacedModel, text: &[u32], bos: Option<u32>, most: usize) -> Result<Vec<Estimate>, Error> {
    let mut all = Vec::new();
    let last = perplexity(engine, text, bos, most, &mut |now| {
        all.push(*now);
        ControlFlow::Continue(())
    })?;
    assert_eq!(all.last(), Some(&last));
    Ok(all)
}

/// The same by hand.
fn by_hand(engine: &mut PlacedModel, text: &[u32], bos: Option<u32>) -> Vec<(f64, f64)> {
    let (mut surprises, mut out) = (Vec::new(), Vec::new());
    for chunk in text.chunks_exact(CTX) {
        let mut chunk = chunk.to_vec();
        chunk[0] = bos.unwrap_or(chunk[0]);
        let seq = engine.open().unwrap();
        let logits = engine.logits(seq, &chunk).unwrap();
        engine.close(seq).unwrap();
        for (i, row) in logits.chunks_exact(logits.len() / CTX).enumerate().take(CTX - 1).skip(CTX / 2) {
            let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
            surprises.push(sum.ln() - f64::from(row[chunk[i + 1] as usize]));
        }
        let n = surprises.len() as f64;
        let mean = surprises.iter().sum::<f64>() / n;
        let variance = surprises.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
        out.push((mean.exp(), (variance / (n - 1.0)).sqrt() * mean.exp()));
    }
    out
}

fn check(name: &str) {
    // With 9 and 10 at once, one and two tokens of a micro-batch count.
    for (n_ubatch, bos) in [(CTX, None), (10, None), (9, Some(1)), (7, Some(1)), (3, Some(1)), (1, None)] {
        let mut engine = load(name, 1, CTX, n_ubatch);
        let want = by_hand(&mut engine, &text(), bos);
        let got = estimates(&mut engine, &text(), bos, usize::MAX).unwrap();
        assert_eq!((got.len(), engine.sequences().count()), (text().len() / CTX, 0));
        for (i, (got, (ppl, stderr))) in got.iter().zip(want).enumerate() {
            assert_eq!((got.chunks, got.scored), (i + 1, (i + 1) * SCORED));
            let near = |got: f64, want: f64| (got / want - 1.0).abs() < 1e-4;
            let what = format!("{name}, {n_ubatch} at once, chunk {i}: {got:?}, by hand {ppl} +/- {stderr}");
            assert!(near(got.ppl(), ppl) && near(got.stderr(), stderr), "{what}");
        }
        // A model on two devices foresees as well as on one, to the last bit.
        let split = estimates(&mut load(name, 2, CTX, n_ubatch), &text(), bos, usize::MAX).unwrap();
        assert_eq!(split, got, "{name}, {n_ubatch} at once, on two devices");
    }
}

small::each!(check);

#[test]
fn ends_when_it_is_told_to_and_leaves_the_engine_as_new() {
    let mut engine = load("llama-dense", 2, CTX, 5);
    let all = estimates(&mut engine, &text(), None, usize::MAX).unwrap();
    assert_eq!(estimates(&mut engine, &text(), None, 2).unwrap(), all[..2]);
    let first = perplexity(&mut engine, &text(), None, usize::MAX, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!(first, all[0]);
    let seq = engine.open().unwrap();
    let after = engine.eval(seq, &[1, 2, 3], Sampler::GREEDY).unwrap();
    let mut new = load("llama-dense", 2, CTX, 5);
    let seq = new.open().unwrap();
    assert_eq!(after, new.eval(seq, &[1, 2, 3], Sampler::GREEDY).unwrap());
}

#[test]
fn texts_and_chunks_that_are_too_short_are_errors() {
    let error = |n_ctx: usize, text: &[u32]| {
        let mut engine = load("llama-dense", 1, n_ctx, 5);
        let failed = estimates(&mut engine, text, None, usize::MAX).unwrap_err().to_string();
        // Nothing was lost.
        let seq = engine.open().unwrap();
        assert!(engine.eval(seq, &[1], Sampler::GREEDY).is_ok());
        failed
    };
    let short = error(CTX, &text()[..CTX - 1]);
    assert!(short.contains("the text has 15 tokens, less than a chunk of 16"), "{short}");
    let small = error(2, &text());
    assert!(small.contains("a chunk of 2 tokens has none to score"), "{small}");
    let unknown = error(CTX, &[128; CTX]);
    assert!(unknown.contains("token 128 is outside the model's vocabulary of 128"), "{unknown}");
    let mut engine = load("llama-dense", 1, CTX, 5);
    let bos = estimates(&mut engine, &text(), Some(129), usize::MAX).unwrap_err().to_string();
    assert!(bos.contains("token 129 is outside"), "{bos}");
    // The smallest chunk that has one.
    let mut engine = load("llama-dense", 1, 3, 5);
    assert_eq!(estimates(&mut engine, &text()[..7], None, usize::MAX).unwrap()[1].scored, 2);
}
