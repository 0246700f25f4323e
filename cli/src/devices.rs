//! Which devices a command sees, and what they have sent.

use crate::args::DeviceArgs;
use anyhow::{Context, Result};
use outboard::devices::{Available, Servers, net_stats};
use outboard::{Devices, NetStats};
use outboard_core::error::Bytes;
use outboard_core::{Device, MemoryInfo, try_at_once};
use std::sync::Arc;

/// The devices that there are: those of this host, those of the servers, and what is opened because `-dev` or one of `more` names it.
pub(crate) fn available(args: &DeviceArgs, more: &[String]) -> Result<Available> {
    if let Some(folder) = &args.ggml {
        outboard_backends::use_ggml(folder);
    }
    // Files of credentials that no server needs may be missing.
    let servers = match args.rpc.0.as_slice() {
        [] => Servers::default(),
        endpoints => Servers { endpoints: endpoints.to_vec(), options: args.options()? },
    };
    let names = [args.dev.as_slice(), more].concat();
    Ok(Available::open_named(args.threads.map(usize::from), servers, &names)?)
}

/// The devices that were asked for: those named, or the servers', or the local ones.
pub(crate) fn open(args: &DeviceArgs) -> Result<Devices> {
    Ok(available(args, &[])?.choose(&args.dev)?)
}

/// Bytes that went over the network.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Net {
    pub(crate) sent_bytes: u64,
    pub(crate) recv_bytes: u64,
    pub(crate) peer_bytes: u64,
}

impl Net {
    /// What went since an earlier moment.
    pub(crate) fn since(&self, before: Net) -> Net {
        Net {
            sent_bytes: self.sent_bytes - before.sent_bytes,
            recv_bytes: self.recv_bytes - before.recv_bytes,
            peer_bytes: self.peer_bytes - before.peer_bytes,
        }
    }

    /// A line of it for people; none if there are no servers.
    pub(crate) fn line(&self) -> String {
        if self.sent_bytes == 0 {
            return String::new();
        }
        let (sent, received) = (Bytes(self.sent_bytes), Bytes(self.recv_bytes));
        let peers = match self.peer_bytes {
            0 => String::new(),
            bytes => format!("; {} between servers", Bytes(bytes)),
        };
        format!("network {sent} sent, {received} received, weights included{peers}\n")
    }
}

/// What the servers of these devices have sent and received, each server counted once.
pub(crate) fn net(devices: &[Arc<dyn Device>]) -> Net {
    let NetStats { sent_bytes, recv_bytes, peer_bytes } = net_stats(devices);
    Net { sent_bytes, recv_bytes, peer_bytes }
}

/// Memory of each device now; an error names the device.
pub(crate) fn memory(devices: &[Arc<dyn Device>]) -> Result<Vec<MemoryInfo>> {
    let ask = |device: &Arc<dyn Device>| device.memory().with_context(|| format!("memory of {}", device.info().id));
    try_at_once(devices, ask)
}

/// Bytes that are free on each device now.
pub(crate) fn free(devices: &[Arc<dyn Device>]) -> Result<Vec<u64>> {
    Ok(memory(devices)?.into_iter().map(|memory| memory.free).collect())
}
