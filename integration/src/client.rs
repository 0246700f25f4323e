//! `outboard` as a process.

use crate::program;
use serde::Deserialize;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client that runs. Dropping it kills it.
pub struct Client {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// What a pipe has given so far, and the thread that reads it.
#[derive(Default)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// A client that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// What `outboard run --json` prints; fields that tests look at.
#[derive(Debug, Deserialize)]
pub struct RunReport {
    /// The text.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: Vec<u32>,
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities.
    pub log_probs: Vec<f32>,
    /// Why it ended.
    pub finish: String,
    /// Devices that the model lay on.
    pub devices: Vec<RunDevice>,
    /// How long it took.
    pub timings: RunTimings,
    /// What went over the network.
    pub net: RunNet,
    /// What was lost on the way.
    #[serde(default)]
    pub recoveries: Vec<RunRecovery>,
}

/// Times of a run, in milliseconds.
#[derive(Debug, Deserialize)]
pub struct RunTimings {
    /// Of the prompt and the first token.
    pub prompt_ms: f64,
    /// Of the tokens behind it.
    pub decode_ms: f64,
}

/// A fault that a run has survived.
#[derive(Debug, Deserialize)]
pub struct RunRecovery {
    /// What had happened.
    pub error: String,
    /// Whether the servers still had everything.
    pub resumed: bool,
    /// Tokens that were read again.
    pub tokens: usize,
    /// Until the run went on, in milliseconds.
    pub ms: f64,
}

/// A device of a run.
#[derive(Debug, Deserialize)]
pub struct RunDevice {
    /// `host:port/NAME` or `NAME`.
    pub id: String,
    /// First and last layer.
    pub layers: Option<[usize; 2]>,
    /// First and last of those that follow one another.
    pub layer_ranges: Vec<[usize; 2]>,
    /// Bytes.
    pub weight_bytes: u64,
}

/// Bytes over the network.
#[derive(Debug, Deserialize)]
pub struct RunNet {
    /// By the client.
    pub sent_bytes: u64,
    /// By the servers to the client.
    pub recv_bytes: u64,
    /// Between servers.
    pub peer_bytes: u64,
}

impl Client {
    /// Starts `outboard ARGS`.
    pub fn start<S: AsRef<str>>(args: &[S]) -> Client {
        Client::start_with(args, &[])
    }

    /// Starts `outboard ARGS` with further variables in its environment.
    pub fn start_with<S: AsRef<str>>(args: &[S], vars: &[(&str, &str)]) -> Client {
        let mut child = Command::new(program("outboard"))
            .args(args.iter().map(AsRef::as_ref))
            .env_remove("OUTBOARD_RPC")
            .env_remove("OUTBOARD_CA")
            .env_remove("OUTBOARD_CERT")
            .env_remove("OUTBOARD_KEY")
            .env_remove("OUTBOARD_TOKEN")
            .env_remove("OUTBOARD_TOKEN_FILE")
            .envs(vars.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("outboard starts");
        let (stdout, stderr) = (child.stdout.take().expect("its stdout"), child.stderr.take().expect("its stderr"));
        Client { child, stdout: Output::collect(stdout), stderr: Output::collect(stderr) }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to stdout until now.
    pub fn written(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to stderr until now.
    pub fn said(&self) -> String {
        self.stderr.text()
    }

    /// Waits until it has written something to stdout.
    pub fn wait_for_text(&mut self, limit: Duration) {
        let start = Instant::now();
        while self.written().trim().is_empty() {
            assert!(start.elapsed() < limit, "nothing written within {limit:?}; stderr:\n{}", self.stderr.text());
            assert!(self.is_running(), "it ended; stderr:\n{}", self.stderr.text());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    /// Ends it as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; kills it and fails if that takes longer.
    pub fn wait(mut self, limit: Duration) -> Finished {
        let start = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break Some(status.code());
            }
            if start.elapsed() > limit {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.kill();
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        match code {
            Some(code) => Finished { code, stdout, stderr },
            None => panic!("outboard did not end within {limit:?}; stderr:\n{stderr}"),
        }
    }

    /// Runs `outboard ARGS` to its end.
    pub fn run<S: AsRef<str>>(args: &[S], limit: Duration) -> Finished {
        Client::start(args).wait(limit)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Finished {
    /// Its JSON document; fails with its stderr if it did not end well.
    pub fn json<T: for<'a> Deserialize<'a>>(&self) -> T {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }

    /// The line with which it failed: the only one that begins with `error:`, with exit status 1, or that of bad usage with 2.
    pub fn error(&self) -> &str {
        assert!(matches!(self.code, Some(1 | 2)), "exit {:?}: {}", self.code, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        let mut errors = self.stderr.lines().filter(|l| l.starts_with("error:"));
        let first = errors.next().unwrap_or_else(|| panic!("no error: {}", self.stderr));
        assert!(errors.next().is_none(), "more than one error: {}", self.stderr);
        assert_eq!(self.stderr.lines().last(), Some(first), "the error is not the last line: {}", self.stderr);
        first
    }
}

impl Output {
    fn collect(mut from: impl Read + Send + 'static) -> Output {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let to = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(n) = from.read(&mut part)
                && n > 0
            {
                to.lock().expect("the text").extend_from_slice(&part[..n]);
            }
        });
        Output { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("the text")).into_owned()
    }

    /// All of it, once the other end is closed.
    fn finish(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.text()
    }
}
