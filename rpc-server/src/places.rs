//! Places for connections. A connection is a stranger's until its client has shown who it is, and then a client's.
//!
//! Strangers have some places of their own, which clients do not take from them, nor they from clients. When those are taken, a
//! new stranger gets the place of the one that has been there longest, of those of the address that has the most: whoever opens many
//! connections and says nothing takes places from itself. QUIC handshakes of addresses that are only claimed are counted apart.

use crate::accounts::{Account, AccountShare, Accounts, network};
use crate::limits::{FEWEST_CONNECTIONS, HANDSHAKES, Limits, ROOM_TIMEOUT, STRANGERS_OF_ONE};
use crate::lock;
use crate::metrics::Metrics;
use outboard_core::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// How many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// All, with those that are being closed.
    pub(crate) all: usize,
    pub(crate) strangers: usize,
    /// Strangers of one address.
    pub(crate) strangers_of_one: usize,
    pub(crate) handshakes: usize,
}

impl Numbers {
    /// Of a server with these limits. Where there are few connections in all, strangers get a fourth of them.
    pub(crate) fn new(limits: &Limits) -> Numbers {
        let all = limits.connections.max(FEWEST_CONNECTIONS);
        let strangers = limits.strangers.min(all / 4).max(1);
        let (part, whole) = STRANGERS_OF_ONE;
        Numbers {
            all,
            strangers,
            strangers_of_one: (strangers * part).div_ceil(whole),
            handshakes: HANDSHAKES.min(all / 8).max(1),
        }
    }

    /// Connections of clients.
    pub(crate) fn clients(&self) -> usize {
        self.all - self.strangers - self.handshakes
    }
}

/// The places of a server.
pub(crate) struct Places {
    numbers: Numbers,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// A connection has ended.
    left: Notify,
}

#[derive(Default)]
struct State {
    /// All connections whose thread has not ended.
    open: usize,
    clients: usize,
    handshakes: usize,
    /// By their number: the oldest first.
    strangers: BTreeMap<u64, Stranger>,
}

struct Stranger {
    place: Arc<ConnectionPlace>,
    network: IpAddr,
    share: AccountShare,
}

/// The place of a connection.
pub(crate) struct ConnectionPlace {
    places: Arc<Places>,
    number: u64,
    /// The connection is to end.
    over: Notify,
    is: Mutex<Is>,
}

/// Whose place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Strangers,
    Clients,
    /// Nobody's any more: its connection is being closed.
    Nobodys,
    /// The thread of its connection has ended.
    Free,
}

/// Why there is no place.
enum Full {
    /// Until a connection has ended that is being closed.
    ForNow,
    Refused(Error),
}

impl Places {
    pub(crate) fn new(limits: &Limits, metrics: &Arc<Metrics>) -> Arc<Places> {
        Arc::new(Places {
            numbers: Numbers::new(limits),
            metrics: metrics.clone(),
            state: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        lock(&self.state).open
    }

    /// Whether no handshake may begin with an address that is only claimed.
    pub(crate) fn are_full_of_handshakes(&self) -> bool {
        lock(&self.state).handshakes >= self.numbers.handshakes
    }

    /// A place for a handshake with an address that is only claimed.
    pub(crate) fn handshake(self: &Arc<Self>) -> Option<Handshake> {
        let mut state = lock(&self.state);
        if state.handshakes >= self.numbers.handshakes || state.open >= self.numbers.all {
            return None;
        }
        state.handshakes += 1;
        state.open += 1;
        Some(Handshake(self.clone()))
    }

    /// A place for a connection of somebody at this address. Others are closed for it if need be.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        number: u64,
        address: IpAddr,
        accounts: &Accounts,
    ) -> Result<Arc<ConnectionPlace>> {
        let account = accounts.of(None, address);
        let end = tokio::time::Instant::now() + ROOM_TIMEOUT;
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            match self.try_enter(number, address, &account) {
                Ok(place) => return Ok(place),
                Err(Full::Refused(error)) => return Err(error),
                Err(Full::ForNow) => {}
            }
            if tokio::time::timeout_at(end, left).await.is_err() {
                self.metrics.refused("connections");
                let all = self.numbers.all;
                return Err(Error::Request(format!("{all} connections are open already, which is the most here")));
            }
        }
    }

    fn try_enter(
        self: &Arc<Self>,
        number: u64,
        address: IpAddr,
        account: &Arc<Account>,
    ) -> std::result::Result<Arc<ConnectionPlace>, Full> {
        let network = network(address);
        let numbers = &self.numbers;
        let mut state = lock(&self.state);
        if state.strangers.values().filter(|s| s.network == network).count() >= numbers.strangers_of_one {
            self.close_oldest(&mut state, network);
        }
        let share = loop {
            match account.connection() {
                Ok(share) => break share,
                // What it has open without having said anything is in its own way.
                Err(_) if self.close_oldest(&mut state, network) => {}
                Err(error) => {
                    self.metrics.refused("connections of one client");
                    return Err(Full::Refused(error));
                }
            }
        };
        if state.strangers.len() >= numbers.strangers {
            let most = most_common(state.strangers.values().map(|s| s.network));
            most.map(|network| self.close_oldest(&mut state, network));
        }
        if state.open >= numbers.all {
            let closing = state.open - state.clients - state.handshakes - state.strangers.len();
            if closing == 0 {
                let most = most_common(state.strangers.values().map(|s| s.network));
                most.map(|network| self.close_oldest(&mut state, network));
            }
            return Err(Full::ForNow);
        }
        state.open += 1;
        Ok(self.stranger(&mut state, number, network, share))
    }

    fn stranger(
        self: &Arc<Self>,
        state: &mut State,
        number: u64,
        network: IpAddr,
        share: AccountShare,
    ) -> Arc<ConnectionPlace> {
        let place = ConnectionPlace::new(self, number, Is::Strangers);
        state.strangers.insert(number, Stranger { place: place.clone(), network, share });
        place
    }

    /// Closes the connection of a stranger at this address that has been there longest, if there is one.
    fn close_oldest(&self, state: &mut State, network: IpAddr) -> bool {
        let oldest = state.strangers.iter().find(|(_, s)| s.network == network).map(|(number, _)| *number);
        let Some(stranger) = oldest.and_then(|number| state.strangers.remove(&number)) else { return false };
        *lock(&stranger.place.is) = Is::Nobodys;
        stranger.place.end();
        self.metrics.refused("connections of strangers");
        true
    }

    /// A place for a further connection of a client, such as a stream of its QUIC connection.
    pub(crate) fn enter_client(
        self: &Arc<Self>,
        number: u64,
        account: &Arc<Account>,
    ) -> Result<(Arc<ConnectionPlace>, AccountShare)> {
        let mut state = lock(&self.state);
        if state.clients >= self.numbers.clients() || state.open >= self.numbers.all {
            return Err(self.full_of_clients());
        }
        let share = self.share(account)?;
        state.clients += 1;
        state.open += 1;
        Ok((ConnectionPlace::new(self, number, Is::Clients), share))
    }

    fn share(&self, account: &Arc<Account>) -> Result<AccountShare> {
        account.connection().inspect_err(|_| self.metrics.refused("connections of one client"))
    }

    fn full_of_clients(&self) -> Error {
        self.metrics.refused("connections");
        let clients = self.numbers.clients();
        Error::Request(format!("{clients} connections of clients are open already, which is the most; try again later"))
    }
}

/// The value that comes most often.
fn most_common(all: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts.into_iter().max_by_key(|(_, n)| *n).map(|(one, _)| one)
}

impl ConnectionPlace {
    fn new(places: &Arc<Places>, number: u64, is: Is) -> Arc<ConnectionPlace> {
        Arc::new(ConnectionPlace { places: places.clone(), number, over: Notify::new(), is: Mutex::new(is) })
    }

    /// The connection is to end.
    pub(crate) fn end(&self) {
        self.over.notify_one();
    }

    /// Completes when the connection is to end.
    pub(crate) async fn until_over(&self) {
        self.over.notified().await;
    }

    /// From now on the place is this client's, and not a stranger's. Gives its place among the connections of that client.
    pub(crate) fn becomes_a_clients(&self, account: &Arc<Account>) -> Result<AccountShare> {
        let places = &self.places;
        let mut state = lock(&places.state);
        let Some(stranger) = state.strangers.get(&self.number) else { return Err(Error::Cancelled) };
        if state.clients >= places.numbers.clients() {
            return Err(places.full_of_clients());
        }
        let other = if Arc::ptr_eq(stranger.share.account(), account) { None } else { Some(places.share(account)?) };
        let Some(Stranger { share, .. }) = state.strangers.remove(&self.number) else { return Err(Error::Cancelled) };
        state.clients += 1;
        *lock(&self.is) = Is::Clients;
        Ok(other.unwrap_or(share))
    }

    /// The thread of the connection has ended.
    pub(crate) fn leave(&self) {
        let mut state = lock(&self.places.state);
        match std::mem::replace(&mut *lock(&self.is), Is::Free) {
            Is::Free => return,
            Is::Strangers => drop(state.strangers.remove(&self.number)),
            Is::Clients => state.clients -= 1,
            Is::Nobodys => {}
        }
        state.open -= 1;
        drop(state);
        self.places.left.notify_waiters();
    }
}

/// Gives a place back when it is dropped.
pub(crate) struct Leaves(pub(crate) Arc<ConnectionPlace>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A place for a QUIC handshake with an address that is only claimed; given back when dropped.
pub(crate) struct Handshake(Arc<Places>);

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.handshakes -= 1;
        state.open -= 1;
        drop(state);
        self.0.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ClientLimits;

    struct Scene {
        places: Arc<Places>,
        accounts: Accounts,
        next: u64,
    }

    impl Scene {
        /// 40 connections: 10 strangers, of which 8 from one address, 5 handshakes, 25 clients.
        fn new(client: ClientLimits) -> Scene {
            let limits = Limits { connections: 40, client, ..Default::default() };
            let places = Places::new(&limits, &Arc::new(Metrics::new()));
            assert_eq!(places.numbers, Numbers { all: 40, strangers: 10, strangers_of_one: 8, handshakes: 5 });
            Scene { places, accounts: Accounts::new(&limits), next: 0 }
        }

        fn enter(&mut self, address: &str) -> Arc<ConnectionPlace> {
            self.try_enter(address).unwrap_or_else(|_| panic!("no place for {address}"))
        }

        fn try_enter(&mut self, address: &str) -> std::result::Result<Arc<ConnectionPlace>, Full> {
            self.next += 1;
            let address = address.parse().unwrap();
            self.places.try_enter(self.next, address, &self.accounts.of(None, address))
        }

        fn strangers(&self) -> Vec<u64> {
            lock(&self.places.state).strangers.keys().copied().collect()
        }
    }

    #[test]
    fn the_oldest_of_the_address_with_the_most_goes_first() {
        let mut s = Scene::new(ClientLimits::default());
        let mut all: Vec<_> = (0..7).map(|_| s.enter("10.0.0.1")).collect();
        all.extend((0..3).map(|_| s.enter("10.0.0.2")));
        assert_eq!(s.strangers().len(), 10);
        // 1 is the oldest of those from the first address, which has seven.
        all.push(s.enter("10.0.0.3"));
        assert_eq!(s.strangers(), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        // One address takes places from itself when it has as many as it may have.
        let mut s = Scene::new(ClientLimits::default());
        all.push(s.enter("10.0.0.2"));
        all.extend((0..20).map(|_| s.enter("10.0.0.1")));
        assert_eq!(s.strangers(), [1, 14, 15, 16, 17, 18, 19, 20, 21]);
    }

    #[test]
    fn those_that_are_closed_have_a_place_until_they_have_ended() {
        let mut s = Scene::new(ClientLimits::default());
        let mut open = std::collections::VecDeque::new();
        let full = loop {
            match s.try_enter("10.0.0.1") {
                Ok(place) => open.push_back(place),
                Err(full) => break full,
            }
        };
        assert!(matches!(full, Full::ForNow) && open.len() == 40 && s.places.open() == 40);
        open.pop_front().unwrap().leave();
        s.enter("10.0.0.1");
        assert!(matches!(s.try_enter("10.0.0.1"), Err(Full::ForNow)));
    }

    #[test]
    fn clients_and_strangers_take_no_places_from_one_another() {
        let mut s = Scene::new(ClientLimits { connections: 20, ..Default::default() });
        let mut clients = Vec::new();
        let error = loop {
            let name = format!("client {}", clients.len() / 20);
            let place = s.enter("10.0.0.1");
            let account = s.accounts.of(Some(&name), "10.0.0.1".parse().unwrap());
            match place.becomes_a_clients(&account) {
                Ok(share) => clients.push((place, share)),
                Err(error) => break error,
            }
        };
        assert_eq!(clients.len(), 25);
        assert!(error.to_string().contains("25 connections of clients"), "{error}");
        // They are on the accounts of their names, not on that of the address. The last of them stays a stranger.
        let strangers: Vec<_> = (0..30).map(|_| s.enter("10.0.0.2")).take(9).collect();
        assert_eq!((s.strangers().len(), lock(&s.places.state).clients), (9, 25));
        clients.iter().for_each(|(place, _)| place.leave());
        strangers.iter().for_each(|place| place.leave());
        assert_eq!(lock(&s.places.state).clients, 0);
        let (place, share) = clients.remove(0);
        drop((share, place));
    }

    #[test]
    fn what_an_address_has_open_in_silence_is_in_its_own_way_only() {
        let mut s = Scene::new(ClientLimits { connections: 3, ..Default::default() });
        let client = s.enter("10.0.0.1");
        let account = s.accounts.of(None, "10.0.0.1".parse().unwrap());
        let share = client.becomes_a_clients(&account).unwrap();
        let _silent: Vec<_> = (0..5).map(|_| s.enter("10.0.0.1")).collect();
        assert_eq!(s.strangers(), [5, 6]);
        let _others: Vec<_> = s.strangers().iter().map(|_| s.enter("10.0.0.2")).collect();
        // Three clients, and nothing to close.
        drop(share);
    }

    #[test]
    fn handshakes_of_claimed_addresses_are_counted_apart() {
        let mut s = Scene::new(ClientLimits { connections: 1, ..Default::default() });
        let mut handshakes: Vec<_> = (0..5).map(|_| s.places.handshake().unwrap()).collect();
        assert!(s.places.handshake().is_none() && s.places.are_full_of_handshakes());
        s.enter("10.0.0.1");
        handshakes.pop();
        assert!(!s.places.are_full_of_handshakes());
        drop(handshakes);
        assert_eq!(s.places.open(), 1);
    }

    #[test]
    fn few_connections_are_divided_as_many_are() {
        for connections in [0, 8, 9, 100, 512, 100_000] {
            let n = Numbers::new(&Limits { connections, ..Default::default() });
            assert!(n.clients() >= n.all / 2 && n.strangers >= 1 && n.handshakes >= 1, "{n:?}");
            assert!(n.strangers_of_one <= n.strangers && n.strangers_of_one >= 1, "{n:?}");
        }
    }
}
