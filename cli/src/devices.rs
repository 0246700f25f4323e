//! Which devices a command sees: local ones, those of servers, and the choice among them.

use crate::args::DeviceArgs;
use anyhow::{Context, Result, bail};
use outboard_backends::{DeviceSpec, local_devices};
use outboard_core::Host;
use outboard_core::error::Bytes;
use outboard_core::{Device, DeviceKind, MemoryInfo, at_once, try_at_once};
use outboard_rpc_client::{RemoteDevice, connect};
use std::collections::HashSet;
use std::sync::Arc;

/// The devices of a run.
pub(crate) struct DeviceSet {
    /// In the order of the split.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// The last device is there only for what the others do not support.
    pub(crate) fallback: bool,
    /// What the local devices are made with.
    pub(crate) host: Arc<Host>,
}

/// Every device there is: local ones first, then the servers' in the order of the list.
pub(crate) fn all(args: &DeviceArgs) -> Result<Vec<Arc<dyn Device>>> {
    let mut devices = local_devices(&Host::new(), &DeviceSpec::usable(), args.threads.map(usize::from), None)?;
    devices.extend(remote(args)?);
    Ok(devices)
}

/// The servers' devices.
pub(crate) fn remote(args: &DeviceArgs) -> Result<Vec<Arc<dyn Device>>> {
    if args.rpc.0.is_empty() {
        return Ok(Vec::new());
    }
    Ok(connect(&args.rpc.0, &args.options()?)?)
}

/// The devices that were asked for: those named, or the servers', or the local ones.
pub(crate) fn open(args: &DeviceArgs) -> Result<DeviceSet> {
    Available::open(args)?.choose(&args.dev)
}

/// What there is to choose from.
pub(crate) struct Available {
    host: Arc<Host>,
    local: Vec<Arc<dyn Device>>,
    remote: Vec<Arc<dyn Device>>,
}

impl Available {
    /// The local devices, and those of the servers.
    pub(crate) fn open(args: &DeviceArgs) -> Result<Available> {
        let host = Host::new();
        let local = local_devices(&host, &DeviceSpec::usable(), args.threads.map(usize::from), None)?;
        Ok(Available { host, local, remote: remote(args)? })
    }

    /// The devices with these names; without names the servers', or the local ones.
    pub(crate) fn choose(&self, names: &[String]) -> Result<DeviceSet> {
        let mut devices = if !names.is_empty() {
            choose(names, &self.local, &self.remote)?
        } else if !self.remote.is_empty() {
            self.remote.clone()
        } else {
            by_default(&self.local)
        };
        let fallback = !devices.iter().any(|d| d.info().kind == DeviceKind::Cpu);
        if fallback {
            devices.extend(self.local.iter().find(|d| d.info().kind == DeviceKind::Cpu).cloned());
        }
        Ok(DeviceSet { devices, fallback, host: self.host.clone() })
    }

    /// What the local ones are made with.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The local ones alone.
    pub(crate) fn local(&self) -> DeviceSet {
        DeviceSet { devices: by_default(&self.local), fallback: false, host: self.host.clone() }
    }
}

/// What runs when nothing is said: all GPUs, else the CPU.
fn by_default(local: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    let is_cpu = |device: &Arc<dyn Device>| device.info().kind == DeviceKind::Cpu;
    let (cpus, others): (Vec<_>, Vec<_>) = local.iter().cloned().partition(is_cpu);
    if others.is_empty() { cpus } else { others }
}

fn choose(names: &[String], local: &[Arc<dyn Device>], remote: &[Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
    let mut chosen: Vec<Arc<dyn Device>> = Vec::new();
    for name in names.iter().map(|n| n.trim()) {
        let found = find(name, local, remote)?;
        if let Some(twice) = found.iter().find(|d| chosen.iter().any(|c| c.uid() == d.uid())) {
            bail!("device {} is named twice in -dev", twice.info().id);
        }
        chosen.extend(found);
    }
    Ok(chosen)
}

/// The devices that a name means: an id, or all of a server, or a short name that only one device has.
pub(crate) fn find(name: &str, local: &[Arc<dyn Device>], remote: &[Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
    let all = || local.iter().chain(remote);
    let pick = |f: &dyn Fn(&Arc<dyn Device>) -> bool| all().filter(|d| f(d)).cloned().collect::<Vec<_>>();
    // An id may be written without its carrier.
    let is = |id: &str, name: &str| id.eq_ignore_ascii_case(name) || bare(id).eq_ignore_ascii_case(name);
    let exact = pick(&|d| is(&d.info().id, name));
    if !exact.is_empty() {
        return Ok(exact);
    }
    let server = pick(&|d| d.info().id.rsplit_once('/').is_some_and(|(endpoint, _)| is(endpoint, name)));
    if !server.is_empty() {
        return Ok(server);
    }
    let short = pick(&|d| d.info().name.eq_ignore_ascii_case(name));
    match short.len() {
        1 => Ok(short),
        0 => {
            let ids: Vec<&str> = all().map(|d| d.info().id.as_str()).collect();
            bail!("there is no device \"{name}\"; there are: {}", ids.join(", "))
        }
        _ => {
            let ids: Vec<&str> = short.iter().map(|d| d.info().id.as_str()).collect();
            bail!("\"{name}\" may be any of {}: write the whole name", ids.join(", "))
        }
    }
}

/// An id or endpoint without its carrier.
fn bare(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, rest)| rest)
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
    let mut net = Net::default();
    let stats = at_once(&one_of_each_server(devices), |d| RemoteDevice::of(d.as_ref()).map(RemoteDevice::net_stats));
    for stats in stats.into_iter().flatten() {
        net.sent_bytes += stats.sent_bytes;
        net.recv_bytes += stats.recv_bytes;
        net.peer_bytes += stats.peer_bytes;
    }
    net
}

/// The first device of every server among these.
pub(crate) fn one_of_each_server(devices: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    let mut seen = HashSet::new();
    let mut first = |d: &Arc<dyn Device>| {
        RemoteDevice::of(d.as_ref()).is_some_and(|remote| seen.insert(remote.endpoint().to_string()))
    };
    devices.iter().filter(|d| first(d)).cloned().collect()
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
