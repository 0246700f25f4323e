//! Real model files. Tests of other crates include this file.

use std::io::Write;
use std::path::PathBuf;

/// Set to 1, this makes a test fail whose model is missing, in place of leaving it out.
const REQUIRED: &str = "OUTBOARD_REQUIRE_MODELS";

/// A model of the catalogue: from the folder that `OUTBOARD_TEST_MODELS` names, or else from where `outboard fetch` puts them.
/// Where it is missing, says so on stderr (also when the test's own output is hidden). Panics there if models are required.
pub fn model(name: &str) -> Option<PathBuf> {
    let found = find(name);
    if let Err(why) = &found {
        let required = std::env::var(REQUIRED).is_ok_and(|value| !value.is_empty() && value != "0");
        assert!(!required, "{why}; {REQUIRED} says that it has to be there");
        skip(why);
    }
    found.ok()
}

fn find(name: &str) -> Result<PathBuf, String> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || {
        let base = || var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        var("OUTBOARD_CACHE").or_else(|| Some(base()?.join("outboard"))).map(|cache| cache.join("models"))
    };
    let dir = var("OUTBOARD_TEST_MODELS").or_else(cache);
    let path = dir.ok_or("there is no folder for models: set OUTBOARD_TEST_MODELS")?.join(format!("{name}.gguf"));
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("there is no {}; `outboard fetch {name}` brings it", path.display()))
    }
}

/// Says why a test, or a part of it, does not run.
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not eprintln: the harness would hide it.
    let _ = writeln!(std::io::stderr(), "skipped {test}: {reason}");
}
