//! Which devices a command sees: local ones, those of servers, and the choice among them.

use crate::args::DeviceArgs;
use anyhow::{Context, Result, bail};
use outboard_backends::{DeviceSpec, local_devices};
use outboard_core::{Device, DeviceKind};
use outboard_host::Host;
use outboard_rpc_client::{ClientOptions, RemoteDevice, connect};
use std::collections::HashSet;
use std::sync::Arc;

/// The devices of a run.
pub(crate) struct DeviceSet {
    /// In the order of the split.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// The last device is there only for what the others do not support.
    pub(crate) fallback: bool,
}

/// Every device there is: local ones first, then the servers' in the order of the list.
pub(crate) fn all(args: &DeviceArgs) -> Result<Vec<Arc<dyn Device>>> {
    let mut devices = local_devices(&Host::new(), &[DeviceSpec::Cpu(None)], args.threads.map(usize::from), None)?;
    devices.extend(remote(args)?);
    Ok(devices)
}

/// The servers' devices.
pub(crate) fn remote(args: &DeviceArgs) -> Result<Vec<Arc<dyn Device>>> {
    if args.rpc.0.is_empty() {
        return Ok(Vec::new());
    }
    Ok(connect(&args.rpc.0, &ClientOptions::default())?)
}

/// The devices that were asked for: those named, or the servers', or the local ones.
pub(crate) fn open(args: &DeviceArgs) -> Result<DeviceSet> {
    let local = local_devices(&Host::new(), &[DeviceSpec::Cpu(None)], args.threads.map(usize::from), None)?;
    let remote = remote(args)?;
    let mut devices = match args.dev.is_empty() {
        false => choose(&args.dev, &local, &remote)?,
        true if !remote.is_empty() => remote,
        true => local.clone(),
    };
    let fallback = !devices.iter().any(|d| d.info().kind == DeviceKind::Cpu);
    if fallback {
        devices.extend(local.into_iter().next());
    }
    Ok(DeviceSet { devices, fallback })
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
    let exact = pick(&|d| d.info().id.eq_ignore_ascii_case(name));
    if !exact.is_empty() {
        return Ok(exact);
    }
    let server = pick(&|d| d.info().id.rsplit_once('/').is_some_and(|(endpoint, _)| endpoint == name));
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

/// Bytes that went over the network.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Net {
    pub(crate) sent_bytes: u64,
    pub(crate) recv_bytes: u64,
    pub(crate) peer_bytes: u64,
}

/// What the servers of these devices have sent and received, each server counted once.
pub(crate) fn net(devices: &[Arc<dyn Device>]) -> Net {
    let mut seen = HashSet::new();
    let mut net = Net::default();
    for device in devices.iter().filter_map(|d| RemoteDevice::of(d.as_ref())) {
        if seen.insert(device.endpoint().to_string()) {
            let stats = device.net_stats();
            net.sent_bytes += stats.sent_bytes;
            net.recv_bytes += stats.recv_bytes;
            net.peer_bytes += stats.peer_bytes;
        }
    }
    net
}

/// Free memory of a device now, with the device's name if it cannot be told.
pub(crate) fn free(device: &dyn Device) -> Result<u64> {
    Ok(device.memory().with_context(|| format!("memory of {}", device.info().id))?.free)
}
