//! Servers that die, and input that is wrong: one clear line, the right exit status, nothing lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Finished, RunReport, Server, model, small_model};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
/// A dead server has to be found out within this time.
const FOUND_OUT: Duration = Duration::from_secs(2);
/// The lease of a server, and as much again for a busy machine.
const LEASE: Duration = Duration::from_secs(20);

fn run_model(model: &str, more: &[&str]) -> Finished {
    let args = ["run", "-m", model, "-p", "Hello", "-n", "4", "--temp", "0", "-c", "256", "--json"];
    Client::run(&[&args[..], more].concat(), LIMIT)
}

#[test]
fn a_server_that_is_killed() {
    let Some(path) = model("smollm2") else { return };
    let model = path.to_str().unwrap();
    // With a limit, free memory is what clients have left, and not what other programs of this host have.
    let survivor = Server::start(&["-d", "cpu:1", "--memory-limit", "1G"]);
    let mut victim = Server::start(&["-d", "cpu:1"]);
    let free = survivor.memory_free();
    let rpc = format!("{},{}", survivor.addr, victim.addr);
    let args =
        ["run", "-m", model, "--rpc", &rpc, "-p", "Once upon a time", "-n", "2000", "--ignore-eos", "--no-failover"];
    let mut client = Client::start(&args);
    client.wait_for_text(LIMIT);
    assert!(survivor.memory_free() < free);
    let killed = Instant::now();
    victim.kill();
    let done = client.wait(LIMIT);
    let took = killed.elapsed();
    println!("ended {took:?} after its server: {}", done.error());
    assert_eq!(done.code, Some(1));
    assert!(done.error().contains(&victim.addr), "{}", done.stderr);
    assert!(took < FOUND_OUT, "{took:?}");
    let start = Instant::now();
    while survivor.memory_free() < free {
        assert!(start.elapsed() < LEASE, "the other server has not freed its memory");
        std::thread::sleep(Duration::from_millis(50));
    }
    let next: RunReport = run_model(model, &["--rpc", &survivor.addr]).json();
    assert_eq!(next.tokens.len(), 4);
}

#[test]
fn model_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let name = file.to_str().unwrap();
    let fails = |what: &str, expected: &[&str]| {
        let done = run_model(name, &[]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{what}: {}", done.stderr);
        let error = done.error();
        println!("{what}: {error}");
        assert!(expected.iter().any(|e| error.contains(e)), "{what}: {error}");
        assert!(error.contains("model.gguf"), "{what}: {error}");
    };
    fails("missing", &["there is no such file"]);
    std::fs::write(&file, b"").unwrap();
    fails("empty", &["empty"]);
    std::fs::write(&file, b"<html>not found</html>").unwrap();
    fails("no GGUF", &["GGUF"]);
    std::fs::create_dir(dir.path().join("folder.gguf")).unwrap();
    assert!(run_model(dir.path().join("folder.gguf").to_str().unwrap(), &[]).error().contains("folder.gguf"));
    let Some(whole) = model("smollm2") else { return };
    let whole = std::fs::read(whole).unwrap();
    std::fs::write(&file, &whole).unwrap();
    // From the end, so that one copy is enough; the first places lie in the weights, the last ones in the metadata.
    let cut = |len: usize| std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len as u64).unwrap();
    for n in 0..20 {
        let len = match n {
            0 => whole.len() - 1,
            1..=11 => whole.len() * (12 - n) / 12,
            _ => 3_000_000 >> (2 * (n - 12)),
        };
        cut(len);
        fails(&format!("cut off at {len}"), &["cut off", "ends"]);
    }
    patched(&file, &whole, b"llama", b"lyama");
    fails("unknown architecture", &["lyama"]);
    // The type of a tensor stands behind its name and shape.
    let at = find(&whole, b"blk.0.attn_q.weight") + "blk.0.attn_q.weight".len() + 4 + 2 * 8;
    let mut bytes = whole.clone();
    bytes[at..at + 4].copy_from_slice(&4242u32.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    fails("unknown type", &["4242"]);
    bytes[at..at + 4].copy_from_slice(&whole[at..at + 4]);
    bytes[at + 4..at + 12].copy_from_slice(&(1u64 << 40).to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    fails("tensor outside the file", &["blk.0.attn_q.weight"]);
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}

/// Writes `whole` with the value of `general.architecture` changed.
fn patched(file: &Path, whole: &[u8], from: &[u8], to: &[u8]) {
    let key = find(whole, b"general.architecture");
    let at = key + find(&whole[key..], from);
    let mut bytes = whole.to_vec();
    bytes[at..at + to.len()].copy_from_slice(to);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn endpoints() {
    // A port that nobody listens on: bound, looked at, and closed.
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // One that accepts and says nothing: the kernel does, as long as nobody calls accept.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let (silent_addr, http_addr) = (silent.local_addr().unwrap().to_string(), http.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        for mut stream in http.incoming().flatten() {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    for addr in [&refused, &silent_addr, &http_addr] {
        for command in [&["devices"][..], &["smoke"], &["run", "-m", "smollm2", "-p", "x"]] {
            if command[0] == "run" && model("smollm2").is_none() {
                continue;
            }
            let start = Instant::now();
            let done = Client::run(&[command, &["--rpc", addr]].concat(), LIMIT);
            assert_eq!(done.code, Some(1));
            // A check-up reports what it found; the others end with one line.
            let line = match command[0] {
                "smoke" => done.stdout.lines().find(|l| l.contains(addr.as_str())).unwrap_or_default(),
                _ => done.error(),
            };
            println!("{} after {:?}: {line}", command[0], start.elapsed());
            assert!(line.contains(addr.as_str()), "{done:?}");
            assert!(!done.stdout.contains("ok "), "nothing else was checked: {done:?}");
        }
    }
}

#[test]
fn usage() {
    let dir = tempfile::tempdir().unwrap();
    let small = small_model(dir.path());
    let small = small.to_str().unwrap();
    for args in [
        &["run"][..],
        &["run", "-m", "x"],
        &["run", "-m", "x", "-p", "y", "--temp", "-1"],
        &["run", "-m", "x", "-p", "y", "-ts", "a"],
        &["run", "-m", "x", "-p", "y", "--rpc", "a:b:c"],
        &["devices", "--rpc", "host:99999"],
        &["devices", "--rpc", "ftp://host"],
        &["no-such-command"],
        &["fetch", "--no-such-flag"],
        &["smoke", "--rpc", ""],
        &["run", "-m", small, "-p", "y", "-ot", "ffn_.*"],
        &["run", "-m", small, "-p", "y", "-ot", "(=CPU0"],
        &["devices", "--rpc", "127.0.0.1:1", "--token-env", "OUTBOARD_NO_SUCH_VARIABLE"],
    ] {
        let done = Client::run(args, LIMIT);
        assert_eq!(done.code, Some(2), "{args:?}: {}", done.stderr);
        assert!(done.stdout.is_empty() && done.stderr.starts_with("error: "), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn what_does_not_fit() {
    let Some(path) = model("smollm2") else { return };
    let model = path.to_str().unwrap();
    let prompt = "many words ".repeat(400);
    let done = Client::run(&["run", "-m", model, "-p", &prompt, "-c", "256"], LIMIT);
    println!("{}", done.error());
    assert!(done.code == Some(1) && done.error().contains("-c"), "{}", done.stderr);
    let server = Server::start(&["-d", "cpu:1", "--memory-limit", "64M"]);
    let free = server.memory_free();
    let done = run_model(model, &["--rpc", &server.addr]);
    println!("{}", done.error());
    assert!(done.code == Some(1) && done.error().contains("memory"), "{}", done.stderr);
    // Nothing was uploaded: the line comes before, and the server has what it had.
    assert_eq!(server.memory_free(), free);
}
