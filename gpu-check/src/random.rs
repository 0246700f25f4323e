//! A model of the shape of an 8B Llama with random weights: for times, which do not depend on what a model says.

use anyhow::{Context, Result};
use outboard_core::DType;
use outboard_core::quant::quantize_row;
use outboard_gguf::GgufWriter;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;

/// Of Llama 3.1 8B.
const EMBD: usize = 4096;
const FF: usize = 14336;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const VOCAB: usize = 128_256;
/// Elements of a tensor that are not repeated.
const PATTERN: usize = 1 << 20;

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Between -1 and 1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// So many random elements, of the size that weights have.
pub(crate) fn weights(dtype: DType, elements: usize) -> Result<Vec<u8>> {
    let mut random = Random(1);
    let values: Vec<f32> = (0..elements).map(|_| 0.02 * random.float()).collect();
    let mut bytes = vec![0; elements / dtype.block_len() * dtype.block_bytes()];
    match dtype {
        DType::F32 => bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => quantize_row(dtype, &values, &mut bytes).with_context(|| format!("weights of {dtype}"))?,
    }
    Ok(bytes)
}

/// A pattern, again and again.
struct Repeated<'a> {
    pattern: &'a [u8],
    at: usize,
}

impl Read for Repeated<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = to.len().min(self.pattern.len() - self.at);
        to[..n].copy_from_slice(&self.pattern[self.at..self.at + n]);
        self.at = (self.at + n) % self.pattern.len();
        Ok(n)
    }
}

/// Writes the model, with matrices of this type.
pub(crate) fn write(path: &Path, dtype: DType, layers: usize) -> Result<()> {
    let (matrix, ones) = (weights(dtype, PATTERN)?, vec![1.0f32; EMBD]);
    let ones: Vec<u8> = ones.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut file = GgufWriter::new();
    describe(&mut file, layers);
    let kv = EMBD / HEADS * KV_HEADS;
    let mut add = |name: &str, shape: [usize; 2]| -> Result<()> {
        file.tensor_from(name, dtype, &shape, Repeated { pattern: &matrix, at: 0 })?;
        Ok(())
    };
    add("token_embd.weight", [EMBD, VOCAB])?;
    add("output.weight", [EMBD, VOCAB])?;
    for layer in 0..layers {
        let shapes = [
            ("attn_q", [EMBD, EMBD]),
            ("attn_k", [EMBD, kv]),
            ("attn_v", [EMBD, kv]),
            ("attn_output", [EMBD, EMBD]),
            ("ffn_gate", [EMBD, FF]),
            ("ffn_up", [EMBD, FF]),
            ("ffn_down", [FF, EMBD]),
        ];
        for (name, shape) in shapes {
            add(&format!("blk.{layer}.{name}.weight"), shape)?;
        }
    }
    for layer in 0..layers {
        for name in ["attn_norm", "ffn_norm"] {
            file.tensor(&format!("blk.{layer}.{name}.weight"), DType::F32, &[EMBD], &ones)?;
        }
    }
    file.tensor("output_norm.weight", DType::F32, &[EMBD], &ones)?;
    let out = File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
    file.write(BufWriter::with_capacity(1 << 20, out)).context("a model")
}

/// What a file says of such a model.
fn describe(file: &mut GgufWriter<'_>, layers: usize) {
    file.text("general.architecture", "llama").text("general.name", "random weights");
    file.u32("llama.block_count", layers as u32).u32("llama.context_length", 8192);
    file.u32("llama.embedding_length", EMBD as u32).u32("llama.feed_forward_length", FF as u32);
    file.u32("llama.attention.head_count", HEADS as u32).u32("llama.attention.head_count_kv", KV_HEADS as u32);
    file.u32("llama.rope.dimension_count", (EMBD / HEADS) as u32).f32("llama.rope.freq_base", 500_000.0);
    file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5).u32("llama.vocab_size", VOCAB as u32);
    let tokens: Vec<String> = (0..VOCAB).map(|token| format!("t{token}")).collect();
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
    file.texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &["a a"]);
}
