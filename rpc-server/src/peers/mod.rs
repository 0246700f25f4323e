//! Tensors between this server and others.
//!
//! A [`link::Link`] sends: one connection per server that tensors go to, on a thread of its own, shared by all sessions. The
//! [`inbox::Inbox`] knows what is accepted and what has come, in either order. [`inbound`] is the end of a link that receives.
//! Nothing here ever waits for a tensor to be accepted before it reads on, so that two servers that send to each other cannot
//! stop one another.

mod dial;
pub(crate) mod inbound;
pub(crate) mod inbox;
pub(crate) mod link;
mod wire;

use crate::limits::PeerLimits;
use crate::lock;
use crate::metrics::Metrics;
use crate::session::Session;
use inbox::{Inbox, Refusal};
use link::Link;
use outboard_core::{Error, Result};
use outboard_net::{ClientTls, Endpoint};
use outboard_proto::limits::MAX_ADDRESS;
use outboard_proto::v1;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::watch;

/// Links of one server at a time, and so servers that it can send to; each has a thread.
const MAX_LINKS: usize = 256;

/// What a server has to do with other servers.
pub(crate) struct Peers {
    incarnation: u64,
    /// How other servers are known, and how this one proves to them who it is.
    tls: ClientTls,
    pub(crate) limits: PeerLimits,
    pub(crate) inbox: Inbox,
    links: Mutex<HashMap<(u64, String), Arc<Link>>>,
    /// Connections from other servers: where refusals go, and the address at the other end.
    inbound: Mutex<HashMap<u64, (inbound::Answers, SocketAddr)>>,
    pub(crate) metrics: Arc<Metrics>,
    stopped: watch::Receiver<bool>,
}

impl Peers {
    pub(crate) fn new(
        incarnation: u64,
        limits: PeerLimits,
        tls: ClientTls,
        metrics: &Arc<Metrics>,
        stopped: watch::Receiver<bool>,
    ) -> Arc<Peers> {
        Arc::new(Peers {
            incarnation,
            tls,
            metrics: metrics.clone(),
            inbox: Inbox::new(limits.clone()),
            limits,
            links: Mutex::default(),
            inbound: Mutex::default(),
            stopped,
        })
    }

    /// The link to a server, for a session; opened if there is none. Does not wait for it.
    pub(crate) fn link(self: &Arc<Self>, session: &Arc<Session>, target: &v1::PeerTarget) -> Result<Arc<Link>> {
        let (incarnation, address) = (target.incarnation, target.address.as_str());
        let endpoint = Some(address).filter(|a| a.len() <= MAX_ADDRESS).and_then(|a| Endpoint::parse(a).ok());
        let endpoint = endpoint.ok_or_else(|| Error::Request("that is no address of a server".into()))?;
        let encrypted = |of: &Endpoint| of.carrier().is_encrypted();
        let mut links = lock(&self.links);
        // Another name of the same server will do, unless that leaves out the encryption.
        let usable = |link: &&Arc<Link>| {
            link.incarnation == incarnation && link.is_open() && encrypted(&link.endpoint) >= encrypted(&endpoint)
        };
        let same = links.get(&(incarnation, endpoint.to_string())).filter(|link| link.is_open());
        let known = same.or_else(|| links.values().find(usable));
        let known = known.or_else(|| links.get(&(incarnation, endpoint.to_string())));
        if let Some(link) = known.filter(|link| !link.is_lost()) {
            link.attach(session);
            return Ok(link.clone());
        }
        if links.len() >= MAX_LINKS {
            return Err(Error::Request(format!("this server sends to {MAX_LINKS} others already")));
        }
        let link = Link::new(incarnation, endpoint, &self.metrics);
        link.attach(session);
        dial::start(self, &link)?;
        links.insert((incarnation, link.address.clone()), link.clone());
        Ok(link)
    }

    /// Whether a server can be reached; if not, why.
    pub(crate) async fn reach(self: &Arc<Self>, session: &Arc<Session>, target: &v1::PeerTarget) -> Result<()> {
        self.link(session, target)?.until_open().await
    }

    /// A link is not used any more.
    fn forget(&self, link: &Arc<Link>) {
        let mut links = lock(&self.links);
        links.retain(|_, other| !Arc::ptr_eq(other, link));
    }

    /// Links that are open now.
    pub(crate) fn open_links(&self) -> usize {
        lock(&self.links).values().filter(|link| link.is_open()).count()
    }

    /// Ends what has waited for too long.
    pub(crate) fn expire(&self) {
        for Refusal { via, error } in self.inbox.expire(Instant::now()) {
            if let Some((down, _)) = lock(&self.inbound).get(&via.conn) {
                inbound::refuse(down, via, &error);
            }
        }
    }

    /// What a server is called that nothing is known of but its connection.
    pub(crate) fn name_of(&self, conn: Option<u64>) -> String {
        let inbound = lock(&self.inbound);
        let known = conn.and_then(|conn| inbound.get(&conn));
        known.map_or_else(|| "another server".to_owned(), |(_, peer)| format!("the server on {}", peer.ip()))
    }
}
