//! What tests of small models have in common.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unused_imports, unused_macros)]

use outboard_core::DType;
use outboard_core::quant::quantize_row;
use outboard_llm::Model;
use outboard_llm::gguf::{Gguf, GgufWriter, TensorInfo};
use outboard_llm::tokenizer::Tokenizer;
use outboard_system::open_mapped;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A test for each model of `tests/data/arch`: a function that is given its name.
macro_rules! each {
    ($check:ident) => {
        small::each! { $check:
            llama_dense "llama-dense", llama_moe "llama-moe", mistral3_dense "mistral3-dense", granite_dense "granite-dense",
            smollm3_dense "smollm3-dense", qwen2_dense "qwen2-dense", qwen2moe_moe "qwen2moe-moe", qwen3_dense "qwen3-dense",
            qwen3moe_moe "qwen3moe-moe", gemma2_dense "gemma2-dense", gemma3_dense "gemma3-dense", phi3_dense "phi3-dense",
            olmo2_dense "olmo2-dense", gpt_oss_moe "gpt-oss-moe",
        }
    };
    ($check:ident: $($test:ident $name:literal,)*) => {
        $(#[test]
        fn $test() {
            $check($name);
        })*
    };
}
pub(crate) use each;

/// Where one of them is.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/arch/{name}.gguf"))
}

/// One of them.
pub(crate) fn model(name: &str) -> Arc<Model> {
    Arc::new(Model::new(Gguf::parse(open_mapped(&file(name)).unwrap()).unwrap()).unwrap())
}

/// A model of a file, with matrices of blocks where that has floats.
pub(crate) fn quantized(file: &Path) -> Arc<Model> {
    let from = Gguf::parse(open_mapped(file).unwrap()).unwrap();
    let mut to = GgufWriter::new();
    for (key, value) in from.metadata() {
        to.value(key, value.clone());
    }
    let blocks = |t: &TensorInfo| {
        let data = from.data(t);
        let [columns, rows, ..] = t.layout.ne();
        if t.layout.dtype() != DType::F32 || rows == 1 || columns % 32 != 0 {
            return (t.layout.dtype(), data.to_vec());
        }
        let values: Vec<f32> = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut quantized = vec![0; values.len() / 32 * DType::Q8_0.block_bytes()];
        quantize_row(DType::Q8_0, &values, &mut quantized).unwrap();
        (DType::Q8_0, quantized)
    };
    let data: Vec<_> = from.tensors().iter().map(blocks).collect();
    for (t, (dtype, data)) in from.tensors().iter().zip(&data) {
        to.tensor(&t.name, *dtype, &t.layout.ne(), data).unwrap();
    }
    Arc::new(Model::new(Gguf::parse(to.finish().unwrap().into()).unwrap()).unwrap())
}

/// Words of two letters, one for each of the 128 tokens of those models.
pub(crate) fn tokenizer() -> Tokenizer {
    let letter = |n: u8| char::from(b'a' + n).to_string();
    let tokens: Vec<String> = (0..128u8).map(|n| letter(n / 16) + &letter(n % 16)).collect();
    let mut file = GgufWriter::new();
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
    file.texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &["a a"]);
    Tokenizer::from_gguf(&Gguf::parse(file.finish().unwrap().into()).unwrap()).unwrap()
}
