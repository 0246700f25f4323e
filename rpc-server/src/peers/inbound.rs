//! The receiving end of a link: the stream of another server. Spoken by hand, as the bulk streams are: payloads go from the
//! frames of the connection to the queue that accepts them without a copy.

use super::Peers;
use super::inbox::{Key, Via};
use crate::limits::{FIRST_MESSAGE, TICK};
use crate::lock;
use crate::logs::limited;
use crate::peers::dial::DEAD;
use crate::service::{Service, UNDECODABLE};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use outboard_core::{Error, Result, Ticket};
use outboard_proto::chunk::{ChunkReader, Direction, Piece};
use outboard_proto::limits::MAX_PEER_MESSAGE;
use outboard_proto::v1::peer_down::Part as Down;
use outboard_proto::v1::peer_up::Part as Up;
use outboard_proto::{SECRET_BYTES, error, frame, pick_version, v1};
use prometheus_client::metrics::counter::Counter;
use prost::Message;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

/// Messages that wait for the other server; refusals beyond that are only logged here.
const ANSWERS: usize = 256;
/// Transfers of one stream that are under way at a time.
const MAX_COMING: usize = 1024;

/// What is said to the other server: messages, and the status if it is not a good one.
pub(super) type Answers = mpsc::Sender<Answer>;
type Answer = std::result::Result<Bytes, Status>;

/// Serves the stream of another server.
pub(crate) fn push(service: Service, request: Request<Incoming>) -> Response<Body> {
    let (down, answers) = mpsc::channel(ANSWERS);
    tokio::spawn(async move {
        if let Err(status) = run(&service, request.into_body(), &down).await {
            if status.code() == UNDECODABLE {
                service.conn.give_up();
            }
            service.complain(None, "link of another server refused", &status.message());
            let _ = down.send(Err(status)).await;
        }
    });
    let mut response = Response::new(Body::new(DownBody { answers, ended: false }));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    response
}

async fn run(service: &Service, mut body: Incoming, down: &Answers) -> std::result::Result<(), Status> {
    let mut reader = ChunkReader::with_messages(Direction::Up, MAX_PEER_MESSAGE);
    let mut input = Bytes::new();
    let first = tokio::time::timeout(FIRST_MESSAGE, next(&mut body, &mut reader, &mut input)).await;
    let first = match first.map_err(|_| Status::deadline_exceeded("the stream has said nothing"))? {
        Ok(Some(Piece::Message(bytes))) => v1::PeerUp::decode(bytes).ok().and_then(|m| m.part),
        Ok(_) => None,
        Err(end) => return end.status(),
    };
    let Some(Up::Open(open)) = first else {
        return Err(Status::invalid_argument("the first message must open the link"));
    };
    let peers = &service.shared.peers;
    if open.to != peers.incarnation {
        let why = "another server answers at this address (or the one that was meant, after a restart)";
        return Err(Status::failed_precondition(why));
    }
    let version = pick_version(open.min_version, open.max_version).ok_or_else(|| {
        Status::failed_precondition("the servers speak no common protocol version; install the same release on both")
    })?;
    service.conn.serves_a_link();
    let _ = down.send(Ok(encode(Down::Welcome(v1::Welcome { version, ..Default::default() })))).await;
    let conn = service.conn.number;
    limited!(info, peer = %service.conn.peer, "link of another server opened");
    let received = peers.metrics.received_from(&service.conn.peer.ip().to_string());
    let mut inbound = Inbound { service, peers, down, coming: HashMap::new(), from: open.from, received, over: None };
    lock(&peers.inbound).insert(conn, (down.clone(), service.conn.peer));
    peers.inbox.opened(open.from);
    let mut tick = tokio::time::interval(TICK);
    let end = loop {
        tokio::select! {
            biased;
            piece = next(&mut body, &mut reader, &mut input) => match piece {
                Ok(Some(piece)) => if let Err(status) = inbound.piece(piece) { break End::Broken(status) },
                Ok(None) => break End::Lost("the other server closed it".into()),
                Err(end) => break end,
            },
            _ = tick.tick() => {
                if service.conn.traffic.heard().elapsed() > DEAD {
                    break End::Lost("the other server has stopped answering (it hangs, or the network is cut)".into());
                }
            }
        }
    };
    inbound.over = Some(end.to_string());
    drop(inbound);
    end.status()
}

/// How a stream ended.
enum End {
    Lost(String),
    Broken(Status),
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

/// The next piece of the stream; `None` at its end.
async fn next(
    body: &mut Incoming,
    reader: &mut ChunkReader,
    input: &mut Bytes,
) -> std::result::Result<Option<Piece>, End> {
    loop {
        let piece = reader.next(input).map_err(|e| End::Broken(Status::new(UNDECODABLE, e.to_string())))?;
        if piece.is_some() {
            return Ok(piece);
        }
        match body.frame().await {
            Some(Ok(frame)) => *input = frame.into_data().unwrap_or_default(),
            Some(Err(e)) => return Err(End::Lost(e.to_string())),
            None => return Ok(None),
        }
    }
}

/// An open stream. Dropped, by whatever way it ends, it takes what was to come on it with it.
struct Inbound<'a> {
    service: &'a Service,
    peers: &'a Peers,
    down: &'a Answers,
    /// Transfers whose bytes are coming.
    coming: HashMap<u64, (Key, Via)>,
    from: u64,
    received: Counter,
    over: Option<String>,
}

impl Inbound<'_> {
    fn piece(&mut self, piece: Piece) -> std::result::Result<(), Status> {
        let undecodable = |what: &str| Status::new(UNDECODABLE, what.to_owned());
        match piece {
            Piece::Data { transfer, data } => {
                self.received.inc_by(data.len() as u64);
                // The rest of what was refused is dropped.
                if let Some(&(key, via)) = self.coming.get(&transfer) {
                    let result = self.peers.inbox.data(Instant::now(), via, key, data);
                    if !matches!(result, Ok(false)) {
                        self.coming.remove(&transfer);
                    }
                    self.answer(via, result.err());
                }
            }
            Piece::Message(bytes) => {
                let message = v1::PeerUp::decode(bytes).map_err(|e| undecodable(&e.to_string()))?;
                match message.part {
                    Some(Up::Push(push)) => {
                        let conn = self.service.conn.number;
                        let via = Via { conn, transfer: push.transfer, queue: push.queue };
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

    fn session(&self, id: u64) -> Result<std::sync::Arc<crate::session::Session>> {
        let session = lock(&self.service.shared.sessions).get(&id).cloned();
        session.filter(|s| !s.is_closed()).ok_or_else(|| Error::Request("the session that it is for has ended".into()))
    }

    fn begin(&mut self, via: Via, push: &v1::Push) -> Result<()> {
        let session = self.session(push.session)?;
        let ticket = ticket(&push.ticket)?;
        if self.coming.len() >= MAX_COMING || self.coming.contains_key(&push.transfer) {
            return Err(Error::Request("too many transfers under way, or one number used twice".into()));
        }
        let (key, early) = self.peers.inbox.push(Instant::now(), via, session.id, ticket, push.size)?;
        if push.size > 0 {
            self.coming.insert(push.transfer, (key, via));
        }
        if early {
            // An acceptance that does not know where its bytes come from may wait for this.
            session.progress.notify_waiters();
        }
        Ok(())
    }

    fn failed(&mut self, failed: v1::PushFailed) -> Result<()> {
        let session = self.session(failed.session)?;
        let error = failed.error.ok_or_else(|| Error::Request("an error is missing".into()))?;
        // The name of the other server is put in front where it is known.
        let error = plain(error);
        let conn = self.service.conn.number;
        self.peers.inbox.failed(Instant::now(), conn, session.id, ticket(&failed.ticket)?, error)?;
        session.progress.notify_waiters();
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
        let conn = self.service.conn.number;
        lock(&self.peers.inbound).remove(&conn);
        let why = self.over.as_deref().unwrap_or("the connection has ended");
        self.peers.inbox.lost(Instant::now(), conn, self.from, why);
        limited!(info, peer = %self.service.conn.peer, "link of another server closed: {why}");
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

fn ticket(bytes: &[u8]) -> Result<Ticket> {
    let ticket: Option<[u8; SECRET_BYTES]> = bytes.try_into().ok();
    ticket.map(Ticket).ok_or_else(|| Error::Request(format!("a ticket has {SECRET_BYTES} bytes, not {}", bytes.len())))
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

/// Messages on their way to the other server, and the status at the end.
struct DownBody {
    answers: mpsc::Receiver<Answer>,
    ended: bool,
}

impl HttpBody for DownBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let status = match self.answers.poll_recv(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(message))) => return Poll::Ready(Some(Ok(Frame::data(message)))),
            Poll::Ready(Some(Err(status))) => status,
            Poll::Ready(None) => Status::ok(""),
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        // Fails only for a message that cannot be a header; then the code alone has to do.
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", http::HeaderValue::from(status.code() as i32));
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}
