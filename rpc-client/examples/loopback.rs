//! Measures the wire on loopback: round trips, bulk throughput, and round trips while bulk data moves.
//!
//! `cargo run --release -p outboard-rpc-client --example loopback [host:port]`; without an endpoint, a server in this process with two
//! reference devices.

use outboard_core::device::Bytes;
use outboard_core::{Device, Queue, Result, Slice, Usage};
use outboard_host::{Host, MemoryBudget};
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(60);
const BULK: usize = 256 << 20;

fn main() -> Result<()> {
    let server = match std::env::args().nth(1) {
        Some(_) => None,
        None => Some(start()?),
    };
    let text = std::env::args().nth(1).or(server.as_ref().map(|s| s.local_addr().to_string())).unwrap_or_default();
    let endpoint = Endpoint::parse(&text).map_err(|e| outboard_core::Error::Request(e.to_string()))?;
    let devices = connect(&[endpoint], &ClientOptions::default())?;
    let (Some(first), Some(last)) = (devices.first(), devices.last()) else { return Ok(()) };
    round_trips("finish, idle", first.as_ref(), &|| false)?;
    let queue = first.queue()?;
    let slice = Slice::whole(first.alloc(BULK as u64, Usage::Weights)?);
    let data = Bytes::from(vec![7u8; BULK]);
    for _ in 0..5 {
        let start = Instant::now();
        queue.write(&slice, data.clone())?;
        queue.finish(WAIT)?;
        rate("upload", start);
    }
    for _ in 0..3 {
        let start = Instant::now();
        queue.read(&slice)?.wait(WAIT)?;
        rate("download", start);
    }
    // Commands per second without an answer.
    let part = slice.part(0, 64)?;
    let start = Instant::now();
    for _ in 0..200_000 {
        queue.fill(&part, 1)?;
    }
    queue.finish(WAIT)?;
    println!("commands: {:.0} ns each", start.elapsed().as_nanos() as f64 / 200_000.0);
    let upload = std::thread::spawn(move || -> Result<()> {
        for _ in 0..8 {
            queue.write(&slice, data.clone())?;
        }
        queue.finish(WAIT)
    });
    round_trips("finish, while an upload runs", last.as_ref(), &|| !upload.is_finished())?;
    if let Some(remote) = RemoteDevice::of(first.as_ref()) {
        println!("{:?}", remote.net_stats());
    }
    Ok(())
}

fn start() -> Result<Server> {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(1 << 30)));
    let devices: Vec<Arc<dyn Device>> =
        vec![reference_device(&host, "A", &budget), reference_device(&host, "B", &budget)];
    Server::start(ServerConfig {
        addr: ([127, 0, 0, 1], 0).into(),
        devices,
        limits: Limits::default(),
        trust: Trust::default(),
    })
}

fn rate(what: &str, start: Instant) {
    println!("{what}: {:.2} GB/s", BULK as f64 / 1e9 / start.elapsed().as_secs_f64());
}

fn round_trips(what: &str, device: &dyn Device, more: &dyn Fn() -> bool) -> Result<()> {
    let queue: Arc<dyn Queue> = device.queue()?;
    let mut times = Vec::new();
    while times.len() < 2000 || more() {
        let start = Instant::now();
        queue.finish(WAIT)?;
        times.push(start.elapsed());
    }
    times.sort();
    let at = |q: usize| times.get(times.len() * q / 100).copied().unwrap_or_default();
    println!(
        "{what}: {} round trips, p10 {:?}, median {:?}, 90 % {:?}, 99 % {:?}",
        times.len(),
        at(10),
        at(50),
        at(90),
        at(99)
    );
    Ok(())
}
