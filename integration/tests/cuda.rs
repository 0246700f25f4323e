//! A real model on the CUDA devices of rpc-servers; where there is no card, on the emulator, which takes seconds for a token.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_cuda_emulator::Emulator;
use outboard_integration::{Server, program, skip, texts_on, texts_together};
use std::process::Command;

const TOKENS: usize = 3;
/// Tells the tests below that they run on the emulator.
const EMULATED: &str = "OUTBOARD_TEST_EMULATED";

/// Whether there is a device; without one, a line.
fn has_cuda() -> bool {
    let out = Command::new(program("rpc-server")).args(["--list-devices", "-d", "cuda0"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    if !said.contains("CUDA0:") {
        skip("there is no CUDA device here; on_the_emulator has one");
        return false;
    }
    true
}

#[test]
fn smollm2() {
    if has_cuda() {
        texts_on("smollm2", "cuda0", 1, TOKENS);
    }
}

/// Two cards of a server.
#[test]
fn two_cards() {
    if has_cuda() {
        let server = Server::start(&["-d", "cuda0,cuda1", "-t", "1"]);
        // Eight texts: a token is enough of each behind the first.
        texts_together(&server.addr, &[1.0, 1.0], 2, || {});
    }
}

/// From a CUDA device of one server to the CPU of another.
#[test]
fn texts_go_on_where_the_kernels_are_others() {
    if has_cuda() {
        let mut first = Server::start(&["-d", "cuda0", "-t", "1"]);
        let second = Server::start(&["-d", "cpu:1", "-t", "1"]);
        texts_together(&format!("{},{}", first.addr, second.addr), &[1.0, 1.0], TOKENS, || first.kill());
    }
}

/// The tests above, one after the other, with the emulator in place of the driver in all programs.
#[test]
fn on_the_emulator() {
    if std::env::var_os(EMULATED).is_some() {
        return println!("skipped: this is the run on the emulator");
    }
    program("rpc-server");
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["--nocapture", "--test-threads", "1"]);
    tests.env(EMULATED, "1").env("OUTBOARD_CUDA_EMULATOR", "devices=2");
    let out = tests.env("LD_PRELOAD", Emulator::file().unwrap()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    println!("{said}");
    assert!(out.status.success() && !said.contains("no CUDA device here"));
}
