//! Tokens of three real models against those of llama.cpp.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use outboard_llm::tokenizer::Bos::{Add, Omit};
use outboard_llm::tokenizer::SpecialText::{Literal, Parse};
use outboard_llm::tokenizer::SpecialTokens::Skip;
use outboard_llm::tokenizer::{TextStream, Tokenizer};
use serde_json::Value;
use std::time::Instant;

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn check(name: &str) {
    let Some(gguf) = common::model(name) else { return };
    let reference: Value = serde_json::from_str(include_str!("data/tokenizer.json")).unwrap();
    let reference = &reference[name];
    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    println!("{name}: {} tokens loaded in {:?}", tokenizer.n_vocab(), start.elapsed());
    for case in reference["tokenize"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Parse, Omit).unwrap(), ids(&case["tokens"]), "{text:?}");
        let plain = tokenizer.encode(text, Literal, Omit).unwrap();
        assert_eq!(plain, ids(&case["tokens_no_special"]), "{text:?} without special tokens");
        assert_eq!(tokenizer.decode(&plain, Skip), text);
        let mut stream = TextStream::new();
        let mut streamed: String = plain.iter().map(|&id| stream.push(&tokenizer, id, Skip)).collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, text);
    }
    for case in reference["prompts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Parse, Add).unwrap(), ids(&case["tokens"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids(&case["generated"]), Skip), case["generated_text"].as_str().unwrap());
    }
    for id in [tokenizer.eos(), tokenizer.eot()].into_iter().flatten() {
        assert!(tokenizer.is_eog(id));
    }
}

#[test]
fn smollm2() {
    check("smollm2");
}

#[test]
fn qwen2_5_coder() {
    check("qwen2.5-coder");
}

#[test]
fn gemma3() {
    check("gemma3");
}
