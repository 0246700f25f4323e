//! Which servers send tensors straight to which: asked once for each pair, and remembered.

use crate::command::Job;
use crate::connection::Connection;
use crate::lock;
use crate::session::Session;
use crate::transport::Conn;
use bytes::Bytes;
use outboard_core::{Error, Pending, Result, Ticket};
use outboard_proto::error::from_status;
use outboard_proto::grant::{Proofs, Route};
use outboard_proto::v1::peers_client::PeersClient;
use outboard_proto::{SECRET_BYTES, v1};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tonic::{Response, Status};

/// Longest wait for the answer whether one server reaches another: what the server allows itself, and the way there and back.
const REACH_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest wait for figures: they are not worth more.
const TRAFFIC_TIMEOUT: Duration = Duration::from_secs(2);
/// Offers whose acceptance is not enqueued yet that are remembered; beyond that, acceptances go without the name.
const MAX_OFFERED: usize = 4096;

/// How tensors get from one remote device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPath {
    /// Both are of one endpoint, and hand over tensors in memory.
    SameEndpoint,
    /// From server to server.
    Direct,
    /// Through this process, and why.
    Relayed(String),
}

impl fmt::Display for PeerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerPath::SameEndpoint => f.write_str("same endpoint"),
            PeerPath::Direct => f.write_str("direct"),
            PeerPath::Relayed(why) => write!(f, "relayed: {why}"),
        }
    }
}

/// What a session knows of the other servers.
#[derive(Default)]
pub(crate) struct Peers {
    /// Of one call of `connect`: asked about all at once.
    siblings: OnceLock<Vec<Weak<Session>>>,
    /// By incarnation and session of the other server.
    paths: Mutex<HashMap<(u64, u64), Arc<Asked>>>,
    /// Tensors that other servers were told to send here.
    offered: Mutex<HashMap<[u8; 32], v1::PeerSource>>,
    /// Connections of servers that were told to send here.
    senders: Mutex<Vec<Weak<Connection>>>,
    /// Whether anything was offered to another server.
    used: AtomicBool,
    last_traffic: Mutex<u64>,
}

/// A question to a server whether it reaches another one.
struct Asked {
    /// The other server.
    name: Arc<str>,
    /// The same for that server, with proofs that are good until its session is taken up again.
    target: v1::PeerTarget,
    /// The secret that the proofs are from.
    secret: Bytes,
    answer: Mutex<Option<Pending<v1::ReachResponse>>>,
    path: OnceLock<PeerPath>,
}

impl Peers {
    pub(crate) fn set_siblings(&self, sessions: &[Arc<Session>]) {
        let _ = self.siblings.set(sessions.iter().map(Arc::downgrade).collect());
    }

    /// Another connection goes on: what the last one has asked and offered came to nothing.
    pub(crate) fn begin_again(&self) {
        lock(&self.paths).clear();
        lock(&self.offered).clear();
    }

    /// A tensor was offered to a queue of this session; its acceptance is told where it comes from.
    pub(crate) fn expect(&self, ticket: Ticket, from: &Arc<Connection>) {
        {
            let mut senders = lock(&self.senders);
            if !senders.iter().any(|sender| std::ptr::eq(sender.as_ptr(), Arc::as_ptr(from))) {
                senders.retain(|sender| sender.strong_count() > 0);
                senders.push(Arc::downgrade(from));
            }
        }
        let mut offered = lock(&self.offered);
        if offered.len() >= MAX_OFFERED {
            offered.clear();
        }
        offered.insert(ticket.0, from.as_source());
    }

    /// The servers that send here.
    pub(crate) fn senders(&self) -> Vec<Arc<Connection>> {
        lock(&self.senders).iter().filter_map(Weak::upgrade).collect()
    }

    /// Where a tensor comes from, if another server was told to send it.
    pub(crate) fn source(&self, ticket: Ticket) -> Option<v1::PeerSource> {
        lock(&self.offered).remove(&ticket.0)
    }
}

impl Connection {
    /// How this server is named to another one that is to send to it, and what proves that its client wants that.
    fn as_target(&self, from: &Connection) -> v1::PeerTarget {
        let route = Route { from: from.incarnation, to: self.incarnation, session: self.session.id };
        let secret = self.session.secret.as_ref().try_into().ok();
        let proofs = secret.map(|secret| Proofs::new(secret, route));
        let bytes = |proof: Option<[u8; SECRET_BYTES]>| proof.map(|p| Bytes::copy_from_slice(&p)).unwrap_or_default();
        v1::PeerTarget {
            address: self.name.to_string(),
            incarnation: self.incarnation,
            session: self.session.id,
            grant: bytes(proofs.map(|p| p.grant)),
            welcome: bytes(proofs.map(|p| p.welcome)),
        }
    }

    /// How this server is called by those that it sends to.
    pub(crate) fn as_source(&self) -> v1::PeerSource {
        v1::PeerSource { name: self.name.to_string(), incarnation: self.incarnation }
    }

    /// Makes a call of the service for peers; its answer comes later.
    fn call_peers<T, F>(
        &self,
        what: &str,
        call: impl FnOnce(PeersClient<Conn>) -> F + Send + 'static,
    ) -> Result<Pending<T>>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<Response<T>, Status>> + Send,
    {
        self.check()?;
        let (completer, pending) = Pending::new(format!("{}: {what}", self.name));
        let name = self.name.clone();
        let job = Job::Call(Box::new(move |conn| {
            Box::pin(async move {
                let origin = conn.origin();
                let result = call(PeersClient::with_origin(conn, origin)).await;
                completer.complete(result.map(Response::into_inner).map_err(|status| from_status(&status, &name)));
            })
        }));
        self.jobs.send(job).map_err(|_| self.gone())?;
        Ok(pending)
    }

    /// Bytes that this server has sent to others for this session; what was known last if it does not answer.
    pub(crate) fn peer_bytes(&self) -> u64 {
        if !self.peers.used.load(Ordering::Relaxed) {
            return 0;
        }
        let request = v1::TrafficRequest { session: Some(self.session.clone()) };
        let call = self.call_peers("traffic", |mut client| async move { client.traffic(request).await });
        let mut last = lock(&self.peers.last_traffic);
        if let Ok(traffic) = call.and_then(|pending| pending.wait(TRAFFIC_TIMEOUT)) {
            *last = traffic.peer_bytes;
        }
        *last
    }

    /// Notes that a tensor goes to another server.
    pub(crate) fn sends_to_peers(&self) {
        self.peers.used.store(true, Ordering::Relaxed);
    }

    /// Asks whether this server reaches another one, unless that was asked before.
    fn ask(&self, to: &Connection) -> Arc<Asked> {
        let mut paths = lock(&self.peers.paths);
        let key = (to.incarnation, to.session.id);
        if let Some(asked) = paths.get(&key).filter(|asked| asked.secret == to.session.secret) {
            return asked.clone();
        }
        let target = to.as_target(self);
        let request = v1::ReachRequest { session: Some(self.session.clone()), target: Some(target.clone()) };
        let what = format!("whether it reaches {}", to.name);
        let call = self.call_peers(&what, |mut client| async move { client.reach(request).await });
        let pending = call.unwrap_or_else(|e| Pending::ready(Err(e)));
        let asked = Arc::new(Asked {
            name: to.name.clone(),
            target,
            secret: to.session.secret.clone(),
            answer: Mutex::new(Some(pending)),
            path: OnceLock::new(),
        });
        paths.insert(key, asked.clone());
        asked
    }

    /// A queue has failed because of another server: the way between the two is asked for anew.
    pub(crate) fn lost_peer(&self, error: &Error) {
        let Error::Peer { endpoint, .. } = error else { return };
        let forget = |peers: &Peers, name: &str| lock(&peers.paths).retain(|_, asked| *asked.name != *name);
        forget(&self.peers, endpoint);
        for session in self.peers.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
            let other = session.connection();
            if *other.name == **endpoint {
                forget(&other.peers, &self.name);
            }
        }
    }

    /// How tensors get from this server to another one. The first time this may take a round trip and a half between the
    /// servers, or some seconds if they do not reach each other.
    pub(crate) fn path_to(&self, to: &Connection) -> PeerPath {
        self.asked(to).path(self, to)
    }

    /// Where a tensor for another server goes, if it goes straight there.
    pub(crate) fn target(&self, to: &Connection) -> Option<v1::PeerTarget> {
        let asked = self.asked(to);
        (asked.path(self, to) == PeerPath::Direct).then(|| asked.target.clone())
    }

    /// The question whether this server reaches another one. The first one lets all servers ask about all.
    fn asked(&self, to: &Connection) -> Arc<Asked> {
        let known = lock(&self.peers.paths).get(&(to.incarnation, to.session.id)).cloned();
        if let Some(asked) = known.filter(|asked| asked.secret == to.session.secret && asked.path.get().is_some()) {
            return asked;
        }
        if let Some(siblings) = self.peers.siblings.get() {
            let sessions: Vec<_> = siblings.iter().filter_map(Weak::upgrade).collect();
            for a in &sessions {
                for b in sessions.iter().filter(|b| !Arc::ptr_eq(a, b)) {
                    a.connection().ask(&b.connection());
                }
            }
        }
        self.ask(to)
    }
}

impl Asked {
    fn path(&self, from: &Connection, to: &Connection) -> PeerPath {
        let find = || {
            let Some(pending) = lock(&self.answer).take() else { return PeerPath::Relayed("it was not asked".into()) };
            let why = match pending.wait(REACH_TIMEOUT) {
                Ok(answer) if answer.obstacle.is_empty() => return PeerPath::Direct,
                Ok(answer) => answer.obstacle,
                Err(Error::Peer { detail, .. }) => detail,
                Err(e) => e.to_string(),
            };
            let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            tracing::warn!(
                "{} cannot send to {} ({why}); tensors between them pass through this process",
                from.name,
                to.name
            );
            PeerPath::Relayed(why)
        };
        self.path.get_or_init(find).clone()
    }
}
