//! `outboard run --trace`: what every device did, and where a token's time went.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Server, model};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const TOKENS: usize = 12;

#[test]
fn devices_of_two_servers_and_the_link_between_them() {
    let Some(file) = model("smollm2") else { return };
    let servers = [Server::start(&["-d", "cpu:1"]), Server::start(&["-d", "cpu:1"])];
    let rpc = servers.each_ref().map(|s| s.addr.as_str()).join(",");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let args = ["run", "-m", file.to_str().unwrap(), "--rpc", &rpc, "-ts", "1,1", "-p", "Once", "--temp", "0"];
    let n = TOKENS.to_string();
    let args = [&args[..], &["-n", &n, "--ignore-eos", "--json", "--trace", path.to_str().unwrap()]].concat();
    let report: Value = Client::run(&args, LIMIT).json();

    let ids = servers.each_ref().map(|s| format!("{}/CPU0", s.addr));
    let per_token = report["timings"]["decode_ms"].as_f64().unwrap() / (TOKENS - 1) as f64;
    let times = report["token_times"].as_array().unwrap();
    assert_eq!(times.len(), 2, "{times:?}");
    for time in times {
        assert!(ids.contains(&time["device"].as_str().unwrap().to_owned()), "{time}");
        let [compute, wire, waiting] = ["compute_ms", "wire_ms", "waiting_ms"].map(|k| time[k].as_f64().unwrap());
        assert!(compute > 0.0 && wire >= 0.0 && waiting >= 0.0, "{time}");
        let sum = compute + wire + waiting;
        assert!((sum - per_token).abs() <= 0.01 * per_token, "{sum} of {per_token}: {time}");
    }

    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |kind: &str, name: &str| events.iter().any(|e| e["name"] == kind && e["args"]["name"] == name);
    for server in &servers {
        assert!(named("process_name", &server.addr), "no rows of {}", server.addr);
    }
    assert!(named("thread_name", &format!("{} to {}", ids[0], ids[1])), "no row for the link");
    let rows = events.iter().filter(|e| e["name"] == "thread_name").count();
    assert!(rows >= 5, "phases, two queues, two links: {rows}");
    // The prompt's graph and one for each further token, on each of two devices; some may have run beyond the last one.
    let graphs = events.iter().filter(|e| e["name"] == "execute").count();
    assert!(graphs >= 2 * TOKENS, "{graphs} graphs");
    assert!(events.iter().filter(|e| e["ph"] == "X").all(|e| e["dur"].as_f64() >= Some(0.0)));
}
