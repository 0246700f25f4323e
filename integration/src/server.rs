//! `rpc-server` as a process.

use crate::{Client, program};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// A software driver of Vulkan may have shaders to compile first, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A server on a free port. Dropping it kills it.
pub struct Server {
    child: Child,
    /// `127.0.0.1:port`.
    pub addr: String,
    /// Where its metrics are, if it was started with `--metrics`.
    metrics: Option<String>,
    /// Its standard error until now.
    said: Arc<Mutex<String>>,
}

impl Server {
    /// Starts `rpc-server -p 0 ARGS` and waits until it listens.
    pub fn start(args: &[&str]) -> Server {
        Server::start_at("127.0.0.1:0", args)
    }

    /// Starts it on an address of the loopback interface.
    pub fn start_at(addr: &str, args: &[&str]) -> Server {
        Server::spawn(Command::new(program("rpc-server")), addr, args)
    }

    /// Starts it where a process may have so many file descriptors, and no more.
    pub fn start_with_descriptors(descriptors: u64, args: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        let limits = format!("ulimit -Sn {descriptors} && ulimit -Hn {descriptors} && exec \"$@\"");
        shell.args(["-c", &limits, "sh"]).arg(program("rpc-server"));
        Server::spawn(shell, "127.0.0.1:0", args)
    }

    fn spawn(mut command: Command, addr: &str, args: &[&str]) -> Server {
        let port = addr.rsplit(':').next().unwrap_or("0");
        let mut child = command
            .args(["-p", port])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rpc-server starts");
        let out = BufReader::new(child.stdout.take().expect("its stdout"));
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            let mut metrics = None;
            for line in out.lines().map_while(Result::ok) {
                let url = line.trim().strip_prefix("metrics").and_then(|l| l.split_once("http://"));
                metrics = metrics.or(url.map(|(_, url)| url.trim_end_matches("/metrics").to_owned()));
                if let Some(addr) = line.strip_prefix("listening on ") {
                    let _ = tx.send((addr.trim().to_owned(), metrics.take()));
                }
            }
        });
        let err = BufReader::new(child.stderr.take().expect("its stderr"));
        let said = Arc::new(Mutex::new(String::new()));
        let lines = said.clone();
        std::thread::spawn(move || {
            for line in err.split(b'\n').map_while(Result::ok) {
                let mut said = lines.lock().expect("no panic");
                said.push_str(&String::from_utf8_lossy(&line));
                said.push('\n');
            }
            // Shown with a test that fails.
            print!("{}", lines.lock().expect("no panic"));
        });
        let mut server = Server { child, addr: String::new(), metrics: None, said };
        (server.addr, server.metrics) = rx.recv_timeout(START_LIMIT).expect("the server listens");
        server
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        self.said.lock().expect("no panic").clone()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Free memory as its first device reports it, in bytes.
    pub fn memory_free(&self) -> u64 {
        #[derive(serde::Deserialize)]
        struct Device {
            id: String,
            memory_free: u64,
        }
        let devices: Vec<Device> = Client::run(&["devices", "--rpc", &self.addr, "--json"], START_LIMIT).json();
        let mine = devices.iter().find(|d| d.id.starts_with(&self.addr));
        mine.unwrap_or_else(|| panic!("no device of {}", self.addr)).memory_free
    }

    /// Where its metrics are.
    pub fn metrics_addr(&self) -> &str {
        self.metrics.as_ref().expect("--metrics")
    }

    /// A metric, all of its labels together; 0 if there is none.
    pub fn metric(&self, name: &str) -> f64 {
        let mut socket = TcpStream::connect(self.metrics_addr()).expect("metrics");
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("a request");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("metrics");
        let line = |l: &str| match l.strip_prefix(name)? {
            rest if rest.starts_with([' ', '{']) => rest.rsplit(' ').next()?.parse::<f64>().ok(),
            _ => None,
        };
        text.lines().filter_map(line).sum()
    }

    /// Waits until a metric is zero.
    pub fn wait_for_none(&self, name: &str, limit: Duration) {
        let start = Instant::now();
        while self.metric(name) > 0.0 {
            assert!(start.elapsed() < limit, "{name} is still {} after {limit:?}", self.metric(name));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Resident memory in bytes, from `/proc`.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status of the server");
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
    }

    /// Ends it as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits for its end.
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(start.elapsed() < limit, "still running after {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
