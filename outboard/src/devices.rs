//! Devices: those of this machine, those of servers, and the choice among them.

use crate::error::{Error, Result};
use outboard_backends::{DeviceSpec, known, local_devices};
pub use outboard_backends::{run_if_helper, use_ggml};
use outboard_core::{Device, DeviceKind, Host, MemoryInfo, at_once, try_at_once};
use outboard_rpc_client::{ClientOptions, Endpoint, NetStats, RemoteDevice};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Devices of a model, in the order in which it goes over them. Clones are the same devices.
#[derive(Clone)]
pub struct Devices {
    list: Vec<Arc<dyn Device>>,
    fallback: Fallback,
    host: Arc<Host>,
    servers: Servers,
}

/// Whether the last device is there only for what the others do not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Each device is to have its part of the model.
    None,
    /// The last one is a CPU beside devices that may not support every op.
    Last,
}

/// Servers, and how to connect to them: again, too, after one was lost.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    /// Where they are.
    pub endpoints: Vec<Endpoint>,
    /// How they are reached, and who this client is.
    pub options: ClientOptions,
}

/// The devices of this machine that a model runs on when nothing is said: all GPUs, else the CPU, with so many threads or one for each processor.
pub fn local(threads: Option<usize>) -> Result<Devices> {
    Available::open(threads, Servers::default())?.choose::<&str>(&[])
}

/// All devices of servers: `host:port,host:port`, with `grpcs://` or `quic://` before those that use TLS. The port is 50052 if none is given.
pub fn connect(servers: &str, options: &ClientOptions) -> Result<Devices> {
    Available::open(None, Servers::parse(servers, options)?)?.choose::<&str>(&[])
}

impl Servers {
    /// The servers of a list such as `host1,host2:50053`.
    pub fn parse(list: &str, options: &ClientOptions) -> Result<Servers> {
        let endpoints = Endpoint::parse_list(list).map_err(|e| Error::Request(e.to_string()))?;
        if endpoints.is_empty() {
            return Err(Error::Request("the list of servers is empty".into()));
        }
        Ok(Servers { endpoints, options: options.clone() })
    }
}

/// What there is to choose from.
#[derive(Clone)]
pub struct Available {
    host: Arc<Host>,
    local: Vec<Arc<dyn Device>>,
    /// How many of them are there because nobody has named anything; the others come behind.
    usable: usize,
    /// What names of local devices stand for, as places among them, or why they stand for nothing.
    named: HashMap<String, std::result::Result<Vec<usize>, String>>,
    remote: Vec<Arc<dyn Device>>,
    servers: Servers,
}

impl Available {
    /// The local devices, the CPU with so many threads or one for each processor, and those of servers, all of which must answer.
    pub fn open(threads: Option<usize>, servers: Servers) -> Result<Available> {
        Available::open_named::<&str>(threads, servers, &[])
    }

    /// The same with local devices that are opened only when they are named: `vulkan0`, `ggml:CPU`, `cpu:2` (with two threads), `reference`. Other
    /// names, such as those of devices of servers, open nothing. Several that run on processors divide these among them, if no number is given. What cannot be opened is an error; what is not there is one of
    /// [`Available::choose`].
    pub fn open_named<S: AsRef<str>>(threads: Option<usize>, servers: Servers, names: &[S]) -> Result<Available> {
        let host = Host::new();
        let remote = match servers.endpoints.as_slice() {
            [] => Vec::new(),
            endpoints => outboard_rpc_client::connect(endpoints, &servers.options)?,
        };
        let mut specs = DeviceSpec::usable();
        let usable = specs.len();
        let mut named = HashMap::new();
        let mut on_processors = 0;
        for name in names.iter().map(|name| name.as_ref().trim()) {
            // A short name of a server's device means that one.
            let is_remote = remote.iter().any(|device| device.info().name.eq_ignore_ascii_case(name));
            let found = DeviceSpec::named(name).filter(|_| !is_remote);
            // `CPU0` stands for one that is there already, and not for one to open.
            let is_on_processors = match &found {
                Some(Ok(found)) => found.iter().any(DeviceSpec::has_threads),
                Some(Err(_)) => plain(name).starts_with("cpu"),
                None => false,
            };
            on_processors += usize::from(is_on_processors);
            if let Some(found) = found {
                named.insert(plain(name), found.map(|found| DeviceSpec::add(&mut specs, found)));
            }
        }
        // One of them computes at a time, mostly. Where several are wanted, each has its part: threads of ggml's look for work when they have none.
        let all = || std::thread::available_parallelism().ok().map(usize::from).filter(|_| on_processors < 2);
        let threads = threads.or_else(all);
        let local = local_devices(&host, &specs, threads, None)?;
        Ok(Available { host, local, usable, named, remote, servers })
    }

    /// The devices with these names, in this order; without names the servers', or the local ones. A name is an id (`CPU0`, `host:port/CPU0`),
    /// an endpoint for all of a server, the end of an id that only one device has, or one that [`Available::open_named`] was given.
    pub fn choose<S: AsRef<str>>(&self, names: &[S]) -> Result<Devices> {
        let mut list = if !names.is_empty() {
            self.named(names)?
        } else if !self.remote.is_empty() {
            self.remote.clone()
        } else {
            by_default(&self.local[..self.usable])
        };
        let mut fallback = Fallback::None;
        if !list.iter().any(computes_all)
            && let Some(cpu) = self.local.iter().find(|device| computes_all(device))
        {
            list.push(cpu.clone());
            fallback = Fallback::Last;
        }
        Ok(self.of(list, fallback))
    }

    /// The local ones alone: those that are used when nothing is said.
    pub fn local(&self) -> Devices {
        self.of(by_default(&self.local[..self.usable]), Fallback::None)
    }

    /// All of them, local ones first, then the servers' in the order of the list.
    pub fn all(&self) -> Devices {
        self.of(self.local.iter().chain(&self.remote).cloned().collect(), Fallback::None)
    }

    /// What the local ones are made with.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    fn of(&self, list: Vec<Arc<dyn Device>>, fallback: Fallback) -> Devices {
        Devices { list, fallback, host: self.host.clone(), servers: self.servers.clone() }
    }

    fn named<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<Arc<dyn Device>>> {
        let all = self.all();
        let mut chosen: Vec<Arc<dyn Device>> = Vec::new();
        for name in names.iter().map(|n| n.as_ref().trim()) {
            let found = self.meant(name, &all)?;
            if let Some(twice) = found.iter().find(|d| chosen.iter().any(|c| c.uid() == d.uid())) {
                return Err(Error::Request(format!("device {} is named twice", twice.info().id)));
            }
            chosen.extend(found);
        }
        Ok(chosen)
    }

    fn meant(&self, name: &str, all: &Devices) -> Result<Vec<Arc<dyn Device>>> {
        let why = match self.named.get(&plain(name)) {
            Some(Ok(places)) => return Ok(places.iter().map(|&place| self.local[place].clone()).collect()),
            Some(Err(why)) => Some(why),
            None => None,
        };
        match (all.find(name), why) {
            (Err(Error::NoSuchDevice { name, candidates, detail }), Some(why)) => {
                let detail =
                    if self.remote.is_empty() { why.clone() } else { format!("{detail}. On this host: {why}") };
                Err(Error::NoSuchDevice { name, candidates, detail })
            }
            (found, _) => found,
        }
    }
}

/// A name as it is compared.
fn plain(name: &str) -> String {
    name.trim().to_ascii_lowercase()
}

/// Whether it is a CPU with every op; software drivers of GPUs are of that kind, too.
fn computes_all(device: &Arc<dyn Device>) -> bool {
    device.info().kind == DeviceKind::Cpu && known(device.info()).unsupported.is_empty()
}

/// What runs when nothing is said: all GPUs, else the CPU.
fn by_default(local: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    let is_cpu = |device: &Arc<dyn Device>| device.info().kind == DeviceKind::Cpu;
    let (cpus, others): (Vec<_>, Vec<_>) = local.iter().cloned().partition(is_cpu);
    if others.is_empty() { cpus } else { others }
}

impl Devices {
    /// Each of them; [`outboard_core::DeviceInfo`] says what it is.
    pub fn list(&self) -> &[Arc<dyn Device>] {
        &self.list
    }

    /// Those that are to have a part of a model.
    pub fn usable(&self) -> &[Arc<dyn Device>] {
        match (self.fallback, self.list.split_last()) {
            (Fallback::Last, Some((_, usable))) => usable,
            _ => &self.list,
        }
    }

    /// What the local ones are made with.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// The servers that the others are of.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Memory of each device now, in their order.
    pub fn memory(&self) -> Result<Vec<MemoryInfo>> {
        Ok(try_at_once(&self.list, |device| device.memory())?)
    }

    /// The devices that a name means: an id, or all of a server, or a short name that only one device has.
    pub fn find(&self, name: &str) -> Result<Vec<Arc<dyn Device>>> {
        find(name, &self.list)
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.iter().map(|device| &device.info().id)).finish()
    }
}

/// The same among any devices.
pub fn find(name: &str, devices: &[Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
    let pick = |f: &dyn Fn(&Arc<dyn Device>) -> bool| devices.iter().filter(|d| f(d)).cloned().collect::<Vec<_>>();
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
    if short.len() == 1 {
        return Ok(short);
    }
    let of = if short.is_empty() { devices } else { &short };
    let candidates: Vec<String> = of.iter().map(|d| d.info().id.clone()).collect();
    let list = candidates.join(", ");
    let detail = match short.len() {
        0 if devices.iter().all(|d| d.host().is_some()) => {
            let named = DeviceSpec::names();
            format!("there is no device \"{name}\"; there are: {list}; more can be named of this host's: {named}")
        }
        0 => format!("there is no device \"{name}\"; there are: {list}"),
        _ => format!("\"{name}\" may be any of {list}: write the whole name"),
    };
    Err(Error::NoSuchDevice { name: name.to_owned(), candidates, detail })
}

/// An id or endpoint without its carrier.
fn bare(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, rest)| rest)
}

/// Bytes that the servers of these devices have sent and received, each server counted once.
pub fn net_stats(devices: &[Arc<dyn Device>]) -> NetStats {
    let stats = at_once(&one_of_each_server(devices), |d| RemoteDevice::of(d.as_ref()).map(RemoteDevice::net_stats));
    stats.into_iter().flatten().fold(NetStats::default(), |sum, of| NetStats {
        sent_bytes: sum.sent_bytes + of.sent_bytes,
        recv_bytes: sum.recv_bytes + of.recv_bytes,
        peer_bytes: sum.peer_bytes + of.peer_bytes,
    })
}

/// The first device of every server among these.
pub fn one_of_each_server(devices: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    let mut seen = HashSet::new();
    let mut first = |d: &Arc<dyn Device>| {
        RemoteDevice::of(d.as_ref()).is_some_and(|remote| seen.insert(remote.endpoint().to_string()))
    };
    devices.iter().filter(|d| first(d)).cloned().collect()
}
