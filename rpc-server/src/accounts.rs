//! What each client has taken, all of its sessions and connections together.
//!
//! A client is who it has proven to be, by its certificate or token; where it need not prove anything, it is its address.

use crate::limits::ClientLimits;
use crate::lock;
use outboard_core::device::fresh_uid;
use outboard_core::error::Bytes;
use outboard_core::{Buffer, Device, Error, Result};
use std::any::Any;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, Weak};

/// What metrics call clients that have not proven a name.
pub(crate) const ANONYMOUS: &str = "anonymous";
/// Accounts that are known, before those that are empty are forgotten.
const KEPT: usize = 64;

/// Whose account it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Name(String),
    Address(IpAddr),
}

/// The accounts of a server.
#[derive(Debug)]
pub(crate) struct Accounts {
    limits: ClientLimits,
    all: Mutex<HashMap<Key, Weak<Account>>>,
}

/// One client's.
#[derive(Debug)]
pub(crate) struct Account {
    /// No other account of this process has it.
    pub(crate) uid: u64,
    key: Key,
    limits: ClientLimits,
    taken: Mutex<HashMap<What, u64>>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Connections,
    Sessions,
    Queues,
    /// Queues with a wide flight.
    Wide,
    /// Bytes on a device, by its uid.
    Memory(u64),
}

/// Something taken, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    account: Arc<Account>,
    what: What,
    amount: u64,
}

impl Accounts {
    pub(crate) fn new(limits: ClientLimits) -> Accounts {
        Accounts { limits, all: Mutex::default() }
    }

    /// The account of a client: of its name if it has proven one.
    pub(crate) fn of(&self, name: Option<&str>, address: IpAddr) -> Arc<Account> {
        let key = name.map_or_else(|| Key::Address(network(address)), |name| Key::Name(name.to_owned()));
        let mut all = lock(&self.all);
        if let Some(account) = all.get(&key).and_then(Weak::upgrade) {
            return account;
        }
        if all.len() >= KEPT {
            all.retain(|_, account| account.strong_count() > 0);
        }
        let (uid, limits) = (fresh_uid(), self.limits.clone());
        let account = Arc::new(Account { uid, key: key.clone(), limits, taken: Mutex::default() });
        all.insert(key, Arc::downgrade(&account));
        account
    }

    /// Bytes that clients have on a device, by name; those without one are one.
    pub(crate) fn memory(&self, device: u64) -> HashMap<String, u64> {
        let accounts: Vec<_> = lock(&self.all).values().filter_map(Weak::upgrade).collect();
        let mut sums = HashMap::new();
        for account in accounts {
            *sums.entry(account.name().unwrap_or(ANONYMOUS).to_owned()).or_default() +=
                account.taken(What::Memory(device));
        }
        sums
    }
}

impl Account {
    /// The name that the client has proven.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.key {
            Key::Name(name) => Some(name),
            Key::Address(_) => None,
        }
    }

    fn taken(&self, what: What) -> u64 {
        lock(&self.taken).get(&what).copied().unwrap_or(0)
    }

    fn take(self: &Arc<Self>, what: What, amount: u64, limit: u64) -> Option<Share> {
        let mut all = lock(&self.taken);
        let taken = all.entry(what).or_default();
        *taken = taken.checked_add(amount).filter(|&sum| sum <= limit)?;
        Some(Share { account: self.clone(), what, amount })
    }

    fn count(self: &Arc<Self>, what: What, limit: usize, of: &str) -> Result<Share> {
        let full = || Error::Request(format!("{self} has {limit} {of} here already, which is the most for one client"));
        self.take(what, 1, limit as u64).ok_or_else(full)
    }

    /// One more connection.
    pub(crate) fn connection(self: &Arc<Self>) -> Result<Share> {
        self.count(What::Connections, self.limits.connections, "connections")
    }

    /// One more session.
    pub(crate) fn session(self: &Arc<Self>) -> Result<Share> {
        let more = |e| Error::Request(format!("{e}; end one, or try again later"));
        self.count(What::Sessions, self.limits.sessions, "sessions").map_err(more)
    }

    /// One more queue.
    pub(crate) fn queue(self: &Arc<Self>) -> Result<Share> {
        let more = |e| Error::Request(format!("{e}; close one first"));
        self.count(What::Queues, self.limits.queues, "queues").map_err(more)
    }

    /// The right of a queue to have much on the way.
    pub(crate) fn wide_queue(self: &Arc<Self>) -> Option<Share> {
        self.take(What::Wide, 1, crate::limits::WIDE_QUEUES as u64)
    }

    /// Memory of a device.
    pub(crate) fn memory(self: &Arc<Self>, device: &dyn Device, bytes: u64) -> Result<Share> {
        let what = What::Memory(device.uid());
        let limit = self.limits.memory.unwrap_or(u64::MAX);
        self.take(what, bytes, limit).ok_or_else(|| {
            let name = &device.info().name;
            let device =
                format!("{name} (one client may have {} there, see --client-memory of the server)", Bytes(limit));
            Error::OutOfMemory { device, needed: bytes, free: limit.saturating_sub(self.taken(what)) }
        })
    }

    /// How much more it may have of a device.
    pub(crate) fn memory_left(&self, device: u64) -> u64 {
        self.limits.memory.map_or(u64::MAX, |limit| limit.saturating_sub(self.taken(What::Memory(device))))
    }

    /// Most that it may have of a device.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.limits.memory.unwrap_or(u64::MAX)
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            Key::Name(name) => write!(f, "{name}"),
            Key::Address(address) => write!(f, "the client at {address}"),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = lock(&self.account.taken);
        if let Some(taken) = all.get_mut(&self.what) {
            *taken = taken.saturating_sub(self.amount);
        }
    }
}

/// A host has as many IPv6 addresses as it likes, of the same 64 bits in front.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        other => other,
    }
}

/// A buffer on its client's account, for as long as anything uses it: a graph, a command, or its handle.
#[derive(Debug)]
pub(crate) struct Accounted {
    buffer: Arc<dyn Buffer>,
    _share: Share,
}

impl Accounted {
    pub(crate) fn new(buffer: Arc<dyn Buffer>, share: Share) -> Accounted {
        Accounted { buffer, _share: share }
    }
}

impl Buffer for Accounted {
    fn size(&self) -> u64 {
        self.buffer.size()
    }

    fn device(&self) -> u64 {
        self.buffer.device()
    }

    fn is_read_only(&self) -> bool {
        self.buffer.is_read_only()
    }

    fn as_any(&self) -> &dyn Any {
        self.buffer.as_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts::new(ClientLimits { memory: Some(100), connections: 2, sessions: 1, queues: 1 })
    }

    #[test]
    fn what_is_dropped_may_be_taken_again() {
        let all = accounts();
        let address = "10.0.0.1".parse().unwrap();
        let (a, b) = (all.of(Some("a"), address), all.of(None, address));
        let taken = a.session().unwrap();
        let error = all.of(Some("a"), "10.0.0.2".parse().unwrap()).session().unwrap_err().to_string();
        assert!(error.contains("a has 1 sessions"), "{error}");
        let _other = b.session().unwrap();
        assert!(b.session().unwrap_err().to_string().contains("client at 10.0.0.1"));
        drop(taken);
        a.session().unwrap();
        assert_eq!((a.name(), b.name()), (Some("a"), None));
    }

    #[test]
    fn one_host_is_one_client_whatever_its_ipv6_addresses() {
        let all = accounts();
        let of = |text: &str| all.of(None, text.parse().unwrap());
        let _two = [of("2001:db8::1").connection().unwrap(), of("2001:db8::2:3:4:5").connection().unwrap()];
        assert!(of("2001:db8::6").connection().is_err());
        assert!(of("2001:db8:0:1::1").connection().is_ok());
        let mapped = of("::ffff:10.0.0.1");
        assert!(Arc::ptr_eq(&mapped, &of("10.0.0.1")));
        assert_eq!(of("::1").to_string(), "the client at ::1");
    }

    #[test]
    fn accounts_that_are_empty_are_forgotten() {
        let all = accounts();
        for n in 0..10_000u32 {
            let _ = all.of(None, IpAddr::V4(n.into())).connection().unwrap();
        }
        assert!(lock(&all.all).len() <= KEPT);
    }
}
