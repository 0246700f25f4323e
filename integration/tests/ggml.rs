//! Real models on ggml's own backends, opened by an rpc-server: `OUTBOARD_GGML` names the folder of their libraries.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::known;
use outboard_conformance::{Filter, run};
use outboard_core::{Host, Slice, Usage};
use outboard_host::MemoryBudget;
use outboard_integration::{Client, RunReport, Server, fault_tries, model, program, skip, texts_on, texts_together};
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A run takes seconds; on a busy machine it may take long.
const LIMIT: Duration = Duration::from_secs(240);
const TOKENS: usize = 40;
/// Helpers that are killed; `OUTBOARD_FAULT_TRIES=100` kills so many.
const TRIES: usize = 6;

/// The folder of ggml's libraries; `None`, with a line, without it.
fn ggml() -> Option<PathBuf> {
    let folder = std::env::var_os("OUTBOARD_GGML");
    if folder.is_none() {
        skip("OUTBOARD_GGML names no folder of ggml's libraries");
    }
    folder.map(Into::into)
}

/// The texts of a model by the reference's rule on a device of ggml's.
fn check(name: &str, device: &str, texts: usize, tokens: usize) {
    if ggml().is_some() {
        texts_on(name, device, texts, tokens);
    }
}

#[test]
fn smollm2() {
    check("smollm2", "ggml:CPU", 4, TOKENS);
}

#[test]
fn qwen2_5_coder() {
    check("qwen2.5-coder", "ggml:CPU", 2, TOKENS);
}

#[test]
fn gemma3() {
    check("gemma3", "ggml:CPU", 2, TOKENS);
}

/// A few tokens: a software driver takes seconds for each, and most of a minute until its shaders are compiled.
#[test]
fn smollm2_on_vulkan() {
    let Some(folder) = ggml() else { return };
    let (devices, said) = listed(&folder, "ggml:Vulkan0,ggml:CPU");
    if !devices.contains("ggml:Vulkan0:") {
        assert!(std::env::var_os("VK_ICD_FILENAMES").is_none(), "{devices}{said}");
        return skip(
            "ggml has no Vulkan0 here; a software driver is one with VK_ICD_FILENAMES and GGML_VK_VISIBLE_DEVICES=0",
        );
    }
    check("smollm2", "ggml:Vulkan0", 1, 6);
}

/// Long writes and reads of a card go through pinned memory, piece by piece.
#[test]
fn bytes_go_to_vulkan_and_back() {
    let Some(folder) = ggml() else { return };
    if !listed(&folder, "ggml:Vulkan0,ggml:CPU").0.contains("ggml:Vulkan0:") {
        return skip("ggml has no Vulkan0 here");
    }
    let server = Server::start(&["-d", "ggml:Vulkan0,cpu:1"]);
    let device = connect(&Endpoint::parse_list(&server.addr).unwrap(), &ClientOptions::default()).unwrap().remove(0);
    let whole = Slice::whole(device.alloc(6 << 20, Usage::Any).unwrap());
    let queue = device.queue().unwrap();
    let bytes: Vec<u8> = (0..(5 << 20) + 13).map(|i: usize| (i * 31 % 251) as u8).collect();
    for (offset, len) in [(8, bytes.len()), (4, 3 << 18), (0, (1 << 20) + 1), (12, 700)] {
        queue.fill(&whole, 9).unwrap();
        queue.write(&whole.part(offset, len as u64).unwrap(), bytes[..len].to_vec().into()).unwrap();
        let got = queue.read(&whole).unwrap().wait(LIMIT).unwrap();
        let (before, after) = (offset as usize, offset as usize + len);
        assert!(got[before..after] == bytes[..len], "{len} bytes at {offset}");
        assert!(got[..before].iter().chain(&got[after..]).all(|&byte| byte == 9), "around {len} bytes at {offset}");
    }
}

/// Every case of conformance, from a client to a server to the helper that has ggml. On another device if `OUTBOARD_TEST_DEVICE` names one, and only the cases that
/// `OUTBOARD_OP` says, as in the tests of local devices.
#[test]
fn conformance_through_a_server() {
    if ggml().is_none() {
        return;
    }
    let said = |variable| std::env::var(variable).ok().filter(|value: &String| !value.is_empty());
    let server = Server::start(&["-d", &said("OUTBOARD_TEST_DEVICE").unwrap_or("ggml:CPU".into()), "-t", "1"]);
    // A software driver compiles some shaders for minutes.
    let options = ClientOptions { stall_after: Duration::from_secs(600), ..ClientOptions::default() };
    let device = connect(&Endpoint::parse_list(&server.addr).unwrap(), &options).unwrap().remove(0);
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let op = said("OUTBOARD_OP");
    let (ops, name) = match op.as_deref().map(|op| op.split_once(':').unwrap_or((op, ""))) {
        Some((op, name)) => (vec![op.to_owned()], name.to_owned()),
        None => Default::default(),
    };
    let report = run(device.as_ref(), reference.as_ref(), &Filter { ops, name, ..Filter::default() }).unwrap();
    println!("{report}");
    let known = known(device.info());
    let differs: Vec<_> = known.differs.iter().map(|d| (d.of, d.most)).collect();
    let (unknown, most) = match op {
        None => (report.against(known.unsupported), report.cases() / 4),
        Some(_) => (report.undeclared(known.unsupported), report.cases()),
    };
    let wrong = [unknown, report.beyond(&differs)].concat();
    assert!(report.cases() > 0 && wrong.is_empty() && report.unsupported() <= most, "{report}{}", wrong.join("\n"));
}

#[test]
fn eight_sequences_at_once() {
    if ggml().is_none() {
        return;
    }
    let servers = [(); 2].map(|()| Server::start(&["-d", "ggml:CPU,cpu:1", "-t", "1"]));
    let both = servers.each_ref().map(|server| server.addr.as_str()).join(",");
    texts_together(&both, &[1.0, 0.0, 1.0, 0.0], TOKENS, || {});
}

/// From ggml's CPU of one server to our own of another one, and the other way.
#[test]
fn texts_go_on_where_the_kernels_are_others() {
    if ggml().is_none() {
        return;
    }
    for [lost, left] in [["ggml:CPU", "cpu:1"], ["cpu:1", "ggml:CPU"]] {
        // What ggml has not, the last device has.
        let mut first = Server::start(&["-d", lost, "-t", "1"]);
        let second = Server::start(&["-d", &format!("{left},cpu:1").replace("cpu:1,cpu:1", "cpu:1"), "-t", "1"]);
        let both = format!("{},{}", first.addr, second.addr);
        let parts = if left == "cpu:1" { vec![1.0, 1.0] } else { vec![1.0, 1.0, 0.0] };
        texts_together(&both, &parts, TOKENS, || first.kill());
    }
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

/// A run on a helper's device of a server whose CPU samples.
#[cfg(target_os = "linux")]
fn run_args<'a>(path: &'a Path, prompt: &'a str, server: &'a Server) -> Vec<&'a str> {
    let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", prompt, "--temp", "0", "-n", "40", "-c", "512"];
    args.extend(["--ignore-eos", "--json", "--rpc", &server.addr, "-ts", "1,0"]);
    args
}

/// The model has its place.
#[cfg(target_os = "linux")]
fn wait_until_placed(client: &Client) {
    let start = Instant::now();
    while !client.said().contains("KV cache") {
        assert!(start.elapsed() < LIMIT, "not loaded: {}", client.said());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What helpers held is free again.
#[cfg(target_os = "linux")]
fn wait_for_memory(server: &Server, free: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    while server.memory_free() + (1 << 20) < free {
        assert!(Instant::now() < end, "{} bytes free of {free}", server.memory_free());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Helpers that are killed while a model is loaded: the text is the same, or there is one clear error, and the next run is as the first.
#[cfg(target_os = "linux")]
#[test]
fn a_helper_that_is_killed_while_a_model_is_loaded() {
    let (Some(_), Some(path)) = (ggml(), model("smollm2")) else { return };
    let server = Server::start(&["-d", "ggml:CPU,cpu:1", "-t", "1", "--memory-limit", "2G"]);
    let args = run_args(&path, "The ship left the harbour at dawn", &server);
    let free = server.memory_free();
    let start = Instant::now();
    let first = Client::start(&args);
    wait_until_placed(&first);
    let loading = start.elapsed();
    let want: RunReport = first.wait(LIMIT).json();
    let tries = fault_tries(TRIES);
    let (mut right, mut ended) = (0, 0);
    for number in 0..tries {
        let client = Client::start(&args);
        std::thread::sleep(loading * number as u32 / tries as u32);
        helpers(&server).into_iter().for_each(kill);
        let done = client.wait(LIMIT);
        let what = format!("killed after {:?} of {loading:?}", loading * number as u32 / tries as u32);
        if done.code == Some(0) {
            let report: RunReport = done.json();
            assert_eq!((&report.tokens, &report.text), (&want.tokens, &want.text), "{what}: {}", done.stderr);
            right += 1;
        } else {
            let errors: Vec<_> = done.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
            assert!(matches!(errors[..], [error] if error.contains("its process")), "{what}: {}", done.stderr);
            ended += 1;
        }
    }
    println!("{tries} helpers killed while a model was loaded: {right} texts, {ended} errors");
    let again: RunReport = Client::run(&args, LIMIT).json();
    assert_eq!((&again.tokens, &again.text), (&want.tokens, &want.text));
    wait_for_memory(&server, free);
}

/// Helpers that are killed at moments of a run that are spread over all of it: the text is the same, or there is one clear error.
#[cfg(target_os = "linux")]
#[test]
fn a_helper_that_is_killed() {
    let (Some(_), Some(path)) = (ggml(), model("smollm2")) else { return };
    let server = Server::start(&["-d", "ggml:CPU,cpu:1", "-t", "1", "--memory-limit", "2G"]);
    let prompt =
        "The ship left the harbour at dawn, and nobody on the pier could say when it would be back. ".repeat(4);
    let args = run_args(&path, &prompt, &server);
    let want: RunReport = Client::run(&args, LIMIT).json();
    let whole = Duration::from_secs_f64((want.timings.prompt_ms + want.timings.decode_ms) / 1e3);
    let free = server.memory_free();
    assert_eq!(helpers(&server).len(), 1, "one device of ggml's, one helper");
    let tries = fault_tries(TRIES);
    let (mut recovered, mut ended) = (0, 0);
    for number in 0..tries {
        let gives_up = number % 3 == 2;
        let client = Client::start(&if gives_up { [&args[..], &["--no-failover"]].concat() } else { args.clone() });
        wait_until_placed(&client);
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
    assert!(server.said().contains("WARN ggml:CPU: its process has ended (signal: 9"), "{}", server.said());
    println!("{tries} helpers killed: {recovered} recoveries, {ended} errors, 0 texts wrong");
    assert!(recovered > 0 && ended > 0, "{recovered} recoveries and {ended} errors");
    wait_for_memory(&server, free);
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
    let (_, said) = listed(&folder.path().join("libggml-other.so"), "ggml:CPU");
    assert!(said.contains("this is a file, not the folder of libggml-base"), "{said}");
    // One that lacks functions.
    std::fs::copy(folder.path().join("libggml-other.so"), &base).unwrap();
    let (_, said) = listed(folder.path(), "ggml:CPU");
    assert!(said.contains("it lacks ggml_version"), "{said}");
}

/// Whoever has named the folder is not told to name it.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_without_a_backend_that_works_is_a_line() {
    let Some((folder, other)) = with_backend("other", "int x;") else { return };
    std::fs::remove_file(other).unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let is_cpu = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libggml-cpu");
    files().filter(is_cpu).for_each(|path| std::fs::remove_file(path).unwrap());
    let (_, said) = listed(folder.path(), "ggml:CPU");
    let none = "no backend for this machine is beside libggml-base";
    assert!(said.contains(none) && !said.contains("name the folder"), "{said}");
    // What is no file is not waited for.
    let pipe = folder.path().join("libggml-pipe.so");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let start = Instant::now();
    let (_, said) = listed(folder.path(), "ggml:CPU");
    assert!(said.contains(none) && start.elapsed() < Duration::from_secs(60), "{said}");
    // One for processors that cannot be loaded.
    std::fs::write(folder.path().join("libggml-cpu.so"), "no library").unwrap();
    let (_, said) = listed(folder.path(), "ggml:CPU");
    assert!(said.contains("libggml-cpu.so: file too short"), "{said}");
}

/// As an environment often has it.
#[test]
fn a_variable_that_is_empty_names_no_folder() {
    for (name, args) in [("rpc-server", &["--list-devices", "-d", "cpu"][..]), ("outboard", &["devices"])] {
        let out = Command::new(program(name)).args(args).env("OUTBOARD_GGML", "").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}
