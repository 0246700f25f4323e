//! Both ends of a link between servers, spoken by hand: what a program does that is no server, or not the one that it says.
#![allow(dead_code, unreachable_pub, missing_docs)]

use crate::listen::{Listening, http2};
use crate::plain::{Conn, Http, hello, http, origin};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use outboard_proto::chunk::{self, ChunkReader, Direction, Piece};
use outboard_proto::grant::{Proofs, Route};
use outboard_proto::v1::control_reply::Reply;
use outboard_proto::v1::control_request::Request;
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_proto::v1::peer_up::Part;
use outboard_proto::v1::peers_client::PeersClient;
use outboard_proto::v1::{self, peer_down};
use outboard_proto::{frame, limits};
use outboard_rpc_server::Server;
use prost::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::body::Body;

/// A session of a client that needs no queue, and its questions about peers.
pub struct Plain {
    pub hello: v1::HelloResponse,
    pub peers: PeersClient<Conn>,
    pub origin: http::Uri,
    pub conn: Conn,
}

impl Plain {
    pub async fn new(server: &Server) -> Plain {
        Plain::over(http(server.local_addr()).await, server.local_addr()).await
    }

    pub async fn over(http: Http, addr: SocketAddr) -> Plain {
        let conn = Conn(http);
        let origin = origin(addr);
        let hello = hello(&mut OutboardClient::with_origin(conn.clone(), origin.clone())).await;
        Plain { hello, peers: PeersClient::with_origin(conn.clone(), origin.clone()), origin, conn }
    }

    pub fn session(&self) -> v1::Session {
        self.hello.session.clone().unwrap()
    }

    pub fn id(&self) -> u64 {
        self.session().id
    }

    /// The proofs of a link to this session from a server with this incarnation.
    pub fn proofs(&self, from: u64) -> Proofs {
        let route = Route { from, to: self.hello.incarnation, session: self.id() };
        Proofs::new(self.session().secret.as_ref().try_into().unwrap(), route)
    }

    /// What opens such a link.
    pub fn open(&self, from: u64) -> v1::OpenPeer {
        let grant = bytes(self.proofs(from).grant);
        let (to, session) = (self.hello.incarnation, self.id());
        v1::OpenPeer { min_version: 1, max_version: 1, from, to, session, grant }
    }

    /// What another server is told of this session.
    pub fn target(&self, from: u64, address: impl ToString) -> v1::PeerTarget {
        let route = Route { from, to: self.hello.incarnation, session: self.id() };
        target_of(self.session().secret.as_ref().try_into().unwrap(), route, address)
    }

    /// The obstacle that the server gives, if it can be asked at all.
    pub async fn reach(&mut self, target: v1::PeerTarget) -> Result<String, tonic::Status> {
        let request = v1::ReachRequest { session: Some(self.session()), target: Some(target) };
        Ok(self.peers.reach(request).await?.into_inner().obstacle)
    }

    /// Takes the session up again, under another secret.
    pub async fn resume(&mut self) {
        let request = v1::Resume { session: self.hello.session.clone(), ..Default::default() };
        match self.control(vec![Request::Resume(request)]).await {
            Reply::Resumed(resumed) => self.hello.session = resumed.session,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the session.
    pub async fn goodbye(&self) {
        let all = vec![Request::Attach(self.session()), Request::Goodbye(v1::Goodbye {})];
        let last = self.control(all).await;
        assert!(matches!(last, Reply::Bye(_)), "{last:?}");
    }

    /// The answer to the last of some requests, each of which is answered.
    async fn control(&self, requests: Vec<Request>) -> Reply {
        let count = requests.len();
        let requests = requests.into_iter().map(|request| v1::ControlRequest { request: Some(request) });
        // The stream stays open until the last answer.
        let (to, stream) = mpsc::unbounded_channel();
        requests.for_each(|request| to.send(request).unwrap());
        let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(stream);
        let mut client = OutboardClient::with_origin(self.conn.clone(), self.origin.clone());
        let mut replies = client.control(stream).await.unwrap().into_inner();
        let mut last = None;
        for _ in 0..count {
            last = replies.message().await.unwrap().unwrap().reply;
        }
        drop(to);
        last.unwrap()
    }

    /// A stream of commands to a new queue on the first device.
    pub async fn queue(&self, number: u64) -> Commands {
        let mut client = OutboardClient::with_origin(self.conn.clone(), self.origin.clone());
        let (to, rx) = mpsc::unbounded_channel();
        let open =
            v1::OpenQueue { session: Some(self.session()), queue: number, device: self.hello.devices[0].name.clone() };
        let commands = Commands { to, number };
        commands.send(v1::command::Command::Open(open));
        let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
        let mut replies = client.queue(stream).await.unwrap().into_inner();
        tokio::spawn(async move { while let Ok(Some(_)) = replies.message().await {} });
        commands
    }
}

pub struct Commands {
    to: mpsc::UnboundedSender<v1::Command>,
    pub number: u64,
}

impl Commands {
    pub fn send(&self, command: v1::command::Command) {
        self.to.send(v1::Command { command: Some(command) }).unwrap();
    }
}

/// What a server is told of a link, by whoever knows the secret of the session that it leads to.
pub fn target_of(secret: &[u8; 32], route: Route, address: impl ToString) -> v1::PeerTarget {
    let Proofs { grant, welcome } = Proofs::new(secret, route);
    let (grant, welcome) = (bytes(grant), bytes(welcome));
    v1::PeerTarget { address: address.to_string(), incarnation: route.to, session: route.session, grant, welcome }
}

pub fn bytes(proof: [u8; 32]) -> Bytes {
    Bytes::copy_from_slice(&proof)
}

/// A stream to a server in the name of another one.
pub struct Fake {
    pub to: mpsc::UnboundedSender<Bytes>,
    from: Incoming,
    frames: frame::FrameReader,
    http: Http,
}

impl Fake {
    pub async fn open(addr: SocketAddr) -> Fake {
        let (to, mut rx) = mpsc::unbounded_channel::<Bytes>();
        let body = http_body_util::StreamBody::new({
            let (tx, out) = mpsc::channel(16);
            tokio::spawn(async move {
                while let Some(bytes) = rx.recv().await {
                    if tx.send(Ok::<_, Infallible>(Frame::data(bytes))).await.is_err() {
                        return;
                    }
                }
            });
            tokio_stream::wrappers::ReceiverStream::new(out)
        });
        let request = http::Request::post(format!("http://{addr}/outboard.v1.Peer/Push"))
            .header("content-type", "application/grpc")
            .body(Body::new(body))
            .unwrap();
        let mut http = http(addr).await;
        let from = http.send_request(request).await.unwrap().into_body();
        Fake { to, from, frames: frame::FrameReader::new(limits::MAX_PEER_MESSAGE), http }
    }

    /// A link that the server has welcomed.
    pub async fn link(addr: SocketAddr, open: v1::OpenPeer) -> Fake {
        let mut fake = Fake::open(addr).await;
        fake.say(Part::Open(open));
        match fake.next().await.unwrap() {
            peer_down::Part::Welcome(_) => fake,
            other => panic!("{other:?}"),
        }
    }

    /// Its connection, for other calls.
    pub fn conn(&self) -> Conn {
        Conn(self.http.clone())
    }

    pub fn say(&self, part: Part) {
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(part) });
        self.to.send(out.freeze()).unwrap();
    }

    pub fn chunk(&self, transfer: u64, data: Bytes) {
        self.to.send(chunk::head(Direction::Up, transfer, &data)).unwrap();
        self.to.send(data).unwrap();
    }

    pub fn push(&self, transfer: u64, session: u64, ticket: impl Into<Vec<u8>>, size: u64) {
        let ticket = ticket.into().into();
        self.say(Part::Push(v1::Push { transfer, session, ticket, size, queue: 1 }));
    }

    pub fn failed(&self, session: u64, ticket: impl Into<Vec<u8>>, why: &str) {
        let error = Some(v1::Error { kind: Some(v1::error::Kind::Request(why.into())) });
        self.say(Part::Failed(v1::PushFailed { session, ticket: ticket.into().into(), error }));
    }

    /// The next message, or the status at the end; the end of the connection is one, too.
    pub async fn next(&mut self) -> Result<peer_down::Part, String> {
        let wait = async {
            loop {
                if let Some(message) = self.frames.message().unwrap() {
                    return Ok(v1::PeerDown::decode(message).unwrap().part.unwrap());
                }
                match self.from.frame().await {
                    None => return Err("the end".to_owned()),
                    Some(Err(e)) => return Err(e.to_string()),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => self.frames.add(&data),
                        Err(trailers) => {
                            let status = tonic::Status::from_header_map(trailers.trailers_ref().unwrap()).unwrap();
                            return Err(status.message().to_owned());
                        }
                    },
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("no answer")
    }

    /// The next message refuses this transfer, for this reason.
    pub async fn refuses(&mut self, transfer: u64, why: &str) {
        let (refused, text) = self.refused().await;
        assert!(refused == transfer && text.contains(why), "{refused}: {text}, not {transfer}: {why}");
    }

    /// Whether the connection has ended.
    pub async fn is_closed(&mut self) -> bool {
        let wait = async {
            while !self.http.is_closed() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(2), wait).await.is_ok()
    }

    /// The number and the text of the next refusal.
    pub async fn refused(&mut self) -> (u64, String) {
        match self.next().await.unwrap() {
            peer_down::Part::Refused(refused) => match refused.error.unwrap().kind.unwrap() {
                v1::error::Kind::Request(text) => (refused.transfer, text),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// What a program says, that other servers are led to, to the first message.
pub type Answer = Arc<dyn Fn(&v1::OpenPeer) -> peer_down::Part + Send + Sync>;

/// The welcome of a server whose sessions all have this secret.
pub fn proves(secret: [u8; 32]) -> Answer {
    Arc::new(move |open: &v1::OpenPeer| {
        let route = Route { from: open.from, to: open.to, session: open.session };
        let proof = bytes(Proofs::new(&secret, route).welcome);
        peer_down::Part::Welcome(v1::Welcome { version: 1, proof })
    })
}

/// A program that other servers are led to. It keeps what they say.
pub struct FakeServer {
    pub addr: SocketAddr,
    heard: Arc<Mutex<Vec<Part>>>,
    bytes: Arc<AtomicU64>,
    _listening: Listening,
}

impl FakeServer {
    /// Answers with a welcome of this version and this proof.
    pub fn welcomes(version: u32, proof: Bytes) -> FakeServer {
        let welcome = move |_: &v1::OpenPeer| peer_down::Part::Welcome(v1::Welcome { version, proof: proof.clone() });
        FakeServer::start(Arc::new(welcome))
    }

    pub fn start(answer: Answer) -> FakeServer {
        let (heard, bytes) = (Arc::<Mutex<Vec<Part>>>::default(), Arc::<AtomicU64>::default());
        let (to, received) = (heard.clone(), bytes.clone());
        let listening = Listening::start(move |socket| {
            let (answer, to, received) = (answer.clone(), to.clone(), received.clone());
            let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                let (answer, to, received) = (answer.clone(), to.clone(), received.clone());
                async move { Ok::<_, Infallible>(respond(request, answer, to, received)) }
            });
            let (builder, io) = http2(socket);
            tokio::spawn(builder.serve_connection(io, service));
        });
        FakeServer { addr: listening.addr, heard, bytes, _listening: listening }
    }

    /// All that was said to it, without payloads.
    pub fn heard(&self) -> Vec<Part> {
        self.heard.lock().unwrap().clone()
    }

    /// Bytes of payloads that came.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// How many links were opened.
    pub fn opened(&self) -> usize {
        self.heard().iter().filter(|part| matches!(part, Part::Open(_))).count()
    }

    /// Whether anything came but openings.
    pub fn got_something(&self) -> bool {
        self.bytes() > 0 || self.heard().len() > self.opened()
    }
}

fn respond(
    request: http::Request<Incoming>,
    answer: Answer,
    heard: Arc<Mutex<Vec<Part>>>,
    bytes: Arc<AtomicU64>,
) -> http::Response<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
    let (down, out) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(16);
    tokio::spawn(async move {
        let mut body = request.into_body();
        let mut reader = ChunkReader::with_messages(Direction::Up, limits::MAX_PEER_MESSAGE);
        loop {
            let Some(Ok(frame)) = body.frame().await else { return };
            let mut input = frame.into_data().unwrap_or_default();
            while let Some(piece) = reader.next(&mut input).unwrap() {
                let message = match piece {
                    Piece::Data { data, .. } => {
                        bytes.fetch_add(data.len() as u64, Ordering::SeqCst);
                        continue;
                    }
                    Piece::Message(message) => message,
                };
                let part = v1::PeerUp::decode(message).unwrap().part.unwrap();
                heard.lock().unwrap().push(part.clone());
                let Part::Open(open) = part else { continue };
                let mut out = BytesMut::new();
                frame::push(&mut out, &v1::PeerDown { part: Some(answer(&open)) });
                let _ = down.send(Ok(Frame::data(out.freeze()))).await;
            }
        }
    });
    let body = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(out));
    http::Response::builder().header("content-type", "application/grpc").body(BodyExt::boxed(body)).unwrap()
}
