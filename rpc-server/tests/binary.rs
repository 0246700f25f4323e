//! The binary as a process: start, ports, signals, usage.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rpc-server"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// A server on a free port, its address and what it printed before. The caller ends it.
fn start(args: &[&str]) -> (Child, String, String) {
    let mut child = command(&[&["-p", "0"], args].concat()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (mut before, mut line) = (String::new(), String::new());
    while out.read_line(&mut line).unwrap() > 0 && !line.starts_with("listening on ") {
        before += &line;
        line.clear();
    }
    (child, line.trim().trim_start_matches("listening on ").to_owned(), before)
}

fn ends_within(child: &mut Child, limit: Duration) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < limit, "still running");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn starts_prints_its_devices_and_stops_on_signals() {
    for name in ["TERM", "INT"] {
        let (mut child, addr, before) = start(&["-d", "cpu:1,cpu:1"]);
        assert!(
            before.contains("Starting RPC server v") && before.contains("  endpoint       : 127.0.0.1:"),
            "{before}"
        );
        assert!(before.contains("CPU0: ") && before.contains("CPU1: ") && before.contains(" MiB free)"), "{before}");
        let _client = TcpStream::connect(&addr).unwrap();
        signal(&child, name);
        assert_eq!(ends_within(&mut child, Duration::from_secs(3)).code(), Some(0));
        assert!(TcpStream::connect(&addr).is_err());
    }
}

#[test]
fn a_port_in_use_is_one_clear_line() {
    let (mut child, addr, _) = start(&["-d", "cpu:1"]);
    let port = addr.rsplit(':').next().unwrap();
    let out = output(&["-p", port, "-d", "cpu:1"]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.trim().lines().count() == 1 && text.contains("in use"), "{text}");
    signal(&child, "TERM");
    ends_within(&mut child, Duration::from_secs(3));
}

#[test]
fn others_are_served_only_on_request() {
    let out = output(&["-H", "0.0.0.0", "-p", "0"]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("--insecure"), "{text}");
    let (mut child, addr, _) = start(&["-H", "0.0.0.0", "-d", "cpu:1", "--insecure"]);
    assert!(addr.starts_with("0.0.0.0:"), "{addr}");
    signal(&child, "TERM");
    ends_within(&mut child, Duration::from_secs(3));
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("WARNING"), "{text}");
}

#[test]
fn metrics_have_an_address_of_their_own() {
    let (mut child, _, before) = start(&["-d", "cpu:1", "--metrics", "127.0.0.1:0"]);
    let at = before.lines().find_map(|l| l.split_once("http://")?.1.strip_suffix("/metrics")).expect("its address");
    let mut socket = TcpStream::connect(at).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert!(text.contains(" 200 OK") && text.contains("outboard_build_info{"), "{text}");
    let taken = output(&["-p", "0", "-d", "cpu:1", "--metrics", at]);
    let error = String::from_utf8(taken.stderr).unwrap();
    assert!(taken.status.code() == Some(1) && error.contains("cannot listen for metrics on"), "{error}");
    signal(&child, "TERM");
    assert_eq!(ends_within(&mut child, Duration::from_secs(3)).code(), Some(0));
}

#[test]
fn usage() {
    let out = output(&["--list-devices", "-d", "cpu:1,cpu:2"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("CPU0") && text.contains("CPU1"), "{text}");
    for bad in [
        &["--metrics", "nowhere"][..],
        &["--drain-timeout", "soon"],
        &["--client-memory", "x"],
        &["-p", "70000"],
        &["--no-such-flag"],
        &["--memory-limit", "x"],
        &["-d", "no-such-device"],
    ] {
        let out = output(bad);
        assert_eq!(out.status.code(), Some(2), "{bad:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let help = String::from_utf8(output(&["--help"]).stdout).unwrap();
    for flag in ["--list-devices", "--tls-cert", "--metrics", "--drain-timeout", "--client-memory"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
}

#[cfg(unix)]
#[test]
fn others_cannot_look_into_the_users_own_cache_and_a_named_one_is_warned_about() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    let mode = |dir: &Path| dir.metadata().unwrap().permissions().mode() & 0o777;
    let dir = tempfile::tempdir().unwrap();
    let (own, named) = (dir.path().join("blobs"), dir.path().join("named"));
    for made in [&own, &dir.path().join("digests"), &named] {
        std::fs::create_dir(made).unwrap();
        std::fs::set_permissions(made, Permissions::from_mode(0o777)).unwrap();
    }
    let (name, models) = (named.to_str().unwrap().to_owned(), dir.path().to_str().unwrap());
    for (args, others, line) in [
        (vec!["-c", "--models", models], 0o700, None),
        (vec!["-c", &name], 0o777, Some("change what is in it")),
        (vec!["-c", &name], 0o755, Some("see which weights it has")),
        (vec!["-c", &name], 0o700, None),
    ] {
        std::fs::set_permissions(&named, Permissions::from_mode(others)).unwrap();
        let mut child = command(&[&["-p", "0", "-d", "cpu:1"], &args[..]].concat())
            .env("OUTBOARD_CACHE", dir.path())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while out.read_line(&mut text).unwrap() > 0 && !text.contains("listening on ") {}
        signal(&child, "TERM");
        assert!(ends_within(&mut child, Duration::from_secs(10)).success());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let found = said.lines().filter(|l| l.contains("others on this host may")).count();
        assert_eq!(found, usize::from(line.is_some()), "{said}");
        assert!(line.is_none_or(|line| said.contains(line) && said.contains("chmod 700")), "{said}");
        // What the user has made is the user's.
        assert_eq!(mode(&named), others);
    }
    assert_eq!((mode(&own), mode(&dir.path().join("digests"))), (0o700, 0o700));
}
