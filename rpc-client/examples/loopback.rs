//! Measures the wire on loopback: round trips, bulk throughput, and round trips while bulk data moves.
//!
//! `cargo run --release -p outboard-rpc-client --example loopback [host:port]`; without an endpoint, a server in this process with two
//! reference devices, reached by TCP, or, with `tls` or `quic` in place of the endpoint, by these.

use outboard_core::Host;
use outboard_core::device::Bytes;
use outboard_core::{Device, Error, Queue, Result, Slice, Usage};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{Carrier, ClientOptions, ClientTls, Endpoint, RemoteDevice, TlsFiles, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, ServerTls, Trust};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: outboard_system::ProgramAllocator = outboard_system::ProgramAllocator;

const WAIT: Duration = Duration::from_secs(60);
const BULK: usize = 256 << 20;

fn main() -> Result<()> {
    let to = std::env::args().nth(1).unwrap_or_else(|| "tcp".into());
    let parse = |text: &str| Endpoint::parse(text).map_err(|e| Error::Request(e.to_string()));
    let mut options = ClientOptions::default();
    let carrier = match to.as_str() {
        "tcp" => Some(Carrier::Tcp),
        "tls" => Some(Carrier::Tls),
        "quic" => Some(Carrier::Quic),
        _ => None,
    };
    let (_server, endpoint) = match carrier {
        Some(carrier) => {
            let mut trust = Trust::default();
            if carrier.is_encrypted() {
                (trust.tls, options.tls) = certificates()?;
            }
            let server = start(trust)?;
            let endpoint = parse(&server.local_addr().to_string())?.by(carrier);
            (Some(server), endpoint)
        }
        None => (None, parse(&to)?),
    };
    let devices = connect(&[endpoint], &options)?;
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

/// A certificate for this host, which the client trusts.
fn certificates() -> Result<(Option<ServerTls>, ClientTls)> {
    let fail = |e: &dyn std::fmt::Display| Error::Request(format!("no certificate: {e}"));
    let dir = tempfile::tempdir().map_err(|e| fail(&e))?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).map_err(|e| fail(&e))?;
    let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
    std::fs::write(&cert, made.cert.pem()).map_err(|e| fail(&e))?;
    std::fs::write(&key, made.signing_key.serialize_pem()).map_err(|e| fail(&e))?;
    let client = ClientTls::load(TlsFiles { ca: Some(cert.clone()), ..Default::default() })?;
    Ok((Some(ServerTls::load(&cert, &key, None)?), client))
}

fn start(trust: Trust) -> Result<Server> {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(1 << 30)));
    let devices: Vec<Arc<dyn Device>> =
        vec![reference_device(&host, "A", &budget), reference_device(&host, "B", &budget)];
    Server::start(ServerConfig { addr: ([127, 0, 0, 1], 0).into(), devices, limits: Limits::default(), trust })
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
