//! A model on a card whose memory the host cannot address, alone and beside a device in host memory, gives what the reference gives.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::op::Sampler;
use outboard_core::{Device, Host, WeightTail};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use outboard_llm::{GenerateOptions, LoadOptions, LogProbs, Model, PlacedModel, generate};
use outboard_reference::reference_device;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

fn options(split: &[f64]) -> LoadOptions {
    LoadOptions { n_ctx: 64, n_ubatch: 7, split: split.to_vec(), ..LoadOptions::default() }
}

fn load(model: &Arc<Model>, devices: Vec<Arc<dyn Device>>, split: &[f64]) -> outboard_llm::Result<PlacedModel> {
    PlacedModel::load(model.clone(), devices, &options(split), &|_, _| {})
}

fn text(engine: &mut PlacedModel) -> (Vec<u32>, Vec<f32>) {
    let prompt: Vec<u32> = (0..30).map(|i| i * 37 % 128).collect();
    let sampler = Sampler { temperature: 0.9, top_k: 20, seed: 7, ..Sampler::GREEDY };
    let (n_predict, stop) = (Some(12), Vec::new());
    let options = GenerateOptions {
        n_predict,
        sampler,
        penalties: None,
        ignore_eos: true,
        stop,
        log_probs: LogProbs::Chosen,
        ..GenerateOptions::default()
    };
    let seq = engine.open().unwrap();
    let done =
        generate(engine, seq, &small::tokenizer(), &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    (done.tokens, done.log_probs)
}

fn card(host: &Arc<Host>, name: &str, max_alloc: u64) -> Arc<dyn Device> {
    let latency = Duration::from_micros(100);
    detached_device(host, name, DetachedOptions { max_alloc, latency, ..DetachedOptions::default() })
}

#[test]
fn what_a_card_wants_behind_weights_is_counted() {
    let model = small::quantized(&small::file("llama-dense"));
    let blocks = model.gguf().tensors().iter().filter(|t| t.layout.dtype().is_quantized()).count() as u64;
    let weights = |tail: u64| {
        let options = DetachedOptions { weight_tail: WeightTail(tail), ..DetachedOptions::default() };
        let engine = load(&model, vec![detached_device(&Host::new(), "A", options)], &[1.0]).unwrap();
        engine.loads()[0].weight_bytes
    };
    assert!(blocks > 0);
    assert_eq!(weights(1000) - weights(0), 1000 * blocks);
}

#[test]
fn a_model_on_cards_and_beside_host_memory() {
    let floats = ("floats", small::model("gemma3-dense"));
    for (name, model) in [
        ("blocks", small::quantized(&small::file("llama-dense"))),
        ("tied blocks", small::quantized(&small::file("gemma3-dense"))),
        floats,
    ] {
        let host = Host::new();
        let reference = || reference_device(&host, "REF", &MemoryBudget::new(None));
        let want = text(&mut load(&model, vec![reference()], &[1.0]).unwrap());
        let largest = load(&model, vec![reference()], &[1.0]).unwrap().loads()[0].weight_bytes;
        // As large as need be, and so small that weights and results lie in many buffers.
        for max_alloc in [64 << 20, largest / 4] {
            let one = vec![card(&host, "A", max_alloc)];
            let beside = vec![card(&host, "A", max_alloc), reference()];
            let two = vec![reference(), card(&host, "A", max_alloc), card(&host, "B", max_alloc)];
            for (devices, split) in [(one, &[1.0][..]), (beside, &[1.0, 1.0]), (two, &[1.0, 1.0, 1.0])] {
                let ids: Vec<String> = devices.iter().map(|d| d.info().id.clone()).collect();
                let mut engine = load(&model, devices, split).unwrap();
                assert!(engine.loads().iter().all(|load| load.is_used()), "{ids:?}");
                assert_eq!(text(&mut engine), want, "{name} on {ids:?}, {max_alloc} bytes at once");
            }
        }
        let error = load(&model, vec![card(&host, "A", 4096)], &[1.0]).err().unwrap().to_string();
        assert!(error.contains("A allocates 4.0 KiB at once at most"), "{error}");
    }
}
