//! Small random models of each architecture against llama.cpp's logits for 24 tokens.
//!
//! The files have two layers, 128 tokens of vocabulary, F32 and F16 weights and no tokenizer; the logits come from llama.cpp
//! (ggml 0.25.3, one thread, no flash attention).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::Device;
use outboard_core::Host;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::{Engine, LoadOptions, Mmap};
use outboard_reference::reference_device;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most that the sums of f32 numbers in another order, and a KV cache in f16, may make of it.
const MAX_NMSE: f64 = 1e-6;

fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |v: f64| v * v;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    error / want.iter().map(|w| square(f64::from(*w))).sum::<f64>()
}

fn check(name: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    let reference = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
    let reference: serde_json::Value = serde_json::from_str(&reference).unwrap();
    let ids = reference["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32);
    let tokens: Vec<u32> = ids.collect();
    let rows = reference["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
    let want: Vec<f32> = rows.map(|v| v.as_f64().unwrap() as f32).collect();

    let model = small::model(name);
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |id: &str, threads| cpu_device(&host, id, CpuOptions::with_threads(threads), &budget);
    let sets: [(&str, Vec<Arc<dyn Device>>); 3] = [
        ("reference", vec![reference_device(&host, "REF", &budget)]),
        ("cpu", vec![cpu("CPU0", 2)]),
        ("two cpu devices", vec![cpu("CPU1", 1), cpu("CPU2", 1)]),
    ];
    for (devices, set) in sets {
        // All tokens at once, in micro-batches of seven, one by one; weights in the mapped file and in memory.
        for (n_ubatch, mmap) in [(24, Mmap::Always), (7, Mmap::Never), (1, Mmap::Auto)] {
            let options = LoadOptions { n_ctx: 64, n_ubatch, mmap, ..LoadOptions::default() };
            let copied = AtomicBool::new(false);
            let progress = |_, _| copied.store(true, Ordering::Relaxed);
            let mut engine = Engine::load(model.clone(), set.clone(), &options, &progress).unwrap();
            assert!(mmap == Mmap::Always || copied.into_inner(), "{name} on {devices}: weights were not copied");
            let logits = engine.logits(&tokens).unwrap();
            let error = nmse(&logits, &want);
            println!("{name} on {devices}, {n_ubatch} at once: NMSE {error:.2e}");
            assert!(error <= MAX_NMSE, "{name} on {devices}, {n_ubatch} at once: NMSE {error:e}");
        }
    }
}

small::each!(check);
