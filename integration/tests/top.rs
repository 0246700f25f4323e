//! `outboard top` in a terminal.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Server, Serving, program, skip, small_model};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// `outboard top` in a terminal of 100 by 40. What it has written is text and commands for that.
struct Top {
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Top {
    fn start(args: &[&str]) -> Top {
        Top::start_as("exec", args)
    }

    fn start_as(exec: &str, args: &[&str]) -> Top {
        let command = format!("stty rows 40 cols 100; {exec} {} top {}", program("outboard").display(), args.join(" "));
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &command, "/dev/null"]).env("TERM", "xterm-256color");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script starts");
        let (mut out, written) = (child.stdout.take().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let to = written.clone();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(n) = out.read(&mut part)
                && n > 0
            {
                to.lock().unwrap().extend_from_slice(&part[..n]);
            }
        });
        Top { child, written }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until it has written something: a word, because blanks are not written.
    fn shows(&self, word: &str) {
        let start = Instant::now();
        while !self.text().contains(word) {
            assert!(start.elapsed() < LIMIT, "no {word}: {:?}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The process that has the terminal.
    fn pid(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(path).expect("a child");
        children.trim().parse().expect("one child")
    }

    /// Presses q, and sees that the terminal is as it was.
    fn quit(mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"q").unwrap();
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < LIMIT, "it does not end: {:?}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.child.wait().unwrap().success(), "{:?}", self.text());
        self.shows("\u{1b}[?1049l");
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_shows_a_service_and_a_servers_metrics_until_q() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("there is no `script`, which gives a program a terminal");
    }
    let dir = tempfile::tempdir().unwrap();
    let (model, keys) = (small_model(dir.path()), dir.path().join("keys"));
    std::fs::write(&keys, "tester 0123456789abcdef-tester\n").unwrap();
    let mut server = Server::start(&["-d", "cpu:1", "--metrics", "127.0.0.1:0"]);
    let keys = keys.to_str().unwrap();
    let args = ["--rpc", &server.addr, "-c", "512", "--api-key-file", keys];
    let serving = Serving::start(model.to_str().unwrap(), &args);
    let url = format!("http://{}", serving.addr);
    // Nobody without a key.
    let top = Top::start(&[&url]);
    top.shows("--api-key-file");
    top.quit();
    let top = Top::start(&[&url, "--api-key-file", keys]);
    top.shows(&server.addr);
    top.shows("answers");
    let metrics = Top::start(&[&format!("http://{}/metrics", server.metrics_addr())]);
    metrics.shows("sessions_opened_total");
    metrics.quit();
    server.kill();
    top.shows("LOST");
    drop(serving);
    top.shows("again");
    top.quit();
    // Its terminal goes, and it does not hear of it: SIGHUP is ignored.
    let mut left = Top::start_as("trap '' HUP; exec", &[&url]);
    left.shows("again");
    let pid = left.pid();
    left.child.kill().unwrap();
    left.child.wait().unwrap();
    let start = Instant::now();
    while std::fs::exists(format!("/proc/{pid}/fd/1")).unwrap() {
        if start.elapsed() > LIMIT {
            Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
            panic!("it goes on without a terminal");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Not a terminal.
    let error = Client::run(&["top", &url], LIMIT);
    assert!(error.error().contains("/cluster"), "{}", error.stderr);
}
