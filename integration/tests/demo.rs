//! `outboard demo`, as a new user runs it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../serve/tests/common/http.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod http;

use http::{Answer, write_request};
use outboard_integration::{Client, RunReport, model};
use serde_json::json;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// The processes of its servers, which it names.
fn servers(stderr: &str) -> Vec<u32> {
    let line = |l: &str| l.trim().strip_prefix("rpc-server, process ")?.split(',').next()?.parse().ok();
    stderr.lines().filter_map(line).collect()
}

fn gone(pids: &[u32]) {
    let start = Instant::now();
    // A process that has ended may wait for its parent a moment longer.
    let runs = |pid: &u32| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
        stat.is_ok_and(|s| !s.contains(") Z "))
    };
    while pids.iter().any(runs) {
        assert!(start.elapsed() < Duration::from_secs(10), "a server still runs: {pids:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn writes_text_over_four_devices_and_stops_its_servers() {
    if model("smollm2").is_none() {
        return;
    }
    let done = Client::run(&["demo", "--json"], LIMIT);
    let report: RunReport = done.json();
    assert!(report.text.len() > 20 && report.tokens.len() > 20, "{report:?}");
    assert_eq!(report.devices.iter().filter(|d| d.layers.is_some()).count(), 4, "{report:?}");
    let pids = servers(&done.stderr);
    assert_eq!(pids.len(), 2, "{}", done.stderr);
    gone(&pids);
}

#[test]
fn its_servers_end_with_it() {
    if model("smollm2").is_none() {
        return;
    }
    for signal in ["INT", "TERM", "KILL"] {
        let mut client = Client::start(&["demo"]);
        // The prompt is printed before the first token; by then there are servers with a model.
        client.wait_for_text(LIMIT);
        client.signal(signal);
        let pids = servers(&client.wait(LIMIT).stderr);
        assert_eq!(pids.len(), 2);
        gone(&pids);
    }
}

/// Where `demo --serve` says that it is.
fn address(client: &mut Client) -> SocketAddr {
    client.wait_for_text(LIMIT);
    let line = client.written();
    let addr = line.strip_prefix("open http://").and_then(|rest| rest.split_once("/ in a browser"));
    addr.unwrap_or_else(|| panic!("no address: {line}")).0.parse().unwrap()
}

fn ask(addr: SocketAddr, method: &str, path: &str, body: &str) -> Answer {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    write_request(&mut socket, method, path, &[("content-type", "application/json")], body.as_bytes());
    Answer::read(socket)
}

#[test]
fn serves_until_a_signal_and_leaves_nothing() {
    if model("smollm2").is_none() {
        return;
    }
    for signal in ["INT", "TERM"] {
        let mut client = Client::start(&["demo", "--serve", "--port", "0"]);
        let addr = address(&mut client);
        assert_eq!(ask(addr, "GET", "/health", "").json(), json!({"status": "ok"}));
        let question = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 1});
        let answer = ask(addr, "POST", "/v1/chat/completions", &question.to_string()).json();
        assert!(!answer["choices"][0]["message"]["content"].as_str().unwrap().is_empty(), "{answer}");
        client.signal(signal);
        let done = client.wait(LIMIT);
        assert_eq!((done.code, done.stderr.contains("both servers have stopped")), (Some(0), true), "{}", done.stderr);
        let pids = servers(&done.stderr);
        assert_eq!(pids.len(), 2, "{}", done.stderr);
        gone(&pids);
        assert!(TcpStream::connect(addr).is_err(), "something listens at {addr}");
    }
}
