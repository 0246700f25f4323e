//! A model divided between devices, within layers as well, gives what one device gives, bit by bit.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::Device;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::{Host, MemoryBudget, open_mapped};
use outboard_llm::engine::GREEDY;
use outboard_llm::gguf::Gguf;
use outboard_llm::{Engine, LoadOptions, Model, Parts};
use std::path::Path;
use std::sync::Arc;

const CTX: usize = 64;

fn model(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/arch/{name}.gguf"));
    Arc::new(Model::new(Gguf::parse(open_mapped(&path).unwrap()).unwrap()).unwrap())
}

fn load(model: &Arc<Model>, split: &[f64]) -> Engine {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |d: usize| cpu_device(&host, &format!("CPU{d}"), CpuOptions::with_threads(1), &budget);
    let devices: Vec<Arc<dyn Device>> = (0..split.len()).map(cpu).collect();
    let options = LoadOptions { n_ctx: CTX, n_ubatch: 7, split: split.to_vec(), ..LoadOptions::default() };
    Engine::load(model.clone(), devices, &options, &|_, _| {}).unwrap()
}

/// The prompt's logits, and tokens behind another.
fn run(engine: &mut Engine) -> (Vec<f32>, Vec<(u32, f32)>) {
    let prompt: Vec<u32> = (0..30).map(|i| i * 37 % 128).collect();
    let logits = engine.logits(&prompt).unwrap();
    engine.truncate(5);
    let mut token = 9;
    let mut next = || {
        let sampled = engine.eval(&[token, 3], GREEDY).unwrap();
        token = sampled.0;
        sampled
    };
    (logits, (0..4).map(|_| next()).collect())
}

fn check(name: &str) {
    let model = model(name);
    let n_layer = model.hparams().n_layer;
    let mut one = load(&model, &[1.0]);
    assert_eq!((one.loads()[0].layers, one.divided_layers()), (Some((0, n_layer - 1)), vec![]));
    let want = run(&mut one);
    let mut divided = 0;
    for tenths in 1..10 {
        let mut engine = load(&model, &[f64::from(tenths), f64::from(10 - tenths)]);
        assert_eq!(run(&mut engine), want, "{name}, {tenths} tenths on the first");
        let homes = engine.homes().to_vec();
        assert!(homes.is_sorted() && homes.len() == 2 * n_layer, "{homes:?}");
        // Every layer counts to one device, and to the one with its part of the cache.
        let layers: Vec<usize> = engine.loads().iter().filter_map(|l| l.layers).flat_map(|(a, b)| a..=b).collect();
        assert_eq!(layers, (0..n_layer).collect::<Vec<_>>(), "{homes:?}");
        for (d, load) in engine.loads().iter().enumerate() {
            assert_eq!(load.is_used(), homes.contains(&d), "{load:?} {homes:?}");
            assert_eq!(load.layers.is_some(), homes.iter().step_by(2).any(|home| *home == d), "{load:?} {homes:?}");
        }
        for (layer, devices) in engine.divided_layers() {
            assert_eq!((homes[2 * layer], homes[2 * layer + 1]), (0, 1), "{homes:?}");
            assert_eq!(devices, ["CPU0", "CPU1"]);
            divided += 1;
        }
    }
    assert!(divided > 0, "{name}: no layer was divided");
    // More devices than layers.
    let mut engine = load(&model, &[1.0; 3]);
    assert_eq!(run(&mut engine), want, "{name} on three");
}

#[test]
fn llama_dense() {
    check("llama-dense");
}

#[test]
fn llama_moe() {
    check("llama-moe");
}

#[test]
fn qwen2_dense() {
    check("qwen2-dense");
}

#[test]
fn work_of_a_prompt() {
    let model = model("llama-dense");
    let h = model.hparams();
    let parts = Parts::new(&model, CTX).unwrap();
    assert_eq!(parts.layers, (0..h.n_layer).flat_map(|il| [il, il]).collect::<Vec<_>>());
    // The first layer is like all but the last, which makes keys and values, and nothing more before the prompt ends.
    let [attention, feed_forward] = [0, 1].map(|i| parts.sections[i].work);
    let [last_attention, last_feed_forward] = [2, 1].map(|i| parts.sections[parts.sections.len() - i].work);
    assert!(attention.context > 0.0 && feed_forward.token > 0.0 && feed_forward.context == 0.0);
    assert_eq!(last_attention.token, (2 * h.n_embd * h.n_head_kv * (h.head_dim_k + h.head_dim_v)) as f64);
    assert_eq!((last_attention.context, last_feed_forward), (0.0, Default::default()));
    // The cache is the attention's.
    assert!(parts.sections.iter().step_by(2).all(|part| part.cache_bytes > 0));
    assert!(parts.sections.iter().skip(1).step_by(2).all(|part| part.cache_bytes == 0 && part.weight_bytes > 0));
}
