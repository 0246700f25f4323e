//! What tests of small models have in common.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unused_imports, unused_macros)]

use outboard_llm::Model;
use outboard_llm::gguf::{Gguf, GgufWriter};
use outboard_llm::tokenizer::Tokenizer;
use outboard_system::open_mapped;
use std::path::Path;
use std::sync::Arc;

/// A test for each model of `tests/data/arch`: a function that is given its name.
macro_rules! each {
    ($check:ident) => {
        #[test]
        fn llama_dense() {
            $check("llama-dense");
        }

        #[test]
        fn llama_moe() {
            $check("llama-moe");
        }

        #[test]
        fn qwen2_dense() {
            $check("qwen2-dense");
        }

        #[test]
        fn qwen3_dense() {
            $check("qwen3-dense");
        }

        #[test]
        fn qwen3moe_moe() {
            $check("qwen3moe-moe");
        }

        #[test]
        fn gemma3_dense() {
            $check("gemma3-dense");
        }
    };
}
pub(crate) use each;

/// One of them.
pub(crate) fn model(name: &str) -> Arc<Model> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/arch/{name}.gguf"));
    Arc::new(Model::new(Gguf::parse(open_mapped(&file).unwrap()).unwrap()).unwrap())
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
