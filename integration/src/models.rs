//! Real model files.

use std::io::Write;
use std::path::PathBuf;

/// A model of the catalogue: from the folder that `OUTBOARD_TEST_MODELS` names, or else from where `outboard fetch` puts them.
/// Where it is missing, says so on stderr (also when the test's own output is hidden).
pub fn model(name: &str) -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || {
        let base = || var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        var("OUTBOARD_CACHE").or_else(|| Some(base()?.join("outboard"))).map(|cache| cache.join("models"))
    };
    let path = var("OUTBOARD_TEST_MODELS").or_else(cache)?.join(format!("{name}.gguf"));
    if path.is_file() {
        return Some(path);
    }
    skip(&format!("there is no {}; `outboard fetch {name}` brings it", path.display()));
    None
}

/// Says why a test, or a part of it, does not run.
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not eprintln: the harness would hide it.
    let _ = writeln!(std::io::stderr(), "skipped {test}: {reason}");
}
