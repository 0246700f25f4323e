//! Real model files for tests: from the directory that OUTBOARD_TEST_MODELS names, or else from where `outboard fetch` puts
//! them.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use outboard_llm::gguf::Gguf;
use std::path::PathBuf;

/// The model of that name in the catalogue, or `None` with a printed reason.
pub fn model(name: &str) -> Option<Gguf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = var("OUTBOARD_TEST_MODELS").or_else(|| {
        let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        var("OUTBOARD_CACHE").or_else(|| Some(cache?.join("outboard"))).map(|cache| cache.join("models"))
    })?;
    let path = dir.join(format!("{name}.gguf"));
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) => {
            println!("skipped: {}: {e} (\"outboard fetch {name}\" or OUTBOARD_TEST_MODELS)", path.display());
            return None;
        }
    };
    let bytes = bytes.into();
    let start = std::time::Instant::now();
    let gguf = Gguf::parse(bytes).unwrap();
    println!("{name}: {} tensors read in {:?}", gguf.tensors().len(), start.elapsed());
    Some(gguf)
}
