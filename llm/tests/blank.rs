//! Weights without values: nothing is uploaded, and what comes out are numbers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::device::Bytes;
use outboard_core::{Costs, Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::Gguf;
use outboard_llm::{Cache, LoadOptions, Model, Parts, PlacedModel};
use outboard_reference::reference_device;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const TOKENS: [u32; 5] = [1, 7, 100, 3, 3];

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/arch/{name}.gguf"));
    // Behind one more byte, so that it is not aligned: no device uses it in place.
    let file = Bytes::from([vec![0], std::fs::read(path).unwrap()].concat()).slice(1..);
    let model = Arc::new(Model::new(Gguf::parse(file).unwrap()).unwrap());
    let host = Host::new();
    let budget = MemoryBudget::new(Some(1 << 30));
    let cpu = |id: &str| cpu_device(&host, id, CpuOptions::with_threads(1), &budget);
    let sets: [Vec<Arc<dyn Device>>; 2] =
        [vec![reference_device(&host, "REF", &budget)], vec![cpu("CPU0"), cpu("CPU1")]];
    for devices in sets {
        let options = LoadOptions { n_ctx: 64, n_ubatch: 4, split: vec![1.0; devices.len()], ..LoadOptions::default() };
        let mut real = PlacedModel::load(model.clone(), devices.clone(), &options, &|_, _| {}).unwrap();
        let seq = real.open().unwrap();
        let values = real.logits(seq, &TOKENS).unwrap();
        let loads = real.loads().to_vec();
        drop(real);
        let uploaded = AtomicBool::new(false);
        let options = LoadOptions { blank: true, ..options };
        let progress = |_, _| uploaded.store(true, Ordering::Relaxed);
        let mut blank = PlacedModel::load(model.clone(), devices, &options, &progress).unwrap();
        assert_eq!(blank.loads(), loads, "{name}");
        let seq = blank.open().unwrap();
        let logits = blank.logits(seq, &TOKENS).unwrap();
        assert!(logits.len() == values.len() && logits.iter().all(|v| v.is_finite()), "{name}: {logits:?}");
        assert!(!uploaded.load(Ordering::Relaxed) && logits != values, "{name}: it has the values");

        let parts = Parts::new(&model, Cache::of_one(64), &Costs::default()).unwrap();
        let all: u64 = loads.iter().map(|l| l.weight_bytes + l.cache_bytes).sum();
        // What layers share is part of each, and takes memory once on a device.
        let factors = ["rope_freqs.weight", "rope_factors_short.weight"].map(|name| model.gguf().tensor(name));
        let shared: usize = factors.into_iter().flatten().map(|t| t.layout.span()).sum();
        let more = model.hparams().n_layer - loads.iter().filter(|l| !l.layers.is_empty()).count();
        // And what embedding and output share takes it once more where these are on two.
        let tied = if blank.homes().first() == blank.homes().last() { 0 } else { parts.tied_bytes };
        // And the table of the cache's one block.
        let tables = 4 * loads.iter().filter(|l| l.cache_bytes > 0).count() as u64;
        assert_eq!(parts.bytes() + tied - (more * shared) as u64 + tables, all, "{name}");
        let copies = blank.step_copies().unwrap();
        match loads.len() {
            1 => assert_eq!(copies, []),
            // The residual stream there, and it or the sampled id back.
            _ => {
                let crossed = |way| copies.iter().any(|c| (c.from, c.to) == way);
                assert!(crossed((0, 1)) && crossed((1, 0)), "{copies:?}");
            }
        }
    }
}

small::each!(check);

#[test]
fn parts_of_a_model() {
    let model = small::model("llama-moe");
    let h = model.hparams();
    let parts = Parts::new(&model, Cache::of_one(256), &Costs::default()).unwrap();
    // A token reads a row of the embedding and the whole output matrix.
    assert_eq!((parts.first.read_bytes, parts.last.read_bytes), (0, parts.last.weight_bytes));
    assert_eq!(parts.with_context(128).sections[0].cache_bytes * 2, parts.sections[0].cache_bytes);
    assert_eq!(parts.with_context(128).sections[0].weight_bytes, parts.sections[0].weight_bytes);
    let per_token = 2 * 2 * h.n_layer * h.n_head_kv * h.head_dim_k;
    // Besides keys and values in f16, the history of tokens.
    assert_eq!(parts.bytes_per_token(), per_token as u64 + 4);
}
