//! Measures the way of a small tensor from server to server: ping-pong between two servers, enqueued ahead, so that the client
//! is not part of what is measured.
//!
//! `cargo run --release -p outboard-rpc-client --example peers [host:port host:port]`; without endpoints, two servers in this process
//! with a reference device each.

use outboard_core::Host;
use outboard_core::{Device, Error, PeerTransfer, Result, Slice, Ticket, Usage};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(60);
/// Rounds that are enqueued before the first one starts.
const AHEAD: u32 = 100;
/// How often that is done; the median counts.
const RUNS: u32 = 21;

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let servers = if given.is_empty() { vec![start()?, start()?] } else { Vec::new() };
    let names = if given.is_empty() { servers.iter().map(|s| s.local_addr().to_string()).collect() } else { given };
    let parse = |name: &String| Endpoint::parse(name).map_err(|e| Error::Request(e.to_string()));
    let endpoints = names.iter().map(parse).collect::<Result<Vec<_>>>()?;
    let devices = connect(&endpoints, &ClientOptions::default())?;
    let first = |e: &Endpoint| {
        let of = |d: &&Arc<dyn Device>| RemoteDevice::of(d.as_ref()).is_some_and(|r| r.endpoint() == e);
        devices.iter().find(of).cloned().ok_or_else(|| Error::Request("a server without devices".into()))
    };
    let (Some(a), Some(b)) = (endpoints.first(), endpoints.last()) else { return Ok(()) };
    let (a, b) = (first(a)?, first(b)?);
    for size in [4, 2304, 16 << 10, 64 << 10, 256 << 10] {
        ping_pong(a.as_ref(), b.as_ref(), size)?;
    }
    Ok(())
}

fn start() -> Result<Server> {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(1 << 30)));
    let devices: Vec<Arc<dyn Device>> = vec![reference_device(&host, "A", &budget)];
    Server::start(ServerConfig {
        addr: ([127, 0, 0, 1], 0).into(),
        devices,
        limits: Limits::default(),
        trust: Trust::default(),
    })
}

fn peer(device: &dyn Device) -> Result<&dyn PeerTransfer> {
    device.peer().ok_or_else(|| Error::Request("no transfers".into()))
}

fn ticket(next: &mut u64) -> Ticket {
    *next += 1;
    let mut bytes = [0; 32];
    // Random as a ticket must be is of no matter here; only that it is new.
    bytes
        .iter_mut()
        .zip(next.to_le_bytes().into_iter().chain(std::process::id().to_le_bytes()))
        .for_each(|(b, n)| *b = n);
    Ticket(bytes)
}

fn ping_pong(a: &dyn Device, b: &dyn Device, size: u64) -> Result<()> {
    let (qa, qb, gate, opener) = (a.queue()?, b.queue()?, b.queue()?, b.queue()?);
    let slice = |d: &dyn Device| Ok::<_, Error>(Slice::whole(d.alloc(size, Usage::Any)?));
    let (ma, mb) = (slice(a)?, slice(b)?);
    let (pa, pb) = (peer(a)?, peer(b)?);
    let mut next = size << 32;
    let mut hops = Vec::new();
    for _ in 0..RUNS {
        // The first tensor comes from a queue that is held up until everything is in line.
        let (held, first) = (ticket(&mut next), ticket(&mut next));
        pb.accept(gate.as_ref(), held, &mb)?;
        pb.offer(gate.as_ref(), first, &mb, a)?;
        pa.accept(qa.as_ref(), first, &ma)?;
        for _ in 0..AHEAD {
            let (there, back) = (ticket(&mut next), ticket(&mut next));
            pa.offer(qa.as_ref(), there, &ma, b)?;
            pb.accept(qb.as_ref(), there, &mb)?;
            pb.offer(qb.as_ref(), back, &mb, a)?;
            pa.accept(qa.as_ref(), back, &ma)?;
        }
        let done = qa.read(&ma.part(0, 4)?)?;
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        pb.offer(opener.as_ref(), held, &mb, b)?;
        done.wait(WAIT)?;
        hops.push(start.elapsed() / (2 * AHEAD));
    }
    hops.sort();
    let at = |q: usize| hops.get(hops.len() * q / 100).copied().unwrap_or_default();
    println!("{size:>8} bytes: {:>9.1?} per hop (p10 {:.1?}, p90 {:.1?})", at(50), at(10), at(90));
    Ok(())
}
