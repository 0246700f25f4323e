//! Where the programs under test are.
//!
//! `cargo test --workspace` builds them beside the tests. A test that is started alone may find none, or old ones: then they
//! are built first, so that nobody tests yesterday's program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// The path of `outboard` or `rpc-server`, as up to date as when this process first asked: a test has the same program all along.
pub fn program(name: &str) -> PathBuf {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(|e| e.into_inner());
    found.entry(name.to_owned()).or_insert_with(|| up_to_date(name)).clone()
}

fn up_to_date(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    // target/PROFILE/deps/test-hash
    let dir = test.parent().and_then(Path::parent).expect("a folder of the profile");
    let path = dir.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let built = std::fs::metadata(&path).and_then(|m| m.modified()).ok();
    if built.is_none_or(|built| newest(workspace, 0) > built) {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Of the workspace, so that dependencies have the features that they have in its tests.
        cargo.current_dir(workspace).args([
            "build",
            "--quiet",
            "--workspace",
            "--bin",
            "outboard",
            "--bin",
            "rpc-server",
        ]);
        if dir.file_name().is_some_and(|profile| profile == "release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "the programs under test do not build");
    }
    path
}

/// When the newest source of the programs was written. Tests are not part of them.
fn newest(dir: &Path, depth: usize) -> SystemTime {
    const LEFT_OUT: [&str; 6] = ["target", "tests", "integration", "bench", "examples", "fuzz"];
    const SOURCES: [&str; 6] = ["rs", "proto", "html", "css", "js", "svg"];
    let mut latest = SystemTime::UNIX_EPOCH;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') || LEFT_OUT.contains(&name.as_ref()) {
            continue;
        }
        if path.is_dir() && depth < 8 {
            latest = latest.max(newest(&path, depth + 1));
        } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| SOURCES.contains(&e)) {
            latest = latest.max(entry.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH));
        }
    }
    latest
}
