//! `outboard serve` as a process.

use crate::Client;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A model may have to be read first.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A server of a model on a free port of the loopback interface. Dropping it kills it.
pub struct Serving {
    /// The process.
    pub client: Client,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Serving {
    /// Starts `outboard serve -m MODEL --port 0 ARGS` and waits until it listens.
    pub fn start(model: &str, args: &[&str]) -> Serving {
        let mut client = Client::start(&[&["serve", "-m", model, "--port", "0"], args].concat());
        let start = Instant::now();
        loop {
            let written = client.written();
            let listens = written.lines().find_map(|line| line.strip_prefix("listening on "));
            if let Some(addr) = listens {
                return Serving { addr: addr.trim().parse().expect("an address"), client };
            }
            assert!(
                start.elapsed() < START_LIMIT && client.is_running(),
                "it does not listen; stderr:\n{}",
                client.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Resident memory in bytes, from `/proc`.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.client.pid())).expect("status");
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
    }
}
