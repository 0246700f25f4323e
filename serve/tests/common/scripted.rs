//! A model that always writes the same.

use super::small_model;
use outboard_llm::gguf::{Gguf, GgufWriter};
use std::path::{Path, PathBuf};

/// What the answer ends with: requests say it as their stop string.
pub const STOP: &str = "$$";

/// What the token is that it writes again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    UserDefined = 4,
    Control = 3,
}

/// Writes a small model with this template, whose first token stands for `answer`. All logits are 0, so that at temperature 0 it is chosen each time.
pub fn scripted_model(dir: &Path, template: &str, answer: &str, kind: Kind) -> PathBuf {
    let gguf = Gguf::parse(std::fs::read(small_model(dir)).unwrap().into()).unwrap();
    let mut file = GgufWriter::new();
    let others = ["tokenizer.chat_template", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "general.alignment"];
    for (key, value) in gguf.metadata().filter(|(key, _)| !others.contains(key)) {
        file.value(key, value.clone());
    }
    // Blanks, line ends and the other characters of prompts.
    let characters = (b'!'..=b'~').map(|n| char::from(n).to_string());
    let mut tokens: Vec<String> = [answer.to_owned(), "\u{120}".into(), "\u{10a}".into()].into();
    tokens.extend(characters);
    let fill = (0..).map(|i| format!("unused{i}")).take(128 - tokens.len());
    tokens.extend(fill);
    file.texts("tokenizer.ggml.tokens", &tokens).text("tokenizer.chat_template", template);
    let kinds: Vec<i32> = (0..128).map(|i| if i == 0 { kind as i32 } else { 1 }).collect();
    file.i32s("tokenizer.ggml.token_type", &kinds);
    let has_output = gguf.tensors().iter().any(|tensor| tensor.name == "output.weight");
    let zero = if has_output { "output.weight" } else { "token_embd.weight" };
    let data: Vec<Vec<u8>> = gguf
        .tensors()
        .iter()
        .map(|tensor| if tensor.name == zero { vec![0; gguf.data(tensor).len()] } else { gguf.data(tensor).to_vec() })
        .collect();
    for (tensor, data) in gguf.tensors().iter().zip(&data) {
        file.tensor(&tensor.name, tensor.layout.dtype(), &tensor.layout.ne(), data).unwrap();
    }
    let path = dir.join("scripted.gguf");
    std::fs::write(&path, file.finish().unwrap()).unwrap();
    path
}
