//! Where other servers are: their names are looked up once for each attempt, and only addresses are connected to that were checked
//! against the list of those that this server may connect to.

use crate::fair::FairRoom;
use crate::limits::LOOKUPS;
use crate::logs::limited;
use crate::metrics::Metrics;
use crate::peer_list::{PeerList, Verdict};
use outboard_net::Endpoint;
use outboard_net::limits::ADDRESSES;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Why there are no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAddress {
    /// They may be found in a moment.
    ForNow(String),
    /// This server may not connect to them.
    NotListed(String),
}

/// Finds addresses of other servers.
pub(super) struct Lookup {
    list: PeerList,
    /// How many are under way, by client.
    running: Arc<FairRoom>,
}

impl Lookup {
    pub(super) fn new(list: PeerList) -> Lookup {
        Lookup { list, running: FairRoom::new(LOOKUPS) }
    }

    /// The addresses of a server that this one may connect to, for a client by the uid of its account. Not empty.
    pub(super) async fn addresses(
        &self,
        endpoint: &Endpoint,
        account: u64,
        metrics: &Metrics,
    ) -> Result<Vec<SocketAddr>, NoAddress> {
        let verdict = self.list.verdict(endpoint.host());
        let refused = |what: String| {
            metrics.refused("peers that are not listed");
            limited!(warn, peer = %endpoint, "not connected to: --peers does not list {what}");
            NoAddress::NotListed(format!(
                "the server that is to send may not connect to it: its --peers does not list {what}"
            ))
        };
        if verdict == Verdict::None {
            return Err(refused(endpoint.host().to_owned()));
        }
        let found = self.look_up(endpoint, account).await?;
        let Some(first) = found.first().copied() else {
            return Err(NoAddress::ForNow("cannot connect: its name has no address".into()));
        };
        let good = found.into_iter().filter(|address| verdict == Verdict::Any || self.list.has(address));
        let good: Vec<SocketAddr> = good.take(ADDRESSES).collect();
        if good.is_empty() {
            return Err(refused(match endpoint.host().parse::<IpAddr>() {
                Ok(ip) => ip.to_string(),
                Err(_) => format!("{} ({})", endpoint.host(), first.ip()),
            }));
        }
        Ok(good)
    }

    async fn look_up(&self, endpoint: &Endpoint, account: u64) -> Result<Vec<SocketAddr>, NoAddress> {
        let (host, port) = (endpoint.host().to_owned(), endpoint.port());
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let Some(running) = self.running.try_take(account, 1) else {
            let why =
                "cannot connect: too many names of servers are being looked up; try again later, or give its address";
            return Err(NoAddress::ForNow(why.into()));
        };
        // Nothing ends this but the system, so that it counts for as long as it takes, whoever waits for it.
        let look = tokio::task::spawn_blocking(move || {
            let _running = running;
            (host, port).to_socket_addrs().map(|found| found.collect())
        });
        match look.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(e)) => Err(NoAddress::ForNow(format!("cannot connect: {e}"))),
            Err(_) => Err(NoAddress::ForNow("cannot connect: the lookup of its name was given up".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(lookup: &Lookup, endpoint: &str) -> Result<Vec<SocketAddr>, NoAddress> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(lookup.addresses(&Endpoint::parse(endpoint).unwrap(), 1, &Metrics::new()))
    }

    #[test]
    fn only_what_is_listed_is_connected_to() {
        let of = |list: &str| Lookup::new(PeerList::parse(list.split(',')).unwrap());
        let v4 = |found: Result<Vec<SocketAddr>, NoAddress>| {
            found.is_ok_and(|all| all.contains(&"127.0.0.1:7".parse().unwrap()))
        };
        assert!(v4(addresses(&Lookup::new(PeerList::default()), "127.0.0.1:7")));
        assert!(v4(addresses(&of("127.0.0.0/8"), "127.0.0.1:7")));
        // By name, whatever its address; and by address, whatever its name.
        assert!(v4(addresses(&of("localhost"), "localhost:7")));
        assert!(v4(addresses(&of("127.0.0.0/8"), "localhost:7")));
        for (list, endpoint) in [
            ("127.0.0.0/8", "127.0.0.1:7"),
            ("127.0.0.0/8", "grpcs://127.0.0.1:7"),
            ("127.0.0.0/8", "quic://127.0.0.1:7"),
            ("127.0.0.0/8", "auto://127.0.0.1:7"),
        ] {
            assert!(v4(addresses(&of(list), endpoint)));
            let refused = addresses(&of("10.0.0.0/8,gpu1"), endpoint);
            let Err(NoAddress::NotListed(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains("--peers") && why.contains("127.0.0.1"), "{why}");
        }
        for (list, endpoint, named) in [
            ("10.0.0.0/8", "localhost:7", "localhost ("),
            ("gpu1", "gpu2:7", "gpu2"),
            ("localhost", "127.0.0.1:7", "127.0.0.1"),
            // A name that looks like an address to the system, and one that is longer than the one in the list.
            ("10.0.0.0/8", "127.1:7", "(127.0.0.1)"),
            ("localhost", "localhost.evil:7", "localhost.evil"),
            ("", "127.0.0.1:7", "127.0.0.1"),
        ] {
            let refused = addresses(&of(list), endpoint);
            let Err(NoAddress::NotListed(why)) = refused else { panic!("{endpoint}: {refused:?}") };
            assert!(why.contains(named), "{why}");
        }
    }

    #[test]
    fn lookups_under_way_are_bounded_and_shared() {
        let lookup = Lookup::new(PeerList::default());
        let hogged: Vec<_> = (0..LOOKUPS).map_while(|_| lookup.running.try_take(1, 1)).collect();
        assert_eq!(hogged.len() as u64, LOOKUPS / 2);
        let refused = addresses(&lookup, "localhost:7");
        assert!(matches!(&refused, Err(NoAddress::ForNow(why)) if why.contains("too many names")), "{refused:?}");
        // Addresses need no lookup, and others still have some.
        assert!(addresses(&lookup, "127.0.0.1:7").is_ok() && lookup.running.try_take(2, 1).is_some());
        drop(hogged);
        assert!(addresses(&lookup, "localhost:7").is_ok());
        // What that lookup had is there again.
        let all: Vec<_> = (0..LOOKUPS).map_while(|_| lookup.running.try_take(1, 1)).collect();
        assert_eq!(all.len() as u64, LOOKUPS / 2);
    }
}
