//! What tensors between servers take of the hosts' memory beside the devices': a test of its own, because it looks at the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use common::*;
use ends::*;
use outboard_core::Host;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_rpc_client::{Endpoint, PeerPath};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use proxy::Proxy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// A tensor that is larger than all that a queue may have on the way.
const LARGE: u64 = 256 * MIB;
const QUEUES: usize = 8;
/// What a queue with a wide flight has on the way.
const WIDE: u64 = 32 * MIB;
/// Buffers of sockets and connections, and what the allocator keeps.
const SLACK: u64 = 96 * MIB;
/// What one session may have that no queue takes.
const EARLY: u64 = 512 * MIB;

fn cpu_server() -> Server {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(1 << 30)));
    let devices = vec![cpu_device(&host, "CPU0", CpuOptions::with_threads(1), &budget)];
    let addr = "127.0.0.1:0".parse().unwrap();
    Server::start(ServerConfig { addr, devices, limits: Limits::default(), trust: Trust::default() }).unwrap()
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The most that this process has in memory beyond what it has now, while something is done.
fn growth(work: impl FnOnce()) -> u64 {
    let (before, stop, most) = (resident(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (over, to) = (stop.clone(), most.clone());
    let watch = std::thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            to.fetch_max(resident().saturating_sub(before), Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    work();
    stop.store(true, Ordering::SeqCst);
    watch.join().unwrap();
    most.load(Ordering::SeqCst)
}

/// A device of each server, with a buffer whose memory is there.
fn two(a: &Server, to: Endpoint) -> [End; 2] {
    let both = ends([endpoint(a), to], LARGE);
    for end in &both {
        end.queue.fill(&end.memory, 1).unwrap();
        end.queue.finish(WAIT).unwrap();
    }
    assert_eq!(both[0].path(&both[1]), PeerPath::Direct);
    both
}

#[test]
fn large_tensors_take_no_more_than_what_is_on_the_way() {
    // Nothing that is sent gets through: it waits where it comes from.
    let (a, b) = (cpu_server(), cpu_server());
    let proxy = Proxy::start(b.local_addr());
    let [x, y] = two(&a, Endpoint::parse(&proxy.addr.to_string()).unwrap());
    proxy.allow(proxy.count() - 1, MIB);
    let took = growth(|| {
        let senders: Vec<End> = (0..QUEUES).map(|_| x.other()).collect();
        senders.iter().for_each(|from| from.offer(ticket(), &x.memory, &y));
        // Less than it takes to find out that the link is dead.
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(a.peer_links(), 1);
    });
    println!("offered: {} MiB", took / MIB);
    assert!(took < QUEUES as u64 * WIDE + SLACK, "{} MiB", took / MIB);
    drop((x, y, a, b));

    // All of it comes, and the devices' queues wait for something else before they take it.
    let (a, b) = (cpu_server(), cpu_server());
    let [x, y] = two(&a, endpoint(&b));
    let took = growth(|| {
        let pairs: Vec<(End, End)> = (0..QUEUES).map(|_| (x.other(), y.other())).collect();
        let (never, waits, gate) = (x.other(), y.other(), ticket());
        never.accept(ticket(), &x.memory);
        never.offer(gate, &x.memory.part(0, 8).unwrap(), &y);
        let gate = waits.accept(gate, &y.memory.part(0, 8).unwrap());
        for (from, to) in &pairs {
            let t = ticket();
            to.queue.wait(gate).unwrap();
            from.offer(t, &x.memory, &y);
            to.accept(t, &y.memory);
        }
        let start = Instant::now();
        // Some are refused, because there is no room.
        while pairs.iter().all(|(from, _)| from.queue.finish(Duration::from_secs(5)).is_ok()) {
            assert!(start.elapsed() < WAIT, "all of it is kept");
        }
        std::thread::sleep(Duration::from_millis(500));
    });
    println!("accepted: {} MiB", took / MIB);
    assert!(took < EARLY + 2 * QUEUES as u64 * WIDE + SLACK, "{} MiB", took / MIB);
    drop((x, y));

    // One that is taken as it comes is nowhere as a whole.
    let [x, y] = two(&a, endpoint(&b));
    let took = growth(|| {
        for i in 0..4 {
            let t = ticket();
            x.queue.fill(&x.memory, i).unwrap();
            y.accept(t, &y.memory);
            x.offer(t, &x.memory, &y);
            y.queue.finish(WAIT).unwrap();
            let last = y.memory.part(LARGE - 5, 5).unwrap();
            assert_eq!(read(y.queue.as_ref(), &last), [i; 5]);
        }
    });
    println!("carried: {} MiB", took / MIB);
    assert!(took < 2 * WIDE + SLACK, "{} MiB", took / MIB);
}
