//! Mixtures of experts of which each token uses some, against the same computed in f64.
//!
//! The models have one layer, whose attention adds nothing (`attn_output` is zero), and random weights for the rest.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::quant::{dequantize_row, quantize_row};
use outboard_core::{DType, Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::{Gguf, GgufWriter};
use outboard_llm::{LoadOptions, Model, PlacedModel};
use outboard_reference::reference_device;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const WIDTH: usize = 64;
const HIDDEN: usize = 32;
const VOCAB: usize = 24;
const EXPERTS: usize = 8;
const EPS: f64 = 1e-5;

/// What the chosen experts' results are multiplied by.
#[derive(Clone, Copy, PartialEq)]
enum Weighing {
    Probabilities,
    Shares,
}

struct Case {
    arch: &'static str,
    used: usize,
    weighing: Weighing,
    /// Of the experts' weights.
    dtype: DType,
    /// The norm before the experts.
    norm: &'static str,
}

/// A model's tensors as they are in its file.
struct Tensors {
    seed: u64,
    values: HashMap<String, Vec<f64>>,
    file: GgufWriter<'static>,
}

impl Tensors {
    /// A number in -1..1 (a linear congruential generator).
    fn random(&mut self) -> f32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn add(&mut self, name: &str, shape: &[usize], factor: f32) {
        self.add_as(name, shape, factor, DType::F32);
    }

    fn add_as(&mut self, name: &str, shape: &[usize], factor: f32, dtype: DType) {
        let mut values: Vec<f32> = (0..shape.iter().product()).map(|_| factor * self.random()).collect();
        let mut bytes = Vec::new();
        for row in values.chunks_mut(shape[0]) {
            let mut stored = vec![0; dtype.row_bytes(row.len()).unwrap()];
            match dtype {
                DType::F32 => stored = row.iter().flat_map(|v| v.to_le_bytes()).collect(),
                _ => {
                    quantize_row(dtype, row, &mut stored).unwrap();
                    dequantize_row(dtype, &stored, row).unwrap();
                }
            }
            bytes.extend(stored);
        }
        self.file.tensor(name, dtype, shape, &bytes).unwrap();
        self.values.insert(name.to_owned(), values.into_iter().map(f64::from).collect());
    }

    /// `name.weight * x + name.bias` of one expert.
    fn linear(&self, name: &str, expert: usize, x: &[f64], rows: usize) -> Vec<f64> {
        let weight = &self.values[&format!("{name}.weight")][expert * rows * x.len()..][..rows * x.len()];
        let bias = self.values.get(&format!("{name}.bias"));
        let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        let product = weight.chunks(x.len()).map(dot).enumerate();
        product.map(|(i, y)| y + bias.map_or(0.0, |bias| bias[expert * rows + i])).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        x.iter().zip(&self.values[name]).map(|(v, w)| v / (mean + EPS).sqrt() * w).collect()
    }
}

impl Case {
    fn model(&self) -> Tensors {
        let mut t = Tensors { seed: 11, values: HashMap::new(), file: GgufWriter::new() };
        let arch = self.arch;
        t.file.text("general.architecture", arch);
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", WIDTH),
            ("attention.head_count", 2),
            ("attention.sliding_window", 8),
            ("expert_count", EXPERTS),
            ("expert_used_count", self.used),
        ] {
            t.file.u32(&format!("{arch}.{key}"), value as u32);
        }
        t.file.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), EPS as f32);
        t.file.f32(&format!("{arch}.rope.freq_base"), 10000.0);
        t.add("token_embd.weight", &[WIDTH, VOCAB], 1.0);
        for name in ["output_norm", "blk.0.attn_norm"] {
            t.add(&format!("{name}.weight"), &[WIDTH], 1.0);
        }
        t.add(&format!("blk.0.{}.weight", self.norm), &[WIDTH], 2.0);
        t.add("output.weight", &[WIDTH, VOCAB], 0.3);
        for (name, factor) in [("attn_q", 0.1), ("attn_k", 0.1), ("attn_v", 0.1), ("attn_output", 0.0)] {
            t.add(&format!("blk.0.{name}.weight"), &[WIDTH, WIDTH], factor);
        }
        t.add("blk.0.ffn_gate_inp.weight", &[WIDTH, EXPERTS], 0.3);
        for (name, shape) in [("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]), ("down", [HIDDEN, WIDTH])] {
            t.add_as(&format!("blk.0.ffn_{name}_exps.weight"), &[shape[0], shape[1], EXPERTS], 0.3, self.dtype);
        }
        self.add_what_this_family_has(&mut t);
        t
    }

    fn add_what_this_family_has(&self, t: &mut Tensors) {
        match self.arch {
            "qwen3moe" => {
                t.add("blk.0.attn_q_norm.weight", &[WIDTH / 2], 1.0);
                t.add("blk.0.attn_k_norm.weight", &[WIDTH / 2], 1.0);
            }
            "qwen2moe" => {
                t.add("blk.0.ffn_gate_inp_shexp.weight", &[WIDTH], 0.5);
                for (name, shape) in [("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]), ("down", [HIDDEN, WIDTH])] {
                    t.add(&format!("blk.0.ffn_{name}_shexp.weight"), &shape, 0.3);
                }
            }
            "gpt-oss" => {
                t.add("blk.0.attn_sinks.weight", &[2], 1.0);
                t.add("blk.0.ffn_gate_inp.bias", &[EXPERTS], 3.0);
                for (name, width) in [("gate", HIDDEN), ("up", HIDDEN), ("down", WIDTH)] {
                    t.add(&format!("blk.0.ffn_{name}_exps.bias"), &[width, EXPERTS], 3.0);
                }
            }
            _ => {}
        }
    }

    fn glu(&self, gate: f64, up: f64) -> f64 {
        if self.arch != "gpt-oss" {
            return gate / (1.0 + (-gate).exp()) * up;
        }
        let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
        gate / (1.0 + (-1.702 * gate).exp()) * (1.0 + up)
    }

    fn expert(&self, t: &Tensors, kind: &str, expert: usize, x: &[f64]) -> Vec<f64> {
        let gate = t.linear(&format!("blk.0.ffn_gate_{kind}"), expert, x, HIDDEN);
        let up = t.linear(&format!("blk.0.ffn_up_{kind}"), expert, x, HIDDEN);
        let y: Vec<f64> = gate.into_iter().zip(up).map(|(gate, up)| self.glu(gate, up)).collect();
        t.linear(&format!("blk.0.ffn_down_{kind}"), expert, &y, WIDTH)
    }

    /// Logits of a token, and which experts it uses.
    fn expected(&self, t: &Tensors, token: usize, weighing: Weighing) -> (Vec<f64>, Vec<usize>) {
        let mut x = t.values["token_embd.weight"][token * WIDTH..][..WIDTH].to_vec();
        let normed = t.norm(&format!("blk.0.{}.weight", self.norm), &x);
        let logits = t.linear("blk.0.ffn_gate_inp", 0, &normed, EXPERTS);
        let sum: f64 = logits.iter().map(|l| l.exp()).sum();
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let (chosen, others) = order.split_at(self.used);
        let gap = logits[chosen[self.used - 1]] - logits[others[0]];
        assert!(gap > 1e-4, "token {token} of {} is between two experts: {gap}", self.arch);
        let probability = |&e: &usize| logits[e].exp() / sum;
        let all: f64 = chosen.iter().map(probability).sum();
        for e in chosen {
            let weight = probability(e) / if weighing == Weighing::Shares { all } else { 1.0 };
            let y = self.expert(t, "exps", *e, &normed);
            x.iter_mut().zip(y).for_each(|(x, y)| *x += weight * y);
        }
        if t.values.contains_key("blk.0.ffn_gate_inp_shexp.weight") {
            let gate = t.linear("blk.0.ffn_gate_inp_shexp", 0, &normed, 1)[0];
            let y = self.expert(t, "shexp", 0, &normed);
            x.iter_mut().zip(y).for_each(|(x, y)| *x += y / (1.0 + (-gate).exp()));
        }
        (t.linear("output", 0, &t.norm("output_norm.weight", &x), VOCAB), chosen.to_vec())
    }
}

fn nmse(got: &[f64], want: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(want).map(|(g, w)| (g - w) * (g - w)).sum();
    error / want.iter().map(|w| w * w).sum::<f64>()
}

fn check(case: &Case, most: [f64; 2]) {
    let t = case.model();
    let tokens: Vec<u32> = (0..VOCAB as u32).collect();
    let all = |weighing| -> (Vec<f64>, BTreeSet<usize>) {
        let each = tokens.iter().map(|&token| case.expected(&t, token as usize, weighing));
        let (logits, experts): (Vec<_>, Vec<_>) = each.unzip();
        (logits.concat(), experts.concat().into_iter().collect())
    };
    let (want, experts) = all(case.weighing);
    assert!(experts.len() > case.used, "{}: all tokens use the same experts", case.arch);
    let other = if case.weighing == Weighing::Shares { Weighing::Probabilities } else { Weighing::Shares };
    assert!(nmse(&all(other).0, &want) > 1e-3, "{}: it does not show how experts are weighed", case.arch);

    let model = Arc::new(Model::new(Gguf::parse(t.file.finish().unwrap().into()).unwrap()).unwrap());
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |id: &str| cpu_device(&host, id, CpuOptions::with_threads(1), &budget);
    let sets: [(Vec<Arc<dyn Device>>, f64); 3] = [
        (vec![reference_device(&host, "REF", &budget)], most[0]),
        (vec![cpu("CPU0")], most[1]),
        (vec![cpu("CPU1"), cpu("CPU2")], most[1]),
    ];
    for (devices, most) in sets {
        for n_ubatch in [VOCAB, 5, 1] {
            let options =
                LoadOptions { n_ctx: 32, n_ubatch, split: vec![1.0; devices.len()], ..LoadOptions::default() };
            let mut engine = PlacedModel::load(model.clone(), devices.clone(), &options, &|_, _| {}).unwrap();
            let seq = engine.open().unwrap();
            let got: Vec<f64> = engine.logits(seq, &tokens).unwrap().into_iter().map(f64::from).collect();
            let error = nmse(&got, &want);
            println!("{} {}, {} devices, {n_ubatch} at once: NMSE {error:.2e}", case.arch, case.dtype, devices.len());
            assert!(got.len() == want.len() && error <= most, "{}, {n_ubatch} at once: NMSE {error:e}", case.arch);
        }
    }
}

const F32: [f64; 2] = [1e-10; 2];

#[test]
fn shares_of_the_chosen() {
    for arch in ["llama", "qwen3moe"] {
        check(&Case { arch, used: 2, weighing: Weighing::Shares, dtype: DType::F32, norm: "ffn_norm" }, F32);
    }
}

#[test]
fn probabilities_and_a_shared_expert() {
    let case =
        Case { arch: "qwen2moe", used: 3, weighing: Weighing::Probabilities, dtype: DType::F32, norm: "ffn_norm" };
    check(&case, F32);
}

/// The softmax over some logits is what they have of the softmax over all.
#[test]
fn softmax_of_the_chosen_with_biases() {
    let case =
        Case { arch: "gpt-oss", used: 3, weighing: Weighing::Shares, dtype: DType::F32, norm: "post_attention_norm" };
    check(&case, F32);
    // Kernels of quantized weights round activations to 8 bits.
    check(&Case { dtype: DType::MXFP4, ..case }, [1e-10, 1e-3]);
}
