//! Tensors between this server and others.
//!
//! A [`link::Link`] sends: a connection, on a thread of its own, from a session of this server to the session that its client has on
//! another one. Nothing on it is another session's, and it ends with either. The client gives both ends what proves that
//! they are meant ([`outboard_proto::grant`]): nobody who merely connects is believed to be a server, and no server that a client names
//! gets anything before it has proven that it is the one.
//!
//! The two ends of a transfer find each other by their ticket ([`crate::ticket`]): the [`inbox::Inbox`] of a session knows what is accepted
//! and what has come, in either order. [`inbound`] is the end of a link that receives. Nothing here ever waits for a tensor to be accepted before it reads on, so that two servers that send to each other cannot
//! stop one another.

mod dial;
pub(crate) mod inbound;
pub(crate) mod inbox;
pub(crate) mod lane;
pub(crate) mod link;
mod lookup;
mod wire;

use crate::accounts::Account;
use crate::descriptors;
use crate::fair::{FairRoom, FairShare};
use crate::limits::{INBOUND_LINKS, INBOUND_LINKS_PER_SESSION, LINKS_PER_SESSION, PeerLimits};
use crate::lock;
use crate::metrics::Metrics;
use crate::session::Session;
use crate::trust::Trust;
use inbox::{Inbox, Origin, Refusal, SharedRoom};
use link::{Link, Target};
use lookup::Lookup;
use outboard_core::{Error, Result};
use outboard_net::ClientTls;
use outboard_proto::v1;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::watch;

/// What a server has to do with other servers.
pub(crate) struct Peers {
    incarnation: u64,
    /// How other servers are known, and how this one proves to them who it is.
    tls: ClientTls,
    lookup: Lookup,
    pub(crate) limits: PeerLimits,
    /// For what came and no queue takes, of all sessions.
    room: Arc<SharedRoom>,
    /// By session, its age, and all that its client has said of the other server.
    links: Mutex<HashMap<(u64, u64, Target), Arc<Link>>>,
    /// How many links there may be.
    most: Arc<FairRoom>,
    /// Links of other servers, by their number.
    inbound: Mutex<HashMap<u64, Inbound>>,
    most_inbound: Arc<FairRoom>,
    pub(crate) metrics: Arc<Metrics>,
    stopped: watch::Receiver<bool>,
}

/// A link of another server.
struct Inbound {
    session: u64,
    /// Where refusals go.
    answers: inbound::Answers,
    /// The other end of its connection.
    peer: SocketAddr,
}

/// One more of these links for a client.
fn one_more(links: &Arc<FairRoom>, account: &Account) -> Result<FairShare> {
    let full = || {
        Error::Request(format!(
            "{account} has as many links between servers here as are left to others; end some sessions"
        ))
    };
    links.try_take(account.uid, 1).ok_or_else(full)
}

impl Peers {
    pub(crate) fn new(
        incarnation: u64,
        limits: PeerLimits,
        trust: &Trust,
        metrics: &Arc<Metrics>,
        stopped: watch::Receiver<bool>,
    ) -> Arc<Peers> {
        Arc::new(Peers {
            incarnation,
            tls: trust.peers.clone(),
            lookup: Lookup::new(trust.may_dial.clone()),
            metrics: metrics.clone(),
            limits,
            room: SharedRoom::new(),
            links: Mutex::default(),
            most: FairRoom::new(descriptors::links() as u64),
            inbound: Mutex::default(),
            most_inbound: FairRoom::new(INBOUND_LINKS),
            stopped,
        })
    }

    /// The inbox of a new session of this client.
    pub(crate) fn inbox(&self, account: &Account) -> Inbox {
        Inbox::new(self.limits.clone(), &self.room, account.uid)
    }

    /// The link of a session to a server that its client names; opened if there is none. Does not wait for it.
    pub(crate) fn link(self: &Arc<Self>, session: &Arc<Session>, target: &v1::PeerTarget) -> Result<Arc<Link>> {
        let target = Target::new(self.incarnation, target)?;
        let key = (session.id, session.keys.age_now(), target.clone());
        let mut links = lock(&self.links);
        if let Some(link) = links.get(&key).filter(|link| !link.is_lost()) {
            return Ok(link.clone());
        }
        if links.keys().filter(|(owner, ..)| *owner == session.id).count() >= LINKS_PER_SESSION {
            return Err(Error::Request(format!("a session may have links to {LINKS_PER_SESSION} servers at a time")));
        }
        let share = one_more(&self.most, &session.account)?;
        let link = Link::new(target, &self.metrics);
        dial::start(self, session, &link, share)?;
        links.insert(key, link.clone());
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

    /// A link of another server, with its share, if its session may have one more.
    fn admit(&self, number: u64, session: &Session, answers: &inbound::Answers, peer: SocketAddr) -> Result<FairShare> {
        let mut inbound = lock(&self.inbound);
        if inbound.values().filter(|link| link.session == session.id).count() >= INBOUND_LINKS_PER_SESSION {
            let limit = INBOUND_LINKS_PER_SESSION;
            return Err(Error::Request(format!("a session may have links from {limit} servers at a time")));
        }
        let share = one_more(&self.most_inbound, &session.account)?;
        inbound.insert(number, Inbound { session: session.id, answers: answers.clone(), peer });
        Ok(share)
    }

    /// Ends what has waited for too long in these sessions.
    pub(crate) fn expire<'s>(&self, sessions: impl IntoIterator<Item = &'s Arc<Session>>) {
        let now = Instant::now();
        for Refusal { via, error } in sessions.into_iter().flat_map(|session| session.inbox.expire(now)) {
            if let Some(Inbound { answers, .. }) = lock(&self.inbound).get(&via.link) {
                inbound::refuse(answers, via, &error);
            }
        }
    }

    /// What a server is called of which nothing is known but where something came from.
    pub(crate) fn name_of(&self, origin: Origin) -> String {
        let inbound = lock(&self.inbound);
        let known = match origin {
            Origin::Link(link) => inbound.get(&link),
            Origin::Unknown => None,
        };
        known.map_or_else(|| "another server".to_owned(), |link| format!("the server on {}", link.peer.ip()))
    }
}
