//! Tensors from server to server.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_rpc_client::{ClientOptions, PeerPath, RemoteDevice, connect};
use outboard_rpc_server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut ticket = [0; 32];
    ticket[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    Ticket(ticket)
}

/// A device with a queue and some memory.
struct End {
    device: Arc<dyn Device>,
    queue: Arc<dyn Queue>,
    memory: Slice,
}

impl End {
    fn new(device: &Arc<dyn Device>, size: u64) -> End {
        End { device: device.clone(), queue: device.queue().unwrap(), memory: buffer(device, size) }
    }

    fn offer(&self, ticket: Ticket, src: &Slice, to: &End) {
        self.device.peer().unwrap().offer(self.queue.as_ref(), ticket, src, to.device.as_ref()).unwrap();
    }

    fn accept(&self, ticket: Ticket, dst: &Slice) -> Event {
        self.device.peer().unwrap().accept(self.queue.as_ref(), ticket, dst).unwrap()
    }

    fn path(&self, to: &End) -> PeerPath {
        RemoteDevice::of(self.device.as_ref()).unwrap().peer_link(RemoteDevice::of(to.device.as_ref()).unwrap())
    }
}

/// A client's devices on several servers, one of each.
fn ends(servers: &[&Server], size: u64) -> Vec<End> {
    let endpoints: Vec<_> = servers.iter().map(|s| endpoint(s)).collect();
    let devices = connect(&endpoints, &ClientOptions::default()).unwrap();
    devices.iter().filter(|d| d.info().name == "REF0").map(|d| End::new(d, size)).collect()
}

fn pattern(len: u64, seed: u64) -> Bytes {
    (0..len).map(|i| ((i + seed) * 31 + i / 4096) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn tensors_cross_in_any_order_and_size() {
    let (a, b) = (server().0, server().0);
    let ends = ends(&[&a, &b], 48 << 20);
    let [x, y] = &ends[..] else { panic!() };
    assert_eq!((x.path(y), y.path(x)), (PeerPath::Direct, PeerPath::Direct));
    let mut peer_bytes = 0;
    for (i, len) in [0, 4, 2304, 16 << 10, (16 << 10) + 1, 65 << 10, 2 << 20, 48 << 20].into_iter().enumerate() {
        for accept_first in [false, true] {
            let (src, dst) = (x.memory.part(0, len).unwrap(), y.memory.part(0, len).unwrap());
            let data = pattern(len, i as u64);
            x.queue.write(&src, data.clone()).unwrap();
            y.queue.fill(&y.memory, 0).unwrap();
            let t = ticket();
            if accept_first {
                y.accept(t, &dst);
                x.offer(t, &src, y);
            } else {
                x.offer(t, &src, y);
                y.accept(t, &dst);
            }
            assert!(read(y.queue.as_ref(), &dst) == data, "{len} bytes, {accept_first}");
            peer_bytes += len;
        }
    }
    let stats = RemoteDevice::of(x.device.as_ref()).unwrap().net_stats();
    assert!((peer_bytes..peer_bytes + 10_000).contains(&stats.peer_bytes), "{stats:?}");
    assert_eq!(RemoteDevice::of(y.device.as_ref()).unwrap().net_stats().peer_bytes, 0);
    // One connection each way has done all that.
    assert_eq!((a.peer_links(), b.peer_links()), (1, 1));
}
