//! One connection, or one stream of a QUIC connection: HTTP/2 on a thread of its own, and the services that it can call.

use crate::accounts::Share;
use crate::io::Traffic;
use crate::limits::{AFTER_SESSIONS, FIRST_MESSAGE, HEADERS, IDLE, STREAMS, TICK};
use crate::lock;
use crate::logs::limited;
use crate::peers::inbound;
use crate::server::Shared;
use crate::service::{Service, bulk};
use crate::session::Session;
use crate::trust::Trust;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outboard_net::{QuicIncoming, Stream, accept};
use outboard_proto::limits::{HTTP2_BULK_STREAM_WINDOW, HTTP2_BULK_WINDOW, HTTP2_FRAME, MAX_MESSAGE};
use outboard_proto::v1::outboard_server::OutboardServer;
use outboard_proto::v1::peers_server::PeersServer;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tonic::body::Body;
use tonic::codegen::Service as _;

/// What the streams of a connection know about it.
pub(crate) struct Conn {
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) traffic: Arc<Traffic>,
    /// Sessions that have had streams on it.
    sessions: Mutex<Vec<Weak<Session>>>,
    /// Something came that cannot be decoded.
    broken: Notify,
    /// The name that the client has proven, by its certificate or a token, and its place among that client's connections.
    who: OnceLock<(String, Share)>,
    /// It has shown a token, or the secret of a session.
    authorised: AtomicBool,
    /// Links of other servers that are open on it: clients have proven that they want them.
    links: AtomicUsize,
    /// When something was last asked for. Bytes alone can be trickled for ever.
    asked: Mutex<Instant>,
}

impl Conn {
    pub(crate) fn new(number: u64, peer: SocketAddr) -> Conn {
        Conn {
            number,
            peer,
            traffic: Arc::new(Traffic::new()),
            sessions: Mutex::default(),
            broken: Notify::new(),
            who: OnceLock::new(),
            authorised: AtomicBool::new(false),
            links: AtomicUsize::new(0),
            asked: Mutex::new(Instant::now()),
        }
    }

    /// Keeps the first name that the client has proven. An error if it has too many connections.
    pub(crate) fn is(&self, shared: &Shared, who: Option<String>) -> outboard_core::Result<()> {
        if let Some(who) = who.filter(|_| self.who.get().is_none()) {
            let share = shared.accounts.of(Some(&who), self.peer.ip()).connection();
            let share = share.inspect_err(|_| shared.metrics.refused("connections of one client"))?;
            let _ = self.who.set((who, share));
        }
        Ok(())
    }

    /// The name that the client has proven.
    pub(crate) fn who(&self) -> Option<&str> {
        self.who.get().map(|(who, _)| who.as_str())
    }

    /// Notes that the client may be here.
    pub(crate) fn authorise(&self) {
        self.authorised.store(true, Ordering::Release);
    }

    /// Whether it has shown that it may.
    pub(crate) fn is_authorised(&self) -> bool {
        self.authorised.load(Ordering::Acquire)
    }

    /// Notes that a link of another server begins here, or that one has ended.
    pub(crate) fn serves_a_link(&self, begins: bool) {
        if begins {
            self.links.fetch_add(1, Ordering::AcqRel);
        } else {
            self.links.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn has_a_link(&self) -> bool {
        self.links.load(Ordering::Acquire) > 0
    }

    /// When its peer last did something that lets it stay: for a client a call, for another server any sign of life.
    fn active(&self) -> Instant {
        if self.has_a_link() { self.traffic.heard() } else { *lock(&self.asked) }
    }

    /// Whether its peer may stay for longer than it takes to say who it is.
    fn may_stay(&self, trust: &Trust) -> bool {
        trust.tokens.is_none() || self.is_authorised() || self.has_a_link()
    }

    /// Notes that a session has a stream here.
    pub(crate) fn attach(&self, shared: &Shared, session: &Arc<Session>) {
        self.traffic.is_of(|| shared.metrics.client(session.account.name()));
        let mut all = lock(&self.sessions);
        if !all.iter().any(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(session))) {
            // The last one that has ended is kept, to know that there were some.
            all.retain(is_live);
            all.push(Arc::downgrade(session));
        }
    }

    /// What names the session that has streams here, in the log.
    pub(crate) fn session_tag(&self) -> Option<String> {
        lock(&self.sessions).iter().rev().find_map(Weak::upgrade).map(|session| session.tag.clone())
    }

    /// Ends the connection: its bytes cannot be trusted any more.
    pub(crate) fn give_up(&self) {
        self.broken.notify_one();
    }

    /// Whether sessions had streams here, and whether one of them lives.
    fn use_of(&self) -> (bool, bool) {
        let all = lock(&self.sessions);
        (!all.is_empty(), all.iter().any(is_live))
    }
}

/// Tells when the server stops.
pub(crate) type Stopped = watch::Receiver<bool>;

fn is_live(session: &Weak<Session>) -> bool {
    session.upgrade().is_some_and(|s| !s.is_closed())
}

/// An event loop for one thread.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Serves a connection on TCP, with TLS if the server has a certificate.
pub(crate) fn serve_tcp(shared: &Arc<Shared>, conn: &Arc<Conn>, socket: std::net::TcpStream, stopped: Stopped) {
    on_a_loop(conn, async {
        let socket = match socket.set_nodelay(true).and_then(|()| tokio::net::TcpStream::from_std(socket)) {
            Ok(socket) => socket,
            Err(e) => return limited!(debug, peer = %conn.peer, "lost at once: {e}"),
        };
        let mut stop = stopped.clone();
        let accepted = tokio::select! {
            accepted = accept(socket, shared.trust.tls.as_ref(), conn.traffic.clone()) => accepted,
            _ = stop.wait_for(|&s| s) => return,
        };
        match accepted {
            Ok(accepted) => match conn.is(shared, accepted.who) {
                Ok(()) => serve(shared, conn, accepted.stream, stopped).await,
                Err(why) => refused(conn, &why),
            },
            Err(why) => {
                shared.metrics.refused("handshake");
                refused(conn, &why);
            }
        }
    });
}

/// Serves a QUIC connection: its first stream, that of the commands, here, where its packets are made and read; each of the
/// others on a thread of its own. It ends with its first stream.
pub(crate) fn serve_quic(shared: &Arc<Shared>, conn: &Arc<Conn>, incoming: QuicIncoming, stopped: Stopped) {
    on_a_loop(conn, async {
        let quic = match incoming.accept().await {
            Ok(quic) => quic,
            Err(why) => {
                shared.metrics.refused("handshake");
                return refused(conn, &why);
            }
        };
        if let Err(why) = conn.is(shared, quic.who.clone()) {
            refused(conn, &why);
            return quic.close().await;
        }
        let first = match tokio::time::timeout(FIRST_MESSAGE, quic.stream(conn.traffic.clone())).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(why)) => return refused(conn, &why),
            Err(_) => return refused(conn, &"it has opened no stream"),
        };
        let others = async {
            loop {
                let traffic = Arc::new(Traffic::new());
                // The end of the connection is that of its first stream, too.
                let Ok(stream) = quic.stream(traffic.clone()).await else { return std::future::pending().await };
                let (stopped, who, peer) = (stopped.clone(), quic.who.clone(), conn.peer);
                shared.thread(conn.peer, move |shared, number| {
                    let conn = Arc::new(Conn { traffic, ..Conn::new(number, peer) });
                    match conn.is(shared, who) {
                        Ok(()) => on_a_loop(&conn, serve(shared, &conn, stream, stopped)),
                        Err(why) => refused(&conn, &why),
                    }
                });
            }
        };
        tokio::select! {
            () = serve(shared, conn, first, stopped.clone()) => {}
            () = others => {}
        }
        quic.close().await;
    });
}

/// A line about a client that was not let in.
fn refused(conn: &Conn, why: &dyn std::fmt::Display) {
    limited!(warn, peer = %conn.peer, "a connection was refused: {why}");
}

/// Runs the work of a connection on an event loop of its own.
fn on_a_loop(conn: &Conn, work: impl Future<Output = ()>) {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(e) => return limited!(warn, peer = %conn.peer, "no event loop for a connection: {e}"),
    };
    runtime.block_on(work);
    // Tasks of streams hold sessions; they end with the loop that ran them.
    runtime.shutdown_timeout(Duration::from_millis(100));
}

/// Serves one connection until it ends, goes idle, or the server stops.
async fn serve(shared: &Arc<Shared>, conn: &Arc<Conn>, stream: Stream<Arc<Traffic>>, mut stopped: Stopped) {
    let io = TokioIo::new(stream);
    let calls = Calls::new(shared, conn);
    let service = service_fn(move |request| {
        let calls = calls.clone();
        async move { Ok::<_, Infallible>(calls.call(request).await) }
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_frame_size(HTTP2_FRAME)
        .initial_stream_window_size(HTTP2_BULK_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_BULK_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .serve_connection(io, service);
    let mut http = std::pin::pin!(http);
    let mut tick = tokio::time::interval(TICK);
    let mut over_since = None;
    loop {
        tokio::select! {
            ended = http.as_mut() => {
                if let Err(e) = ended {
                    limited!(debug, peer = %conn.peer, conn = conn.number, "connection ended: {e}");
                }
                break;
            }
            _ = stopped.wait_for(|&s| s) => break,
            () = conn.broken.notified() => break,
            _ = tick.tick() => {
                let (used, live) = conn.use_of();
                let over = match (used, live) {
                    (_, true) => None,
                    // Time for last answers.
                    (true, false) => Some(*over_since.get_or_insert_with(Instant::now) + AFTER_SESSIONS),
                    // Those who have yet to show a token cannot stay by pinging.
                    (false, false) if !conn.may_stay(&shared.trust) => Some(conn.traffic.start() + IDLE),
                    (false, false) => Some(conn.active() + IDLE),
                };
                if over.is_none() {
                    over_since = None;
                }
                if over.is_some_and(|end| Instant::now() > end) {
                    limited!(debug, peer = %conn.peer, conn = conn.number, "unused connection closed");
                    break;
                }
            }
        }
    }
}

/// The services of a connection.
#[derive(Clone)]
struct Calls {
    service: Service,
    outboard: OutboardServer<Service>,
    peers: PeersServer<Service>,
    health: tonic_health::pb::health_server::HealthServer<tonic_health::server::HealthService>,
}

impl Calls {
    fn new(shared: &Arc<Shared>, conn: &Arc<Conn>) -> Calls {
        let service = Service { shared: shared.clone(), conn: conn.clone() };
        let health = tonic_health::server::HealthService::from_health_reporter(shared.health.clone());
        Calls {
            outboard: OutboardServer::new(service.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            peers: PeersServer::new(service.clone()),
            health: tonic_health::pb::health_server::HealthServer::new(health),
            service,
        }
    }

    async fn call(mut self, request: Request<Incoming>) -> Response<Body> {
        *lock(&self.service.conn.asked) = Instant::now();
        let path = request.uri().path();
        let answer = match path.split('/').nth(1).unwrap_or_default() {
            "outboard.v1.Bulk" if path == "/outboard.v1.Bulk/Transfer" => Ok(bulk::transfer(self.service, request)),
            "outboard.v1.Peer" if path == "/outboard.v1.Peer/Push" => Ok(inbound::push(self.service, request)),
            "outboard.v1.Peers" => self.peers.call(request).await,
            "outboard.v1.Outboard" => self.outboard.call(request).await,
            "grpc.health.v1.Health" => self.health.call(request).await,
            "grpc.reflection.v1.ServerReflection" => match reflection().build_v1() {
                Ok(mut reflection) => reflection.call(request).await,
                Err(_) => Ok(unimplemented()),
            },
            "grpc.reflection.v1alpha.ServerReflection" => match reflection().build_v1alpha() {
                Ok(mut reflection) => reflection.call(request).await,
                Err(_) => Ok(unimplemented()),
            },
            _ => Ok(unimplemented()),
        };
        match answer {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Built for each call: it is rare.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(outboard_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn unimplemented() -> Response<Body> {
    tonic::Status::unimplemented("this is an Outboard rpc-server; it has no such service").into_http()
}
