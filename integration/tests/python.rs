//! A client in another language, made from the `.proto` files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Server, skip};
use std::path::Path;
use std::process::Command;

#[test]
fn grpcio_lists_the_devices() {
    let named = std::env::var("OUTBOARD_TEST_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".into());
    let modules = "import grpc, grpc_tools, grpc_health, grpc_reflection";
    if !Command::new(&python).args(["-c", modules]).output().is_ok_and(|o| o.status.success()) {
        let packages = "grpcio grpcio-tools grpcio-health-checking grpcio-reflection";
        // Whoever names an interpreter wants the test to run.
        assert!(named.is_none(), "{python} of OUTBOARD_TEST_PYTHON has not all of {packages}");
        return skip(&format!("{python} has no grpcio; pip install {packages}"));
    }
    let server = Server::start(&["-d", "cpu:1,cpu:1"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(&python);
    command.arg(root.join("python/list_devices.py")).arg(root.join("../proto/proto")).arg(&server.addr);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("{list:#}");
    let names: Vec<&str> = list["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["CPU0", "CPU1"]);
    assert_eq!(list["devices"][0]["kind"], "CPU");
    assert!(list["devices"][0]["memory_total"].as_u64().unwrap() > 0);
    assert_eq!(list["health"], "SERVING");
    let services = list["services"].as_array().unwrap();
    assert!(services.iter().any(|s| s.as_str().is_some_and(|s| s.starts_with("outboard.v1"))), "{services:?}");
}
