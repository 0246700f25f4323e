//! A model divided between devices, within layers as well, gives what one device gives, bit by bit.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::op::{Penalties, Sampler};
use outboard_core::{Costs, Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::tokenizer::Tokenizer;
use outboard_llm::{Cache, GenerateOptions, LoadOptions, LogProbs, Model, Parts, PlacedModel, generate};
use small::model;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

const CTX: usize = 64;

/// The model on as many devices as the split has parts; the first one has so many bytes of memory, if that is given.
fn load(model: &Arc<Model>, split: &[f64], memory: Option<u64>) -> outboard_llm::Result<PlacedModel> {
    let host = Host::new();
    let budget = |d: usize| MemoryBudget::new(if d == 0 { memory } else { None });
    let cpu = |d: usize| cpu_device(&host, &format!("CPU{d}"), CpuOptions::with_threads(1), &budget(d));
    let devices: Vec<Arc<dyn Device>> = (0..split.len()).map(cpu).collect();
    let options = LoadOptions { n_ctx: CTX, n_ubatch: 7, split: split.to_vec(), ..LoadOptions::default() };
    PlacedModel::load(model.clone(), devices, &options, &|_, _| {})
}

/// The prompt's logits; tokens behind a prompt of several micro-batches, of which all but the last are pruned; tokens that are fed to the
/// next step where they are, with a history of them.
#[derive(Debug, PartialEq)]
struct Outcome {
    logits: Vec<f32>,
    tokens: Vec<(u32, f32)>,
    generated: (Vec<u32>, Vec<f32>),
}

fn run(engine: &mut PlacedModel, tokenizer: &Tokenizer) -> Outcome {
    let prompt: Vec<u32> = (0..30).map(|i| i * 37 % 128).collect();
    let seq = engine.open().unwrap();
    let logits = engine.logits(seq, &prompt).unwrap();
    engine.truncate(seq, 5).unwrap();
    let mut tokens = vec![engine.eval(seq, &prompt, Sampler::GREEDY).unwrap()];
    for i in 0..3 {
        let last = tokens[i].0;
        tokens.push(engine.eval(seq, &[last, 3], Sampler::GREEDY).unwrap());
    }
    engine.truncate(seq, 0).unwrap();
    let sampler = Sampler { temperature: 0.9, top_k: 20, seed: 7, ..Sampler::GREEDY };
    let penalties = Some(Penalties { last_n: 16, repeat: 1.3, frequency: 0.1, presence: 0.1 });
    let (n_predict, stop) = (Some(12), Vec::new());
    let options = GenerateOptions {
        n_predict,
        sampler,
        penalties,
        ignore_eos: true,
        stop,
        log_probs: LogProbs::Chosen,
        ..GenerateOptions::default()
    };
    let generation = generate(engine, seq, tokenizer, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    Outcome { logits, tokens, generated: (generation.tokens, generation.log_probs) }
}

/// What holds for every split.
fn check_homes(engine: &PlacedModel) {
    let (homes, n_layer) = (engine.homes(), engine.model().hparams().n_layer);
    // In order, but for what the last one has of the beginning.
    let round = homes.len() - homes.iter().position(|home| Some(home) != homes.last()).unwrap_or(homes.len());
    let in_order = if homes.first() == homes.last() { &homes[homes.len() - round..] } else { homes };
    assert!(in_order.is_sorted() && homes.len() == 2 * n_layer, "{homes:?}");
    // Every layer counts to one device, and to the one with its part of the cache.
    let mut layers: Vec<usize> =
        engine.loads().iter().flat_map(|l| &l.layers).flat_map(|&(first, last)| first..=last).collect();
    layers.sort_unstable();
    assert_eq!(layers, (0..n_layer).collect::<Vec<_>>(), "{homes:?}");
    for (d, load) in engine.loads().iter().enumerate() {
        assert_eq!(load.is_used(), homes.contains(&d), "{load:?} {homes:?}");
        assert_eq!(!load.layers.is_empty(), homes.iter().step_by(2).any(|home| *home == d), "{load:?} {homes:?}");
    }
    let divided: Vec<usize> = (0..n_layer).filter(|il| homes[2 * il] != homes[2 * il + 1]).collect();
    assert_eq!(engine.divided_layers().iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), divided, "{homes:?}");
}

fn check(name: &str) {
    let model = model(name);
    let mut one = load(&model, &[1.0], None).unwrap();
    assert_eq!(one.loads()[0].layers, [(0, model.hparams().n_layer - 1)]);
    check_homes(&one);
    let tokenizer = small::tokenizer();
    let want = run(&mut one, &tokenizer);
    let mut seen = BTreeSet::new();
    let mut check = |mut engine: PlacedModel, what: &str| {
        check_homes(&engine);
        let homes = engine.homes().to_vec();
        assert_eq!(run(&mut engine, &tokenizer), want, "{name}, {what}: {homes:?}");
        seen.insert(homes);
    };
    for tenths in 1..10 {
        let split = [f64::from(tenths), f64::from(10 - tenths)];
        check(load(&model, &split, None).unwrap(), "divided by time");
    }
    for split in [&[1.0; 3][..], &[1.0; 6], &[0.0, 1.0, 0.0, 1.0, 0.0]] {
        check(load(&model, split, None).unwrap(), "several devices");
    }
    // Where there is not enough memory for that, any division may come out, the end of the model alone on a device among them.
    let bytes = Parts::new(&model, Cache::of_one(CTX), &Costs::default()).unwrap().bytes();
    for percent in 1..=120 {
        if let Ok(engine) = load(&model, &[100.0, 1.0], Some(bytes * percent / 100)) {
            check(engine, "divided by memory");
        }
    }
    for homes in [[0, 0, 0, 1], [0, 1, 1, 1], [1, 0, 1, 1]] {
        assert!(seen.contains(&homes[..]), "{name}, never {homes:?}: {seen:?}");
    }
}

small::each!(check);

#[test]
fn work_of_a_prompt() {
    let model = model("llama-dense");
    let h = model.hparams();
    let parts = Parts::new(&model, Cache::of_one(CTX), &Costs::default()).unwrap();
    assert_eq!(
        parts.sections.iter().map(|part| part.layer).collect::<Vec<_>>(),
        (0..h.n_layer).flat_map(|il| [il, il]).collect::<Vec<_>>()
    );
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
