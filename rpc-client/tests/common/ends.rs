//! A client of several servers, with a queue on each.
#![allow(dead_code, unreachable_pub, missing_docs)]

use crate::common::{WAIT, buffer};
use outboard_core::*;
use outboard_rpc_client::{ClientOptions, Endpoint, PeerPath, RemoteDevice, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub fn ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut ticket = [0; 32];
    ticket[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    Ticket(ticket)
}

/// A device with a queue and some memory.
pub struct End {
    pub device: Arc<dyn Device>,
    pub queue: Arc<dyn Queue>,
    pub memory: Slice,
}

impl End {
    pub fn new(device: &Arc<dyn Device>, size: u64) -> End {
        End { device: device.clone(), queue: device.queue().unwrap(), memory: buffer(device, size) }
    }

    pub fn offer(&self, ticket: Ticket, src: &Slice, to: &End) {
        self.device.peer().unwrap().offer(self.queue.as_ref(), ticket, src, to.device.as_ref()).unwrap();
    }

    pub fn accept(&self, ticket: Ticket, dst: &Slice) -> Event {
        self.device.peer().unwrap().accept(self.queue.as_ref(), ticket, dst).unwrap()
    }

    /// Another queue of the same device.
    pub fn other(&self) -> End {
        End { device: self.device.clone(), queue: self.device.queue().unwrap(), memory: self.memory.clone() }
    }

    /// The error that its queue gives.
    pub fn error(&self) -> Error {
        self.queue.finish(WAIT).unwrap_err()
    }

    pub fn path(&self, to: &End) -> PeerPath {
        RemoteDevice::of(self.device.as_ref()).unwrap().peer_link(RemoteDevice::of(to.device.as_ref()).unwrap())
    }
}

/// A client's devices on several servers, one of each.
pub fn ends<const N: usize>(endpoints: [Endpoint; N], size: u64) -> [End; N] {
    ends_with(endpoints, &ClientOptions::default(), size)
}

pub fn ends_with<const N: usize>(endpoints: [Endpoint; N], options: &ClientOptions, size: u64) -> [End; N] {
    let devices = connect(&endpoints, options).unwrap();
    let first = |e: &Endpoint| {
        let device = devices.iter().find(|d| RemoteDevice::of(d.as_ref()).unwrap().endpoint() == e);
        End::new(device.unwrap(), size)
    };
    endpoints.each_ref().map(first)
}
