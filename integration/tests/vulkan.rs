//! A real model on the Vulkan device of rpc-servers; where there is no card, on a software driver, which takes a second for a token.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Server, model, program, skip, texts_on, texts_together};
use std::process::Command;
use std::time::Duration;

const TOKENS: usize = 6;

/// Whether there is a device; without one, a line.
fn has_vulkan() -> bool {
    let out = Command::new(program("rpc-server")).args(["--list-devices", "-d", "vulkan0"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    if !said.contains("Vulkan0:") {
        skip("there is no Vulkan device: mesa-vulkan-drivers has a software driver");
        return false;
    }
    true
}

#[test]
fn smollm2() {
    if has_vulkan() {
        texts_on("smollm2", "vulkan0", 1, TOKENS);
    }
}

#[test]
fn eight_sequences_at_once() {
    if has_vulkan() {
        let server = Server::start(&["-d", "vulkan0,cpu:1", "-t", "1"]);
        texts_together(&server.addr, &[1.0, 0.0], TOKENS, || {});
    }
}

/// From a Vulkan device of one server to the CPU of another.
#[test]
fn texts_go_on_where_the_kernels_are_others() {
    if has_vulkan() {
        let mut first = Server::start(&["-d", "vulkan0", "-t", "1"]);
        let second = Server::start(&["-d", "cpu:1", "-t", "1"]);
        texts_together(&format!("{},{}", first.addr, second.addr), &[1.0, 1.0], TOKENS, || first.kill());
    }
}

/// A client that is killed in the middle of a run leaves nothing on the device, and the next one finds it at work.
#[test]
fn a_client_that_is_killed_leaves_nothing() {
    let Some(path) = model("smollm2").filter(|_| has_vulkan()) else { return };
    let server = Server::start(&["-d", "vulkan0,cpu:1", "-t", "1", "--memory-limit", "2G"]);
    let free = server.memory_free();
    let path = path.to_str().unwrap();
    let args = |n| ["run", "-m", path, "-p", "Once", "-n", n, "-c", "512", "--rpc", &server.addr, "-ts", "1,0"];
    let mut client = Client::start(&args("200"));
    client.wait_for_text(Duration::from_secs(120));
    assert!(server.memory_free() < free);
    client.kill();
    let end = std::time::Instant::now() + Duration::from_secs(40);
    while server.memory_free() + (1 << 20) < free {
        assert!(std::time::Instant::now() < end, "{} bytes free of {free}", server.memory_free());
        std::thread::sleep(Duration::from_millis(100));
    }
    let done = Client::run(&args("2"), Duration::from_secs(120));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}
