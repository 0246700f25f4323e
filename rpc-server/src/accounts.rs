//! What each client has taken, all of its sessions and connections together.
//!
//! A client is who it has proven to be, by its certificate or token; where it need not prove anything, it is its address.

use crate::fair::{FairRoom, FairShare};
use crate::limits::{
    ALL_CALLS, ALL_MESSAGES_KIB, ALL_PAYLOAD_KIB, ALL_WIDE_CONNECTIONS, BLOB_CALLS_CLIENT, BLOB_RECEIVERS_CLIENT,
    CALLS, ClientLimits, Limits, MESSAGES_KIB, PAYLOAD_KIB, WIDE_CONNECTIONS,
};
use crate::lock;
use crate::room::Pool;
use outboard_core::device::fresh_uid;
use outboard_core::error::Bytes;
use outboard_core::{Buffer, DeviceInfo, Error, Executable, MemoryAccount, MemoryShare, Result};
use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
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
    /// Numbers of accounts, which nobody can foresee.
    ids: RandomState,
    all: Mutex<HashMap<Key, Weak<Account>>>,
    together: Arc<Together>,
}

/// What all clients have together.
#[derive(Debug)]
struct Together {
    counted: HashMap<What, Arc<FairRoom>>,
    payload: Arc<FairRoom>,
    messages: Arc<FairRoom>,
}

/// One client's.
#[derive(Debug)]
pub(crate) struct Account {
    /// No other account of this process has it. Devices know the client by it, see [`outboard_core::Client::room`].
    pub(crate) uid: u64,
    key: Key,
    /// Unlike its uid, the same whenever the client comes back.
    id: u64,
    limits: ClientLimits,
    taken: Taken,
    together: Arc<Together>,
    /// Room for payloads on their way to and from its queues, beyond what each queue has for itself.
    pub(crate) payload: Pool,
    /// Room for its larger messages, from their first byte until their work is done.
    pub(crate) messages: Pool,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Connections,
    /// Connections with the windows of bulk data.
    Wide,
    Sessions,
    Queues,
    /// Streams and calls.
    Calls,
    Buffers,
    /// Bytes that graphs take.
    Graphs,
    /// Bytes that are offered.
    Offers,
    /// Calls about blobs.
    BlobCalls,
    /// Queues that receive blobs.
    BlobReceivers,
    /// Bytes on a device, by its uid.
    Memory(u64),
}

/// How much of each is taken.
#[derive(Debug, Default)]
struct Taken(Mutex<HashMap<What, u64>>);

impl Taken {
    fn get(&self, what: What) -> u64 {
        lock(&self.0).get(&what).copied().unwrap_or(0)
    }

    /// Takes if there is so much below the limit.
    fn take(&self, what: What, amount: u64, limit: u64) -> bool {
        let mut all = lock(&self.0);
        let taken = all.entry(what).or_default();
        match taken.checked_add(amount).filter(|&sum| sum <= limit) {
            Some(sum) => {
                *taken = sum;
                true
            }
            None => false,
        }
    }

    fn give_back(&self, what: What, amount: u64) {
        if let Some(taken) = lock(&self.0).get_mut(&what) {
            *taken = taken.saturating_sub(amount);
        }
    }
}

/// Something taken, given back when dropped.
#[derive(Debug)]
pub(crate) struct AccountShare {
    account: Arc<Account>,
    what: What,
    amount: u64,
    /// Its part of what all clients have together.
    _of_all: Option<FairShare>,
}

impl Accounts {
    pub(crate) fn new(limits: &Limits) -> Accounts {
        let counted = [
            (What::Wide, ALL_WIDE_CONNECTIONS as u64),
            (What::Calls, ALL_CALLS as u64),
            (What::Queues, limits.queues as u64),
            (What::Buffers, limits.buffers as u64),
            (What::Graphs, limits.graphs),
        ];
        let together = Together {
            counted: counted.map(|(what, most)| (what, FairRoom::new(most))).into(),
            payload: FairRoom::new(ALL_PAYLOAD_KIB as u64),
            messages: FairRoom::new(ALL_MESSAGES_KIB as u64),
        };
        let ids = RandomState::new();
        Accounts { limits: limits.client.clone(), ids, all: Mutex::default(), together: Arc::new(together) }
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
        let (together, uid) = (self.together.clone(), fresh_uid());
        let account = Arc::new(Account {
            uid,
            key: key.clone(),
            id: self.ids.hash_one(&key),
            limits: self.limits.clone(),
            taken: Taken::default(),
            payload: Pool::new(PAYLOAD_KIB, uid, &together.payload),
            messages: Pool::new(MESSAGES_KIB, uid, &together.messages),
            together,
        });
        all.insert(key, Arc::downgrade(&account));
        account
    }

    /// Bytes that clients have on a device, by name; those without one are one.
    pub(crate) fn memory(&self, device: u64) -> HashMap<String, u64> {
        let accounts: Vec<_> = lock(&self.all).values().filter_map(Weak::upgrade).collect();
        let mut sums = HashMap::new();
        for account in accounts {
            *sums.entry(account.name().unwrap_or(ANONYMOUS).to_owned()).or_default() +=
                account.taken.get(What::Memory(device));
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

    /// Its number, the same whenever the client comes back, as long as the server runs.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn take(self: &Arc<Self>, what: What, amount: u64, limit: u64) -> Option<AccountShare> {
        self.taken.take(what, amount, limit).then(|| AccountShare {
            account: self.clone(),
            what,
            amount,
            _of_all: None,
        })
    }

    fn count(self: &Arc<Self>, what: What, limit: usize, of: &str) -> Result<AccountShare> {
        let full = || Error::Request(format!("{self} has {limit} {of} here already, which is the most for one client"));
        self.take(what, 1, limit as u64).ok_or_else(full)
    }

    /// One more connection.
    pub(crate) fn connection(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; close one first"));
        self.count(What::Connections, self.limits.connections, "connections").map_err(more)
    }

    /// The right of a connection to have much on its way.
    pub(crate) fn wide_connection(self: &Arc<Self>) -> Option<AccountShare> {
        let share = self.take(What::Wide, 1, WIDE_CONNECTIONS as u64)?;
        self.also_of_all(share, "wide connections").ok()
    }

    /// One more session.
    pub(crate) fn session(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; end one, or try again later"));
        self.count(What::Sessions, self.limits.sessions, "sessions").map_err(more)
    }

    /// One more queue.
    pub(crate) fn queue(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; close one first"));
        let share = self.count(What::Queues, self.limits.queues, "queues").map_err(more)?;
        self.also_of_all(share, "queues")
    }

    /// One more stream or call.
    pub(crate) fn call(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; end one first"));
        let share = self.count(What::Calls, CALLS, "streams and calls").map_err(more)?;
        self.also_of_all(share, "streams and calls")
    }

    /// One more buffer.
    pub(crate) fn buffer(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; free some first"));
        let share = self.count(What::Buffers, self.limits.buffers, "buffers").map_err(more)?;
        self.also_of_all(share, "buffers")
    }

    /// Memory for a compiled graph.
    pub(crate) fn graph(self: &Arc<Self>, bytes: u64) -> Result<AccountShare> {
        let limit = self.limits.graphs;
        let share = self.take(What::Graphs, bytes, limit).ok_or_else(|| {
            Error::Request(format!(
                "a graph that takes {} on top of {}: the graphs of one client may take {}; free executables that are not needed any more",
                Bytes(bytes),
                Bytes(self.taken.get(What::Graphs)),
                Bytes(limit)
            ))
        })?;
        self.also_of_all(share, "bytes of memory for graphs")
    }

    /// Whether a graph that takes so many bytes has no room.
    pub(crate) fn is_full_of_graphs(&self, bytes: u64) -> bool {
        self.taken.get(What::Graphs).saturating_add(bytes) > self.limits.graphs
    }

    /// Bytes that are offered to another device of this server. One tensor may be larger, up to half of what all may have
    /// ([`outboard_core::local::OFFERED_BYTES`]).
    pub(crate) fn offer(self: &Arc<Self>, bytes: u64) -> Result<AccountShare> {
        let (waiting, limit) = (self.taken.get(What::Offers), self.limits.offered_bytes);
        let most = if waiting == 0 { limit.max(bytes) } else { limit };
        self.take(What::Offers, bytes, most).ok_or_else(|| {
            Error::Request(format!(
                "{} offered to other devices and {} not yet accepted: a client may have {} of that in all of its sessions; accept some first",
                Bytes(bytes),
                Bytes(waiting),
                Bytes(limit)
            ))
        })
    }

    /// One more call about blobs.
    pub(crate) fn blob_call(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; wait for some of them"));
        self.count(What::BlobCalls, BLOB_CALLS_CLIENT, "calls about weights").map_err(more)
    }

    /// One more queue that receives blobs.
    pub(crate) fn blob_receiver(self: &Arc<Self>) -> Result<AccountShare> {
        let more = |e| Error::Request(format!("{e}; close one first"));
        self.count(What::BlobReceivers, BLOB_RECEIVERS_CLIENT, "queues that receive weights").map_err(more)
    }

    /// Counts a share in what all clients have together as well: a client may have what it leaves to others.
    fn also_of_all(&self, mut share: AccountShare, of: &str) -> Result<AccountShare> {
        if let Some(room) = self.together.counted.get(&share.what) {
            let full = || format!("there are no more {of} for {self}: other clients have the rest; try again later");
            share._of_all = Some(room.try_take(self.uid, share.amount).ok_or_else(|| Error::Request(full()))?);
        }
        Ok(share)
    }

    /// Memory of the device with this uid.
    fn memory(self: &Arc<Self>, device: u64, info: &DeviceInfo, bytes: u64) -> Result<AccountShare> {
        let what = What::Memory(device);
        let limit = self.limits.memory.unwrap_or(u64::MAX);
        self.take(what, bytes, limit).ok_or_else(|| {
            let name = &info.name;
            let device =
                format!("{name} (one client may have {} there, see --client-memory of the server)", Bytes(limit));
            Error::OutOfMemory { device, needed: bytes, free: limit.saturating_sub(self.taken.get(what)) }
        })
    }

    /// How much more it may have of a device.
    pub(crate) fn memory_left(&self, device: u64) -> u64 {
        self.limits.memory.map_or(u64::MAX, |limit| limit.saturating_sub(self.taken.get(What::Memory(device))))
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

impl AccountShare {
    /// How much it is.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Whose it is.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Drop for AccountShare {
    fn drop(&mut self) {
        self.account.taken.give_back(self.what, self.amount);
    }
}

/// What an address counts as: a host has as many IPv6 addresses as it likes, of the same 64 bits in front.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        other => other,
    }
}

/// Memory of devices on a client's account, for as long as anything uses it: a graph, a command, or a handle.
#[derive(Debug)]
pub(crate) struct DeviceMemory(pub(crate) Arc<Account>);

impl MemoryAccount for DeviceMemory {
    fn take(&self, device: u64, info: &DeviceInfo, bytes: u64) -> Result<MemoryShare> {
        Ok(Box::new(self.0.memory(device, info, bytes)?))
    }
}

/// A buffer or an executable on its client's account, for as long as anything uses it: a graph, a command, or its handle.
#[derive(Debug)]
pub(crate) struct Accounted<T: ?Sized> {
    it: Arc<T>,
    _share: AccountShare,
}

impl<T: ?Sized> Accounted<T> {
    pub(crate) fn new(it: Arc<T>, share: AccountShare) -> Accounted<T> {
        Accounted { it, _share: share }
    }
}

impl Buffer for Accounted<dyn Buffer> {
    fn size(&self) -> u64 {
        self.it.size()
    }

    fn device(&self) -> u64 {
        self.it.device()
    }

    fn is_read_only(&self) -> bool {
        self.it.is_read_only()
    }

    fn as_any(&self) -> &dyn Any {
        self.it.as_any()
    }
}

impl Executable for Accounted<dyn Executable> {
    fn device(&self) -> u64 {
        self.it.device()
    }

    fn as_any(&self) -> &dyn Any {
        self.it.as_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        let client = ClientLimits { memory: Some(100), connections: 2, sessions: 1, queues: 1, ..Default::default() };
        Accounts::new(&Limits { client, ..Default::default() })
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
    fn what_all_clients_have_is_limited_too() {
        let client = ClientLimits { queues: 2, graphs: 60, ..Default::default() };
        let all = Accounts::new(&Limits { client, queues: 4, graphs: 160, ..Default::default() });
        let address = "10.0.0.1".parse().unwrap();
        let (a, b) = (all.of(Some("a"), address), all.of(Some("b"), address));
        let queues = [a.queue().unwrap(), a.queue().unwrap(), b.queue().unwrap()];
        assert!(a.queue().unwrap_err().to_string().contains("a has 2 queues"));
        assert!(b.queue().unwrap_err().to_string().contains("no more queues for b"));
        drop(queues);
        // What was refused is on nobody's account.
        let _queues = [b.queue().unwrap(), b.queue().unwrap(), a.queue().unwrap()];
        let graph = a.graph(60).unwrap();
        assert!(a.graph(1).unwrap_err().to_string().contains("free executables"));
        assert!(b.graph(51).unwrap_err().to_string().contains("no more bytes of memory for graphs"));
        drop(graph);
        b.graph(60).unwrap();
    }

    #[test]
    fn one_tensor_that_is_offered_may_have_any_size() {
        let all = accounts();
        let a = all.of(Some("a"), "10.0.0.1".parse().unwrap());
        let whole = a.offer(1 << 40).unwrap();
        assert!(a.offer(1).unwrap_err().to_string().contains("accept some first"));
        drop(whole);
        let _some = a.offer(1).unwrap();
        assert!(a.offer(1 << 40).is_err());
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
