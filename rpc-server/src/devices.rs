//! The devices of this endpoint, by name, and which of them reach one another.

use crate::accounts::Account;
use outboard_core::{Client, Device, Error, MemoryInfo, Result};
use outboard_proto::{device, v1};
use std::sync::Arc;

pub(crate) struct Devices {
    all: Vec<Arc<dyn Device>>,
    reaches: Vec<Vec<String>>,
}

impl Devices {
    /// Names must be unique.
    pub(crate) fn new(all: Vec<Arc<dyn Device>>) -> Result<Devices> {
        for (i, d) in all.iter().enumerate() {
            if all.iter().take(i).any(|other| other.info().name == d.info().name) {
                return Err(Error::Misuse(format!("two devices are named {}", d.info().name)));
            }
        }
        let reach = |from: &Arc<dyn Device>| {
            let peer = from.peer();
            let reached = all.iter().filter(|to| peer.is_some_and(|p| to.peer().is_some() && p.reaches(to.as_ref())));
            reached.map(|to| to.info().name.clone()).collect()
        };
        let reaches = all.iter().map(reach).collect();
        Ok(Devices { all, reaches })
    }

    /// The same devices as one client has them.
    pub(crate) fn for_client(&self, client: &Client) -> Result<Devices> {
        let all = self.all.iter().map(|device| device.for_client(client.clone())).collect::<Result<_>>()?;
        Ok(Devices { all, reaches: self.reaches.clone() })
    }

    pub(crate) fn all(&self) -> &[Arc<dyn Device>] {
        &self.all
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Arc<dyn Device>> {
        self.all.iter().find(|d| d.info().name == name).ok_or_else(|| {
            let name: String = name.chars().take(64).collect();
            Error::Request(format!("there is no device {name:?} here"))
        })
    }

    /// The device of that uid.
    pub(crate) fn by_uid(&self, uid: u64) -> Result<&Arc<dyn Device>> {
        let found = self.all.iter().find(|d| d.uid() == uid);
        found.ok_or_else(|| Error::Misuse("a buffer of a device that is not exposed here".into()))
    }

    /// All devices with their memory now, as far as that client may have it.
    pub(crate) fn to_wire(&self, client: &Account) -> Result<Vec<v1::Device>> {
        let one = |(d, reaches): (&Arc<dyn Device>, &Vec<String>)| {
            Ok(device::to_wire(d.info(), memory(d.as_ref(), client)?, reaches.clone(), d.known_speed()))
        };
        self.all.iter().zip(&self.reaches).map(one).collect()
    }
}

/// The memory of a device now, as far as that client may have it.
pub(crate) fn memory(device: &dyn Device, client: &Account) -> Result<MemoryInfo> {
    let MemoryInfo { total, free } = device.memory()?;
    Ok(MemoryInfo { total: total.min(client.memory_limit()), free: free.min(client.memory_left(device.uid())) })
}
