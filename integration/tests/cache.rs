//! Weights that servers have already are not sent to them: real processes, a real model.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, RunReport, Server, model};
use std::path::Path;
use std::time::Duration;

/// A run of a model takes seconds; an unoptimised build on a busy machine may take long.
const LIMIT: Duration = Duration::from_secs(240);
/// What a load may send to servers that have the weights: graphs, places, and tensors too small to ask about.
const WARM: u64 = 1 << 20;

/// Runs a model on servers; `user` is the client's own cache.
fn run(path: &Path, servers: &[&Server], user: &Path) -> RunReport {
    let rpc = servers.iter().map(|s| s.addr.as_str()).collect::<Vec<_>>().join(",");
    let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", "Once upon a time", "--temp", "0", "-n", "8"];
    args.extend(["-c", "256", "--json", "--rpc", &rpc]);
    let finished = Client::start_with(&args, &[("OUTBOARD_CACHE", user.to_str().unwrap())]).wait(LIMIT);
    let value: serde_json::Value = finished.json();
    let report: RunReport = finished.json();
    println!("loaded in {} ms, {} bytes sent", value["timings"]["load_ms"], report.net.sent_bytes);
    report
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect()
}

/// Whether a file of the cache is not whole yet.
fn writing(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with('.')
}

#[test]
fn the_second_run_sends_next_to_nothing() {
    for name in ["smollm2", "qwen2.5-coder"] {
        let Some(path) = model(name) else { continue };
        let (cache, user) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = cache.path().to_str().unwrap();
        let mut server = Server::start(&["-d", "cpu:1", "-c", dir]);
        let weights = path.metadata().unwrap().len();
        let cold = run(&path, &[&server], user.path());
        assert!(cold.net.sent_bytes > weights / 10 * 9, "{:?}", cold.net);
        assert_eq!(files(&user.path().join("digests")).len(), 1);
        let warm = run(&path, &[&server], user.path());
        assert!(warm.net.sent_bytes < WARM, "{name}: {:?}", warm.net);
        assert_eq!(warm.tokens, cold.tokens);
        // What was answered for, and is still on its way to the disk, must not be lost for the next part.
        let start = std::time::Instant::now();
        while files(cache.path()).iter().any(|p| writing(p)) {
            assert!(start.elapsed() < LIMIT, "the cache does not settle");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Another server on the same directory, and a client that knows no digests yet.
        server.kill();
        let pair = [Server::start(&["-d", "cpu:1,cpu:1", "-c", dir]), Server::start(&["-d", "cpu:1", "-c", dir])];
        let other = tempfile::tempdir().unwrap();
        let split = run(&path, &[&pair[0], &pair[1]], other.path());
        assert!(split.net.sent_bytes < 2 * WARM, "{name}: {:?}", split.net);
        assert_eq!(split.tokens, cold.tokens);
    }
}

#[test]
fn a_server_with_the_model_needs_nothing() {
    let Some(path) = model("smollm2") else { return };
    let user = tempfile::tempdir().unwrap();
    let (models, link) = (tempfile::tempdir().unwrap(), "linked.gguf");
    std::os::unix::fs::symlink(&path, models.path().join(link)).unwrap();
    let server = Server::start(&["-d", "cpu:1", "--models", models.path().to_str().unwrap()]);
    let report = run(&path, &[&server], user.path());
    assert!(report.net.sent_bytes < WARM, "{:?}", report.net);
}

#[test]
fn a_server_that_dies_while_it_fills_its_cache_leaves_it_usable() {
    let Some(path) = model("smollm2") else { return };
    let (cache, user) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = cache.path().to_str().unwrap();
    let mut server = Server::start(&["-d", "cpu:1", "-c", dir]);
    let args = ["run", "-m", path.to_str().unwrap(), "-p", "x", "-n", "1", "-c", "256", "--rpc", &server.addr];
    let client = Client::start_with(&args, &[("OUTBOARD_CACHE", user.path().to_str().unwrap())]);
    let start = std::time::Instant::now();
    while files(cache.path()).len() < 20 {
        assert!(start.elapsed() < LIMIT, "nothing is kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.kill();
    assert!(client.wait(LIMIT).error().contains(&server.addr));
    let server = Server::start(&["-d", "cpu:1", "-c", dir]);
    assert!(!files(cache.path()).iter().any(|p| writing(p)), "half written files are left");
    let again = run(&path, &[&server], user.path());
    let weights = path.metadata().unwrap().len();
    assert!(again.net.sent_bytes < weights, "{:?}", again.net);
    assert!(run(&path, &[&server], user.path()).net.sent_bytes < WARM);
}
