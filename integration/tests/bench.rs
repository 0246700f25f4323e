//! `outboard bench`: what its JSON says of remote and local devices in one run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Server, model};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn remote_and_local_side_by_side() {
    let Some(file) = model("smollm2") else { return };
    let server = Server::start(&["-d", "cpu:1"]);
    let args = ["bench", "-m", file.to_str().unwrap(), "--rpc", &server.addr, "--local", "-t", "1"];
    let args = [&args[..], &["-p", "16,0", "-n", "4", "-r", "2", "-o", "json"]].concat();
    let rows: Vec<Value> = Client::run(&args, LIMIT).json();
    let remote = format!("{}/CPU0", server.addr);
    let expected = [("pp16", remote.as_str()), ("pp16", "CPU0"), ("tg4", remote.as_str()), ("tg4", "CPU0")];
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for (row, (test, device)) in rows.iter().zip(expected) {
        assert_eq!(row["test"], test, "{row}");
        assert_eq!(row["devices"].as_array().unwrap(), &[Value::from(device)], "{row}");
        assert_eq!(row["n"], 2, "{row}");
        assert!(row["tps"].as_f64().unwrap() > 0.0 && row["stddev"].as_f64().is_some(), "{row}");
        let is_remote = device != "CPU0";
        assert_eq!((row["remote"].as_bool(), row["sent_bytes"].as_f64() > Some(0.0)), (Some(is_remote), is_remote));
        assert_eq!(row.get("beside").is_some(), is_remote, "{row}");
    }
    assert_eq!(rows[2]["beside"][0]["network"], true);
}

#[test]
fn nothing_to_measure_is_an_error() {
    let Some(file) = model("smollm2") else { return };
    let done = Client::run(&["bench", "-m", file.to_str().unwrap(), "-p", "0", "-n", "0"], LIMIT);
    assert!(done.error().contains("nothing to measure"), "{}", done.stderr);
}
