//! Real models on ggml's own backends, opened by an rpc-server: `OUTBOARD_GGML` names the folder of their libraries.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Comparison, RunReport, Server, cases, model, program, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A run takes seconds; on a busy machine it may take long.
const LIMIT: Duration = Duration::from_secs(240);
const TOKENS: usize = 40;
/// Helpers that are killed; `OUTBOARD_FAULT_TRIES=100` kills so many.
const TRIES: u64 = 10;

/// The folder of ggml's libraries; `None`, with a line, without it.
fn ggml() -> Option<PathBuf> {
    let folder = std::env::var_os("OUTBOARD_GGML");
    if folder.is_none() {
        skip("OUTBOARD_GGML names no folder of ggml's libraries");
    }
    folder.map(Into::into)
}

/// The texts of a model by the reference's rule, with all layers on ggml's CPU, split over it and our own, and over two servers. What ggml has
/// not, such as sampling, our CPU device of the same server computes.
fn check(name: &str, texts: usize) {
    let (Some(_), Some(path)) = (ggml(), model(name)) else { return };
    let [one, other] = [(); 2].map(|()| Server::start(&["-d", "ggml:CPU,cpu:1", "-t", "1"]));
    let both = format!("{},{}", one.addr, other.addr);
    let mut comparison = Comparison::of(name);
    for case in cases(name).into_iter().take(texts) {
        for (servers, parts, used) in [(&one.addr, "1,0", 1), (&one.addr, "1,1", 2), (&both, "1,1,1,0", 3)] {
            let n = TOKENS.to_string();
            let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", &case.prompt, "--temp", "0", "-n", &n];
            args.extend(["-c", "512", "--ignore-eos", "--json", "--rpc", servers, "-ts", parts]);
            let report: RunReport = Client::run(&args, LIMIT).json();
            let what = format!("{name}, {servers} in parts {parts}, {:?}", case.prompt);
            if let Err(e) = comparison.add(&case, &report.tokens, &report.log_probs) {
                panic!("{what}: {e}");
            }
            let with_layers = report.devices.iter().filter(|d| d.layers.is_some()).count();
            assert_eq!(with_layers, used, "{what}: {:?}", report.devices);
        }
    }
    let (compared, all, rms) = comparison.finish().unwrap();
    println!("{name}: {compared} of {all} steps compared, log-probabilities differ by {rms:.4} (rms)");
}

#[test]
fn smollm2() {
    check("smollm2", 6);
}

#[test]
fn qwen2_5_coder() {
    check("qwen2.5-coder", 2);
}

#[test]
fn gemma3() {
    check("gemma3", 2);
}

/// The helpers of a server.
#[cfg(target_os = "linux")]
fn helpers(server: &Server) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().filter_map(Result::ok);
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    children.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[cfg(target_os = "linux")]
fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Helpers that are killed at moments of a run that are spread over all of it: the text is the same, or there is one clear error.
#[cfg(target_os = "linux")]
#[test]
fn a_helper_that_is_killed() {
    let (Some(_), Some(path)) = (ggml(), model("smollm2")) else { return };
    let server = Server::start(&["-d", "ggml:CPU,cpu:1", "-t", "1", "--memory-limit", "2G"]);
    let prompt =
        "The ship left the harbour at dawn, and nobody on the pier could say when it would be back. ".repeat(4);
    let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", &prompt, "--temp", "0", "-n", "40", "-c", "512"];
    args.extend(["--ignore-eos", "--json", "--rpc", &server.addr, "-ts", "1,0"]);
    let want: RunReport = Client::run(&args, LIMIT).json();
    let whole = Duration::from_secs_f64((want.timings.prompt_ms + want.timings.decode_ms) / 1e3);
    let free = server.memory_free();
    assert_eq!(helpers(&server).len(), 1, "one device of ggml's, one helper");
    let tries = std::env::var("OUTBOARD_FAULT_TRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(TRIES);
    let (mut recovered, mut ended) = (0, 0);
    for number in 0..tries {
        let gives_up = number % 3 == 2;
        let client = Client::start(&if gives_up { [&args[..], &["--no-failover"]].concat() } else { args.clone() });
        let start = Instant::now();
        while !client.said().contains("KV cache") {
            assert!(start.elapsed() < LIMIT, "not loaded: {}", client.said());
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(whole * number as u32 / tries as u32);
        helpers(&server).into_iter().for_each(kill);
        let done = client.wait(LIMIT);
        let what = format!("killed after {:?}, try {number}", whole * number as u32 / tries as u32);
        if gives_up && done.code != Some(0) {
            let error = done.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
            assert!(error.contains("ggml:CPU: its process has ended (signal: 9"), "{what}: {}", done.stderr);
            ended += 1;
            continue;
        }
        let report: RunReport = done.json();
        assert_eq!((&report.tokens, &report.text), (&want.tokens, &want.text), "{what}: {}", done.stderr);
        recovered += report.recoveries.len();
        println!("{what}: {:?}", report.recoveries);
    }
    println!("{tries} helpers killed: {recovered} recoveries, {ended} errors, 0 texts wrong");
    assert!(recovered > 0 && ended > 0, "{recovered} recoveries and {ended} errors");
    let end = Instant::now() + Duration::from_secs(20);
    while server.memory_free() + (1 << 20) < free {
        assert!(Instant::now() < end, "{} bytes free of {free}", server.memory_free());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A folder with what ggml is here, but for Vulkan, and a backend of C beside it.
#[cfg(target_os = "linux")]
fn with_backend(name: &str, source: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let real = ggml()?;
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(real).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.starts_with("libggml-base") || name.starts_with("libggml-cpu") {
            std::os::unix::fs::symlink(&file, folder.path().join(name)).unwrap();
        }
    }
    let code = folder.path().join("backend.c");
    std::fs::write(&code, source).unwrap();
    let library = folder.path().join(format!("libggml-{name}.so"));
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &code]).status();
    if !cc.is_ok_and(|status| status.success()) {
        skip("there is no C compiler");
        return None;
    }
    Some((folder, library))
}

/// What `rpc-server --list-devices` says: devices, and what is wrong.
#[cfg(target_os = "linux")]
fn listed(folder: &Path, devices: &str) -> (String, String) {
    let mut server = Command::new(program("rpc-server"));
    let out = server.args(["--list-devices", "-d", devices, "--ggml"]).arg(folder).output().unwrap();
    (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn a_backend_that_cannot_be_used_is_a_line_and_the_others_are_there() {
    let cases = [
        ("void *ggml_backend_init(void) { __builtin_trap(); return 0; }", "its process has ended (signal:"),
        (
            "#include <stdlib.h>\n#include <stdio.h>\nvoid *ggml_backend_init(void) { fputs(\"GGML_ASSERT(x) failed\\n\", stderr); abort(); }",
            "GGML_ASSERT(x) failed",
        ),
        ("void *ggml_backend_init(void) { return 0; }", "the backend evil has no list of devices"),
        ("int something_else;", "the backend evil has no list of devices"),
        (
            "extern int that_nobody_has(void); void *ggml_backend_init(void) { that_nobody_has(); return 0; }",
            "that_nobody_has",
        ),
    ];
    for (source, why) in cases {
        let Some((folder, library)) = with_backend("evil", source) else { return };
        let (devices, said) = listed(folder.path(), "ggml:CPU");
        assert!(devices.contains("ggml:CPU:"), "{source}: {devices}{said}");
        assert!(said.lines().any(|line| line.contains("WARN ggml: ") && line.contains(why)), "{source}: {said}");
        std::fs::write(&library, "no library").unwrap();
        let (devices, said) = listed(folder.path(), "ggml:CPU");
        assert!(devices.contains("ggml:CPU:") && said.contains("libggml-evil.so"), "{devices}{said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_is_not_ggmls_is_a_line() {
    let Some((folder, _)) = with_backend("other", "int x;") else { return };
    let base = folder.path().join("libggml-base.so");
    let second = folder.path().join("libggml-base.so.0.1.0");
    std::fs::copy(std::fs::canonicalize(&base).unwrap(), &second).unwrap();
    let (_, said) = listed(folder.path(), "cpu,ggml:CPU");
    assert!(said.contains("are two versions of ggml"), "{said}");
    std::fs::remove_file(&second).unwrap();
    std::fs::remove_file(&base).unwrap();
    let (_, said) = listed(folder.path(), "ggml:CPU");
    assert!(said.contains("there is no libggml-base in it"), "{said}");
    // One that lacks functions.
    std::fs::copy(folder.path().join("libggml-other.so"), &base).unwrap();
    let (_, said) = listed(folder.path(), "ggml:CPU");
    assert!(said.contains("it lacks ggml_version"), "{said}");
}
