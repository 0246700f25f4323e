//! Weights that servers have already are not sent to them: real processes, a real model.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_gguf::{Gguf, GgufWriter};
use outboard_integration::{Client, RunReport, Server, model};
use outboard_system::open_mapped;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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

/// Writes a model into three files as gguf-split does, an hour ago.
fn split(model: &Path, dir: &Path) -> Vec<PathBuf> {
    let gguf = Gguf::open(model, open_mapped).unwrap();
    let (all, hour_ago) = (gguf.tensors().len(), SystemTime::now() - Duration::from_secs(3600));
    let files = gguf.tensors().chunks(all.div_ceil(3)).enumerate().map(|(no, tensors)| {
        let mut w = GgufWriter::new();
        for (key, value) in gguf.metadata().filter(|_| no == 0) {
            w.value(key, value.clone());
        }
        w.value("split.no", no as u16).value("split.count", 3u16).value("split.tensors.count", all as i32);
        for t in tensors {
            w.tensor_from(&t.name, t.layout.dtype(), &t.layout.ne(), std::io::Cursor::new(gguf.data(t))).unwrap();
        }
        let path = dir.join(format!("model-{:05}-of-00003.gguf", no + 1));
        let file = std::fs::File::create(&path).unwrap();
        w.write(&file).unwrap();
        file.set_modified(hour_ago).unwrap();
        path
    });
    files.collect()
}

#[test]
fn a_model_in_several_files_is_the_same_model() {
    let Some(path) = model("smollm2") else { return };
    let (dir, cache, user) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let three = split(&path, dir.path());
    let server = Server::start(&["-d", "cpu:1", "-c", cache.path().to_str().unwrap()]);
    let cold = run(&three[0], &[&server], user.path());
    assert!(cold.net.sent_bytes > path.metadata().unwrap().len() / 10 * 9, "{:?}", cold.net);
    // A side file for each of them.
    assert_eq!(files(&user.path().join("digests")).len(), 3);
    for same in [&three[1], &three[2], &path] {
        let warm = run(same, &[&server], user.path());
        assert!(warm.net.sent_bytes < WARM, "{}: {:?}", same.display(), warm.net);
        assert_eq!(warm.tokens, cold.tokens);
    }
    std::fs::remove_file(&three[1]).unwrap();
    let failed = Client::run(&["run", "-m", three[0].to_str().unwrap(), "-p", "x"], LIMIT);
    let error = failed.error();
    assert!(error.contains("model-00002-of-00003.gguf: there is no such file, but the model is in 3 files"), "{error}");
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
