//! Small random models of each architecture against llama.cpp's logits for 24 or 80 tokens: windows are 32.
//!
//! The files have two layers, 128 tokens of vocabulary, F32 and F16 weights and no tokenizer; the logits come from llama.cpp
//! (ggml 0.25.3, one thread, no flash attention).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::{DType, Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::{Gguf, GgufWriter};
use outboard_llm::{LoadOptions, LogProbs, Mmap, Model, PlacedModel, Sampler, Sampling, Sequence};
use outboard_reference::reference_device;
use outboard_system::open_mapped;
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

/// Tokens, and llama.cpp's logits for all of them.
struct Reference {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

/// Those of a model: one, or a short and a long one.
fn references(name: &str) -> Vec<Reference> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    let longer = ["gemma3-dense", "phi3-dense", "gpt-oss-moe"].contains(&name).then(|| format!("{name}-80"));
    let read = |name: String| {
        let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
        let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tokens = reference["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let rows = reference["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        Reference { tokens, logits: rows.map(|v| v.as_f64().unwrap() as f32).collect() }
    };
    [Some(name.to_owned()), longer].into_iter().flatten().map(read).collect()
}

fn check(name: &str) {
    check_model(name, &small::model(name), &references(name));
}

fn check_model(name: &str, model: &Arc<Model>, references: &[Reference]) {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |id: &str, threads| cpu_device(&host, id, CpuOptions::with_threads(threads), &budget);
    let sets: [(&str, Vec<Arc<dyn Device>>); 3] = [
        ("reference", vec![reference_device(&host, "REF", &budget)]),
        ("cpu", vec![cpu("CPU0", 2)]),
        ("two cpu devices", vec![cpu("CPU1", 1), cpu("CPU2", 1)]),
    ];
    for (devices, set) in sets {
        // All tokens at once, in micro-batches of seven, one by one; weights in the mapped file and in memory.
        for (n_ubatch, mmap) in [(80, Mmap::Always), (7, Mmap::Never), (1, Mmap::Auto)] {
            let options = LoadOptions { n_ctx: 96, n_ubatch, mmap, ..LoadOptions::default() };
            let copied = AtomicBool::new(false);
            let progress = |_, _| copied.store(true, Ordering::Relaxed);
            let mut engine = PlacedModel::load(model.clone(), set.clone(), &options, &progress).unwrap();
            let seq = engine.open().unwrap();
            assert!(mmap == Mmap::Always || copied.into_inner(), "{name} on {devices}: weights were not copied");
            for Reference { tokens, logits } in references {
                engine.truncate(seq, 0).unwrap();
                let error = nmse(&engine.logits(seq, tokens).unwrap(), logits);
                let what = format!("{} tokens of {name} on {devices}, {n_ubatch} at once", tokens.len());
                println!("{what}: NMSE {error:.2e}");
                assert!(error <= MAX_NMSE, "{what}: NMSE {error:e}");
            }
        }
    }
}

small::each!(check);

/// A sequence that is to say what the reference says.
struct Follower {
    sequence: Sequence,
    /// When it begins, in steps of the others, and how many tokens it is given then.
    start: usize,
    given: usize,
    /// Tokens of the reference that it has read or said.
    said: usize,
}

/// Follows the reference in four sequences at once, which begin one after the other with more and more of it: prompts and steps of several are
/// in one run. A bias excludes every token but the one that is next, so that the log-probabilities are those of the reference's tokens.
fn check_together(name: &str) {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |id: &str| cpu_device(&host, id, CpuOptions::with_threads(1), &budget);
    let sets: [Vec<Arc<dyn Device>>; 2] = [vec![cpu("CPU0")], vec![cpu("CPU1"), cpu("CPU2")]];
    for (set, reference) in sets.iter().flat_map(|set| references(name).into_iter().map(move |r| (set, r))) {
        let split = vec![1.0; set.len()];
        let options = LoadOptions { n_ctx: 96, n_seqs: 4, n_ubatch: 16, split, ..LoadOptions::default() };
        let mut model = PlacedModel::load(small::model(name), set.clone(), &options, &|_, _| {}).unwrap();
        let (got, want) = follow(&mut model, &reference);
        let error = nmse(&got, &want);
        println!("{name} in four sequences on {} devices: NMSE {error:.2e}", set.len());
        assert!(error <= MAX_NMSE, "{name} in four sequences on {} devices: NMSE {error:e}", set.len());
    }
}

/// The log-probabilities of what each sequence says, and the reference's.
fn follow(model: &mut PlacedModel, Reference { tokens, logits }: &Reference) -> (Vec<f32>, Vec<f32>) {
    let n_vocab = model.model().hparams().n_vocab;
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let mut followers: Vec<Follower> = [(0, 3), (1, 1), (3, 7), (6, 18)]
        .map(|(start, given)| Follower { sequence: model.open().unwrap(), start, given, said: 0 })
        .into();
    let (mut got, mut want, mut step) = (Vec::new(), Vec::new(), 0);
    while followers.iter().any(|f| f.said < tokens.len()) {
        for f in followers.iter_mut().filter(|f| f.start <= step && f.said < tokens.len()) {
            let prompt = if f.said == 0 { &tokens[..f.given] } else { &[] };
            f.said += prompt.len();
            let next = tokens[f.said] as usize;
            let only_next = (0..n_vocab).map(|id| if id == next { 0.0 } else { f32::NEG_INFINITY }).collect();
            model.set_bias(f.sequence, Some(only_next)).unwrap();
            model.begin(f.sequence, prompt, sampling, 1).unwrap();
        }
        while let Some(token) = model.next_token().unwrap() {
            let f = followers.iter_mut().find(|f| f.sequence == token.sequence).unwrap();
            assert_eq!(token.id, tokens[f.said]);
            got.push(token.log_prob.unwrap());
            want.push(log_prob(&logits[(f.said - 1) * n_vocab..][..n_vocab], token.id as usize));
            f.said += 1;
        }
        step += 1;
    }
    assert_eq!(got.len(), 4 * tokens.len() - 29, "each token that none was given");
    (got, want)
}

fn log_prob(logits: &[f32], id: usize) -> f32 {
    let sum: f64 = logits.iter().map(|&v| f64::from(v).exp()).sum();
    (f64::from(logits[id]) - sum.ln()) as f32
}

mod together {
    use super::{check_together, small};

    small::each!(check_together);
}

/// Files of Phi-3 have q, k and v in one matrix; the small one has three.
#[test]
fn queries_keys_and_values_in_one_matrix() {
    let file = small::file("phi3-dense");
    let apart = Gguf::parse(open_mapped(&file).unwrap()).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        let tensor = apart.tensor(name).unwrap_or_else(|| panic!("{name}"));
        apart.data(tensor).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let mut fused = GgufWriter::new();
    fused.text("general.architecture", "phi3").f32("phi3.attention.layer_norm_rms_epsilon", 1e-5);
    for key in ["block_count", "context_length", "embedding_length", "attention.head_count"] {
        let key = format!("phi3.{key}");
        fused.u32(&key, apart.u64(&key).unwrap() as u32);
    }
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for tensor in
        apart.tensors().iter().filter(|t| !["attn_q.", "attn_k.", "attn_v."].iter().any(|p| t.name.contains(p)))
    {
        fused.tensor(&tensor.name, tensor.layout.dtype(), &tensor.layout.ne(), &apart.data(tensor)).unwrap();
    }
    for il in 0..2 {
        // What scales a product scales its weights.
        let part = |p: &str| {
            let scale = floats(&format!("blk.{il}.attn_{p}.scale"))[0];
            floats(&format!("blk.{il}.attn_{p}.weight")).iter().map(|w| w * scale).collect::<Vec<f32>>()
        };
        let weight = ["q", "k", "v"].map(part).concat();
        let bias = ["q", "k", "v"].map(|p| floats(&format!("blk.{il}.attn_{p}.bias"))).concat();
        fused.tensor(&format!("blk.{il}.attn_qkv.weight"), DType::F32, &[256, 768], &bytes(&weight)).unwrap();
        fused.tensor(&format!("blk.{il}.attn_qkv.bias"), DType::F32, &[768], &bytes(&bias)).unwrap();
    }
    let model = Model::new(Gguf::parse(fused.finish().unwrap().into()).unwrap()).unwrap();
    check_model("phi3-dense, fused", &Arc::new(model), &references("phi3-dense"));
}
