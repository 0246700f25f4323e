//! `outboard perplexity`: real models against llama.cpp's figures, the same everywhere, and what goes wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Server, model, skip};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// Longest time until a client that has a reason to end has ended, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// The text that Debian ships, and its length.
const TEXT: (&str, u64) = ("/usr/share/common-licenses/GPL-3", 35149);
/// How far a right program may be from llama.cpp's: products of quantized weights are rounded to 8 bits differently.
const TOLERANCE: f64 = 0.005;
/// What the scores of 3 chunks may take on the network from servers, tokens and heartbeats of both included. One chunk's logits
/// would be 50 MB.
const MOST_RECEIVED: u64 = 100_000;

fn text() -> Option<&'static str> {
    let (path, len) = TEXT;
    match std::fs::metadata(path) {
        Ok(found) if found.len() == len => return Some(path),
        Ok(found) => skip(&format!("{path} has {} bytes and not {len}: another text", found.len())),
        Err(e) => skip(&format!("{path}: {e}; Debian's base-files has it")),
    }
    None
}

fn perplexity(args: &[&str]) -> Value {
    Client::run(&[&["perplexity", "--json"], args].concat(), LIMIT).json()
}

/// Two servers with three devices, and their addresses.
fn servers() -> ([Server; 2], String) {
    let servers = [&["-d", "cpu:1,cpu:1"][..], &["-d", "cpu:1"]].map(Server::start);
    let rpc = format!("{},{}", servers[0].addr, servers[1].addr);
    (servers, rpc)
}

/// What llama.cpp says, on one device and on those of servers.
fn as_llama_cpp_has_it(name: &str, wanted: f64) {
    let (Some(text), Some(file)) = (text(), model(name)) else { return };
    let (_servers, rpc) = servers();
    let args = ["-m", file.to_str().unwrap(), "-f", text, "--chunks", "8"];
    let local = perplexity(&args);
    let ppl = local["ppl"].as_f64().unwrap();
    println!("{name}: {ppl:.4}, llama.cpp's {wanted:.4}");
    assert!((ppl / wanted - 1.0).abs() <= TOLERANCE, "{name}: {ppl} instead of {wanted}");
    let stderr = local["stderr"].as_f64().unwrap();
    assert!(stderr > 0.01 * ppl && stderr < 0.2 * ppl, "{local}");
    assert_eq!((&local["chunks"], &local["scored"]), (&8.into(), &(8 * 255).into()), "{local}");
    let estimates = local["estimates"].as_array().unwrap();
    assert_eq!((estimates.len(), estimates.last()), (8, Some(&local["ppl"])), "{local}");
    // The same, to the last bit; the logits stay there.
    let remote = perplexity(&["-m", file.to_str().unwrap(), "-f", text, "--chunks", "3", "--rpc", &rpc]);
    assert_eq!(remote["estimates"].as_array().unwrap(), &estimates[..3], "{name}");
    assert_eq!(remote["devices"].as_array().unwrap().len(), 3, "{remote}");
    assert!(remote["net"]["recv_bytes"].as_u64().unwrap() < MOST_RECEIVED, "{remote}");
}

/// llama.cpp's perplexities are of ggml 0.25.3, CPU, AVX2.
#[test]
fn smollm2() {
    as_llama_cpp_has_it("smollm2", 18.3800);
}

#[test]
fn qwen2_5_coder() {
    as_llama_cpp_has_it("qwen2.5-coder", 5.9020);
}

#[test]
fn gemma3() {
    as_llama_cpp_has_it("gemma3", 14.9498);
}

/// Where one or two tokens of a micro-batch count.
#[test]
fn chunks_that_end_within_a_micro_batch() {
    let Some(text) = text() else { return };
    let (_servers, rpc) = servers();
    for (name, ctx) in [("smollm2", "60"), ("smollm2", "62"), ("smollm2", "255"), ("gemma3", "62")] {
        let Some(file) = model(name) else { continue };
        let args = ["-m", file.to_str().unwrap(), "-f", text, "-c", ctx, "--chunks", "2"];
        let (one, three) = (perplexity(&args), perplexity(&[&args[..], &["--rpc", &rpc]].concat()));
        assert_eq!(one["estimates"], three["estimates"], "{name}, chunks of {ctx}");
    }
}

#[test]
fn what_cannot_be_measured_is_a_clear_error() {
    let Some(file) = model("smollm2") else { return };
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = |text: &str, more: &[&str]| {
        let args = ["perplexity", "-m", file.to_str().unwrap(), "-f", text];
        Client::run(&[&args[..], more].concat(), LIMIT)
    };
    let short = write("short", b"Once upon a time");
    let words = write("words", "word ".repeat(20).as_bytes());
    for (text, more, wanted) in [
        (short.as_str(), &[][..], "less than a chunk of 512"),
        (&words, &["-c", "2"], "a chunk of 2 tokens has none to score"),
        (&write("bytes", &[0xff, 0xfe, 0x00]), &[], "no text in UTF-8"),
        (&write("empty", b""), &[], "the text has 0 tokens"),
        (dir.path().join("missing").to_str().unwrap(), &[], "cannot read"),
    ] {
        let done = run(text, more);
        assert!(done.error().contains(wanted), "{wanted}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{wanted}");
    }
    assert_eq!(run(&words, &["--chunks", "0"]).code, Some(2));
    // The smallest there is.
    let done = run(&words, &["-c", "3", "--chunks", "2"]);
    assert!(done.code == Some(0) && done.stdout.contains("2 tokens of 2 chunks"), "{done:?}");
}

/// Logits of a micro-batch take 25 MB, for which there is no room beside the model.
#[test]
fn a_lack_of_memory_for_scores_is_known_before_weights_are_sent() {
    let (Some(file), Some(text)) = (model("smollm2"), text()) else { return };
    let server = Server::start(&["-d", "cpu:1", "--memory-limit", "116MiB"]);
    let at = ["-m", file.to_str().unwrap(), "-c", "512", "--rpc", &server.addr];
    let done = Client::run(&[&["perplexity", "-f", text][..], &at].concat(), LIMIT);
    assert!(done.error().contains("memory"), "{}", done.stderr);
    assert!(!done.stderr.contains("weights  "), "it was loaded: {}", done.stderr);
    // Smaller micro-batches fit, as does a text of one token after the other.
    let small = [&["perplexity", "-f", text, "--chunks", "1", "-ub", "16", "--json"][..], &at].concat();
    assert_eq!(Client::run(&small, LIMIT).json::<Value>()["chunks"], 1);
    let run = [&["run", "-p", "Once", "-n", "1"][..], &at].concat();
    assert_eq!(Client::run(&run, LIMIT).code, Some(0));
}

/// Starts on a long text over these servers, in chunks of 128 tokens, and waits until two of them are read.
fn begin(dir: &Path, rpc: &str) -> Option<Client> {
    let (file, text) = (model("smollm2")?, dir.join("text"));
    std::fs::write(&text, "The lighthouse keeper looks at the sea. ".repeat(5000)).unwrap();
    let args = ["perplexity", "-m", file.to_str().unwrap(), "-f", text.to_str().unwrap(), "-c", "128", "--rpc", rpc];
    let (mut client, start) = (Client::start(&args), Instant::now());
    while !client.said().contains("[2]") {
        assert!(client.is_running() && start.elapsed() < LIMIT, "{}", client.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(client)
}

#[test]
fn a_server_that_dies_ends_it_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let [first, mut dies] = [&["-d", "cpu:1"][..], &["-d", "cpu:1"]].map(Server::start);
    let Some(client) = begin(dir.path(), &format!("{},{}", first.addr, dies.addr)) else { return };
    dies.kill();
    let done = client.wait(SOON);
    assert!(done.code == Some(1) && done.error().contains(&dies.addr), "{}", done.stderr);
    // The other one serves the next client.
    let Some(client) = begin(dir.path(), &first.addr) else { return };
    assert!(client.said().contains(&first.addr));
}

#[test]
fn ctrl_c_tells_what_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["-d", "cpu:1"]);
    let Some(client) = begin(dir.path(), &server.addr) else { return };
    client.signal("INT");
    let done = client.wait(SOON);
    assert!(done.code == Some(130) && done.stdout.starts_with("perplexity "), "{done:?}");
}

#[test]
fn ctrl_c_before_anything_is_known_is_one_document_too() {
    let (Some(file), Some(text)) = (model("smollm2"), text()) else { return };
    let args = ["perplexity", "-m", file.to_str().unwrap(), "-f", text, "-c", "4096", "-t", "1", "--json"];
    let (mut client, start) = (Client::start(&args), Instant::now());
    while !client.said().contains("CPU0 ") {
        assert!(client.is_running() && start.elapsed() < LIMIT, "{}", client.said());
        std::thread::sleep(Duration::from_millis(1));
    }
    // The watch for it is set up right behind the table.
    std::thread::sleep(Duration::from_millis(100));
    client.signal("INT");
    let done = client.wait(SOON);
    assert_eq!(done.code, Some(130), "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&report["ppl"], &report["finish"]), (&Value::Null, &"cancelled".into()), "{report}");
}
