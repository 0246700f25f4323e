//! Real model files for tests.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "../../../integration/src/models.rs"]
mod models;

use outboard_llm::gguf::Gguf;

/// The model of that name in the catalogue, or `None` with a printed reason.
pub fn model(name: &str) -> Option<Gguf> {
    let path = models::model(name)?;
    let bytes = std::fs::read(&path).unwrap().into();
    let start = std::time::Instant::now();
    let gguf = Gguf::parse(bytes).unwrap();
    println!("{name}: {} tensors read in {:?}", gguf.tensors().len(), start.elapsed());
    Some(gguf)
}
