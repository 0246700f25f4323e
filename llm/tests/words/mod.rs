//! Vocabularies that can write JSON.
#![allow(clippy::unwrap_used, dead_code)]

use outboard_llm::gguf::{Gguf, GgufWriter};
use outboard_llm::tokenizer::Tokenizer;

/// Some texts that vocabularies have as one token.
const SHORT: [&str; 25] = [
    "{\"", "\":", "\",", "\"}", "},", "],", "[{", "}]", ": ", ", ", "\": \"", "\", \"", "true", "false", "null", "an",
    "er", "ab", "cd", "10", "12", "\\n", "\\u00", "  ", "id",
];

/// A byte as byte-level vocabularies write it.
fn written(byte: u8) -> char {
    let is_itself = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let before = (0..byte).filter(|b| !is_itself(*b)).count() as u32;
    if is_itself(byte) { char::from(byte) } else { char::from_u32(256 + before).unwrap() }
}

fn token(bytes: &[u8]) -> String {
    bytes.iter().map(|b| written(*b)).collect()
}

/// 128 tokens, for the models of `tests/data/arch`: ASCII, some short texts, and one that ends a text.
pub(crate) fn ascii() -> Tokenizer {
    let bytes = (b' '..=b'~').chain([b'\n', b'\t']).map(|b| token(&[b]));
    let mut tokens: Vec<String> = bytes.chain(SHORT.iter().map(|text| token(text.as_bytes()))).collect();
    tokens.resize(127, "unused".into());
    of(tokens)
}

/// All bytes, short texts, many words, and one that ends a text.
pub(crate) fn large() -> Tokenizer {
    let bytes = (0..=255u8).map(|b| token(&[b]));
    let mut tokens: Vec<String> = bytes.chain(SHORT.iter().map(|text| token(text.as_bytes()))).collect();
    for first in b'a'..=b'z' {
        tokens.extend((b'a'..=b'z').map(|second| token(&[b' ', first, second])));
        tokens.extend((b'a'..=b'z').map(|second| token(&[first, second, b'e'])));
    }
    tokens.extend(["é", "ß", "日本", "😀", " ü"].map(|text| token(text.as_bytes())));
    of(tokens)
}

fn of(mut tokens: Vec<String>) -> Tokenizer {
    tokens.push("<|im_end|>".into());
    let mut file = GgufWriter::new();
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
    file.texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &["a a"]);
    Tokenizer::from_gguf(&Gguf::parse(file.finish().unwrap().into()).unwrap()).unwrap()
}
