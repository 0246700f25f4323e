//! A model that is small enough to be beside the sources. Tests of other crates include this file.

use outboard_llm::gguf::{Gguf, GgufWriter};
use std::path::{Path, PathBuf};

/// Writes one of the models of `llm/tests/data/arch` into a folder, with a tokenizer, which they are without: its 128 tokens are characters, and
/// some pairs of them.
pub fn small_model(dir: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/tests/data/arch/llama-dense.gguf");
    let gguf = Gguf::parse(std::fs::read(from).expect("a small model").into()).expect("a model");
    let mut file = GgufWriter::new();
    let metadata = gguf.metadata().filter(|(key, _)| !key.starts_with("tokenizer.") && *key != "general.alignment");
    for (key, value) in metadata {
        file.value(key, value.clone());
    }
    let characters = (b'!'..=b'~').map(|n| char::from(n).to_string());
    let pairs = (b'a'..=b'z').flat_map(|a| (b'a'..=b'z').map(move |b| format!("{}{}", char::from(a), char::from(b))));
    let tokens: Vec<String> = characters.chain(pairs).take(128).collect();
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
    file.texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &["a a"]);
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    file.text("tokenizer.chat_template", template);
    let data: Vec<_> = gguf.tensors().iter().map(|tensor| gguf.data(tensor)).collect();
    for (tensor, data) in gguf.tensors().iter().zip(&data) {
        file.tensor(&tensor.name, tensor.layout.dtype(), &tensor.layout.ne(), data).expect("a tensor");
    }
    let path = dir.join("small.gguf");
    std::fs::write(&path, file.finish().expect("a file")).expect("a file is written");
    path
}
