//! What single requests may take of a server's memory. One test, since it looks at the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Answer, Served, write_request};
use outboard_serve::ServeOptions;

const MIB: usize = 1 << 20;

/// A line of the process's status, in bytes.
fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// What a request takes at most, beside what was there before, and its answer.
fn peak_of(served: &Served, path: &str, body: &str) -> (usize, Answer) {
    // The peak begins anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    let mut socket = served.connect();
    write_request(&mut socket, "POST", path, &[("content-type", "application/json")], body.as_bytes());
    let answer = Answer::read(socket);
    (status("VmHWM:").saturating_sub(before), answer)
}

#[test]
fn no_body_takes_much_more_than_its_share() {
    let served = Served::new(1, ServeOptions::default());
    let list = |each: &str| vec![each; (4 * MIB - 100) / (each.len() + 1)].join(",");
    for (what, body, most) in [
        ("numbers", format!(r#"{{"n":128,"prompt":[{}]}}"#, list("1")), 100 * MIB),
        ("small objects", format!(r#"{{"prompt":[{}]}}"#, list(r#"{"":0}"#)), 100 * MIB),
        ("small lists", format!(r#"{{"prompt":[{}]}}"#, list("[0]")), 100 * MIB),
    ] {
        let (peak, answer) = peak_of(&served, "/v1/completions", &body);
        println!("{what}: {} MiB", peak / MIB);
        assert_eq!(answer.error(413)["type"], "invalid_request_error");
        assert!(peak < most, "{what}: {} MiB", peak / MIB);
    }
    assert_eq!(served.get("/health").status, 200);
}
