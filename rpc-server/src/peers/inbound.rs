//! The receiving end of a link: the stream of another server, for one session. Payloads go from the frames of the connection to the queue
//! that accepts them without a copy.

use super::Peers;
use super::inbox::{Begun, Progress, Via};
use crate::fair::FairShare;
use crate::grpc::{Broken, Pieces, response};
use crate::http2::Incoming;
use crate::limits::{COMING, LINK_DEAD, REFUSALS, TICK};
use crate::lock;
use crate::logs::limited;
use crate::service::call::place_of;
use crate::service::{Service, UNDECODABLE, in_time};
use crate::session::Session;
use crate::ticket::{self, Key};
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use outboard_core::device::fresh_uid;
use outboard_core::{Error, Result};
use outboard_proto::chunk::{ChunkReader, Direction, Piece};
use outboard_proto::grant::Route;
use outboard_proto::limits::MAX_PEER_MESSAGE;
use outboard_proto::v1::peer_down::Part as Down;
use outboard_proto::v1::peer_up::Part as Up;
use outboard_proto::{error, frame, pick_version, v1};
use prometheus_client::metrics::counter::Counter;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

/// What is said to the other server: messages, and the status if it is not a good one.
pub(super) type Answers = mpsc::Sender<Answer>;
type Answer = std::result::Result<Bytes, Status>;

/// Serves the stream of another server.
pub(crate) fn push(service: Service, request: Request<Incoming>) -> Response<Body> {
    let (down, answers) = mpsc::channel(REFUSALS);
    tokio::spawn(async move {
        let _place = place_of(&request);
        if let Err(status) = run(&service, request.into_body(), &down).await {
            service.refused("link of another server refused", &status);
            let _ = down.send(Err(status)).await;
        }
    });
    response(answers)
}

async fn run(service: &Service, body: Incoming, down: &Answers) -> std::result::Result<(), Status> {
    let mut pieces = Pieces::new(body, ChunkReader::with_messages(Direction::Up, MAX_PEER_MESSAGE));
    let first = match in_time(pieces.next()).await? {
        Ok(Some(Piece::Message(bytes))) => v1::PeerUp::decode(bytes).ok().and_then(|m| m.part),
        Ok(_) => None,
        Err(broken) => return End::from(broken).status(),
    };
    let Some(Up::Open(open)) = first else {
        return Err(Status::invalid_argument("the first message must open the link"));
    };
    let mut inbound = Inbound::open(service, &open, down)?;
    let end = inbound.serve(&mut pieces).await;
    inbound.over = Some(end.to_string());
    drop(inbound);
    end.status()
}

/// How a stream ended.
enum End {
    Lost(String),
    Broken(Status),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> End {
        match broken {
            Broken::Lost(why) => End::Lost(why),
            Broken::Undecodable(status) => End::Broken(status),
        }
    }
}

impl End {
    fn status(self) -> std::result::Result<(), Status> {
        match self {
            End::Lost(_) => Ok(()),
            End::Broken(status) => Err(status),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::Lost(why) => why,
            End::Broken(status) => status.message(),
        })
    }
}

/// An open stream. Dropped, by whatever way it ends, it takes what was to come on it with it.
struct Inbound<'a> {
    service: &'a Service,
    peers: &'a Peers,
    down: &'a Answers,
    /// No other link of this process has it.
    number: u64,
    /// All that comes is for this session, for as long as it has this age.
    session: Arc<Session>,
    age: u64,
    /// Transfers whose bytes are coming.
    coming: HashMap<u64, (Key, Via)>,
    from: u64,
    received: Counter,
    over: Option<String>,
    _share: FairShare,
}

impl<'a> Inbound<'a> {
    /// Makes sure that the client of a session wants this link, and answers what proves that this is the server that it knows.
    fn open(service: &'a Service, open: &v1::OpenPeer, down: &'a Answers) -> std::result::Result<Inbound<'a>, Status> {
        let peers = &service.shared.peers;
        if open.to != peers.incarnation {
            let why = "another server answers at this address (or the one that was meant, after a restart)";
            return Err(Status::failed_precondition(why));
        }
        let version = pick_version(open.min_version, open.max_version).ok_or_else(|| {
            Status::failed_precondition(
                "the servers speak no common protocol version; install the same release on both",
            )
        })?;
        if open.grant.is_empty() {
            return Err(Status::permission_denied(
                "it shows no proof that a client wants this link; install the same release on the client and all servers",
            ));
        }
        let found = lock(&service.shared.sessions).get(&open.session).filter(|s| !s.is_closed()).cloned();
        let route = Route { from: open.from, to: open.to, session: open.session };
        let wanted = found.and_then(|session| session.keys.link(route, &open.grant).map(|keys| (session, keys)));
        let (session, (age, welcome)) = wanted.ok_or_else(|| {
            Status::permission_denied(
                "the client that it sends for has not asked for this link, or has ended its session here, or taken it up again",
            )
        })?;
        if service.conn.has_a_link() {
            return Err(Status::resource_exhausted(
                "there is a link on this connection already; each needs one of its own",
            ));
        }
        let number = fresh_uid();
        let share = peers.admit(number, &session, down, service.conn.peer);
        let share = share.map_err(|e| {
            peers.metrics.refused("links of one client");
            Status::resource_exhausted(e.to_string())
        })?;
        if let Err(status) = service.authorise_link(&session.account) {
            lock(&peers.inbound).remove(&number);
            return Err(status);
        }
        service.conn.serves_a_link(true);
        let proof = Bytes::copy_from_slice(&welcome);
        // There is room: it is the first message.
        let _ = down.try_send(Ok(encode(Down::Welcome(v1::Welcome { version, proof }))));
        limited!(info, session = session.tag, peer = %service.conn.peer, "link of another server opened");
        session.inbox.link_opened(open.from);
        let received = peers.metrics.received_from(&service.conn.peer.ip().to_string());
        let (coming, from) = (HashMap::new(), open.from);
        Ok(Inbound { service, peers, down, number, session, age, coming, from, received, over: None, _share: share })
    }
}

impl Inbound<'_> {
    /// Takes what comes on the stream, until the session, the stream or the connection has ended.
    async fn serve(&mut self, pieces: &mut Pieces) -> End {
        let mut tick = tokio::time::interval(TICK);
        let (session, age) = (self.session.clone(), self.age);
        let over = async {
            tokio::select! {
                () = session.until_closed() => "the session that it is for has ended",
                () = session.keys.until_renewed(age) => "the session that it is for was taken up again by its client",
            }
        };
        let mut over = std::pin::pin!(over);
        loop {
            tokio::select! {
                biased;
                why = over.as_mut() => return End::Broken(Status::permission_denied(why)),
                piece = pieces.next() => match piece {
                    Ok(Some(piece)) => if let Err(status) = self.piece(piece, pieces.frame()) {
                        return End::Broken(status);
                    },
                    Ok(None) => return End::Lost("the other server closed it".into()),
                    Err(broken) => return broken.into(),
                },
                _ = tick.tick() => {
                    if self.service.conn.traffic.heard().elapsed() > LINK_DEAD {
                        let why = "the other server has stopped answering (it hangs, or the network is cut)";
                        return End::Lost(why.into());
                    }
                }
            }
        }
    }

    /// What came next, in a frame of so many bytes.
    fn piece(&mut self, piece: Piece, frame: usize) -> std::result::Result<(), Status> {
        let undecodable = |what: &str| Status::new(UNDECODABLE, what.to_owned());
        match piece {
            Piece::Data { transfer, data } => {
                self.received.inc_by(data.len() as u64);
                // The rest of what was refused is dropped.
                if let Some(&(key, via)) = self.coming.get(&transfer) {
                    let result = self.session.inbox.data(Instant::now(), via, key, data, frame);
                    if result != Ok(Progress::Coming) {
                        self.coming.remove(&transfer);
                    }
                    self.answer(via, result.err());
                }
            }
            Piece::Message(bytes) => {
                let message = v1::PeerUp::decode(bytes).map_err(|e| undecodable(&e.to_string()))?;
                match message.part {
                    Some(Up::Push(push)) => {
                        let via = Via { link: self.number, transfer: push.transfer, queue: push.queue };
                        let begun = self.begin(via, &push);
                        self.answer(via, begun.err());
                    }
                    Some(Up::Failed(failed)) => {
                        // A session that has gone needs no news.
                        if let Err(e) = self.failed(failed) {
                            limited!(debug, peer = %self.service.conn.peer, "news of a transfer dropped: {e}");
                        }
                    }
                    _ => return Err(Status::invalid_argument("a part that this release does not know")),
                }
            }
        }
        Ok(())
    }

    /// Fails for what is not for the session that this link is for, as it was when the link was opened.
    fn check(&self, session: u64) -> Result<()> {
        if session != self.session.id {
            return Err(Error::Request("it is for another session than this link".into()));
        }
        if self.session.is_closed() || self.session.keys.is_renewed(self.age) {
            return Err(Error::Request("the session that it is for has ended, or was taken up again".into()));
        }
        Ok(())
    }

    fn begin(&mut self, via: Via, push: &v1::Push) -> Result<()> {
        self.check(push.session)?;
        let ticket = ticket::from_wire(&push.ticket)?;
        if self.coming.len() >= COMING || self.coming.contains_key(&push.transfer) {
            return Err(Error::Request("too many transfers under way, or one number used twice".into()));
        }
        let begun = self.session.inbox.push(Instant::now(), via, ticket, push.size)?;
        let (Begun::Accepted(key) | Begun::Early(key)) = begun;
        if push.size > 0 {
            self.coming.insert(push.transfer, (key, via));
        }
        if let Begun::Early(_) = begun {
            // An acceptance that does not know where its bytes come from may wait for this.
            self.session.progress.notify_waiters();
        }
        Ok(())
    }

    fn failed(&mut self, failed: v1::PushFailed) -> Result<()> {
        self.check(failed.session)?;
        let error = failed.error.ok_or_else(|| Error::Request("an error is missing".into()))?;
        // The name of the other server is put in front where it is known.
        let error = plain(error);
        let ticket = ticket::from_wire(&failed.ticket)?;
        let begun = self.session.inbox.failed(Instant::now(), self.number, ticket, error)?;
        if let Some(transfer) = begun {
            self.coming.remove(&transfer);
        }
        self.session.progress.notify_waiters();
        Ok(())
    }

    /// Tells the sender of what came to nothing. What nobody wants any more is no news.
    fn answer(&self, via: Via, failed: Option<Error>) {
        if let Some(error) = failed.filter(|e| *e != Error::Cancelled) {
            refuse(self.down, via, &error);
        }
    }
}

impl Drop for Inbound<'_> {
    fn drop(&mut self) {
        lock(&self.peers.inbound).remove(&self.number);
        self.service.conn.serves_a_link(false);
        let why = self.over.as_deref().unwrap_or("the connection has ended");
        self.session.inbox.link_lost(Instant::now(), self.number, self.from, why);
        if self.session.keys.is_renewed(self.age) {
            self.session.inbox.forget_link(self.number);
        }
        limited!(info, session = self.session.tag, peer = %self.service.conn.peer, "link of another server closed: {why}");
    }
}

/// An error as it was sent, without a name in front of it. A queue that was given up, as that of a client that is gone, is a loss like
/// that of the server: the client may take up both again.
fn plain(error: v1::Error) -> Error {
    match error.kind {
        Some(v1::error::Kind::Request(text)) => Error::Request(text),
        Some(v1::error::Kind::Misuse(text)) => Error::Misuse(text),
        Some(v1::error::Kind::Device(e)) => {
            Error::Device { device: e.device, op: Some(e.op).filter(|op| !op.is_empty()), detail: e.detail }
        }
        Some(v1::error::Kind::OutOfMemory(e)) => {
            Error::OutOfMemory { device: e.device, needed: e.needed, free: e.free }
        }
        Some(v1::error::Kind::Peer(e)) if !e.endpoint.is_empty() => {
            Error::Peer { endpoint: e.endpoint, detail: e.detail }
        }
        Some(v1::error::Kind::Timeout(e)) => {
            Error::Timeout { what: e.what, after: std::time::Duration::from_millis(e.after_ms) }
        }
        _ => Error::Peer { endpoint: String::new(), detail: "it has given up what was to send a tensor".into() },
    }
}

fn encode(part: Down) -> Bytes {
    let mut out = BytesMut::new();
    frame::push(&mut out, &v1::PeerDown { part: Some(part) });
    out.freeze()
}

/// Tells another server that a push came to nothing, if it still listens.
pub(super) fn refuse(down: &Answers, via: Via, error: &Error) {
    let Via { transfer, queue, .. } = via;
    let refused = v1::Refused { transfer, queue, error: Some(error::to_wire(error)) };
    if down.try_send(Ok(encode(Down::Refused(refused)))).is_err() {
        limited!(debug, "a refusal was not sent: {error}");
    }
}
