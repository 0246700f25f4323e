//! One connection, or one stream of a QUIC connection: HTTP/2 on a thread of its own, and the services that it can call.

use crate::accounts::{Account, AccountShare};
use crate::http2::{self, Incoming};
use crate::io::Traffic;
use crate::limits::{
    AFTER_SESSIONS, EARLY_CALLS, EARLY_WINDOW, FIRST_MESSAGE, IDLE, QUIC_NARROW, QUIC_WIDE, STRANGER, STREAM_WINDOW,
    TICK, WINDOW, early_bytes,
};
use crate::lock;
use crate::logs::limited;
use crate::places::{ConnectionPlace, Handshake, Leaves};
use crate::server::Shared;
use crate::service::{Service, call};
use crate::session::Session;
use http::{Request, Response};
use outboard_core::{Error, Result};
use outboard_net::{QuicConnection, QuicIncoming, Stream, accept};
use outboard_proto::limits::{HTTP2_BULK_STREAM_WINDOW, HTTP2_BULK_WINDOW};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::Status;
use tonic::body::Body;

/// What the streams of a connection know about it.
pub(crate) struct Conn {
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) traffic: Arc<Traffic>,
    place: Arc<ConnectionPlace>,
    /// The name in its client's certificate.
    named: Option<String>,
    /// Sessions that have had streams on it.
    sessions: Mutex<Vec<Weak<Session>>>,
    /// Whose it is, once its client has shown who it is, and its place among the connections of that client.
    owner: OnceLock<(Arc<Account>, AccountShare)>,
    /// It is a link of another server, which has shown no more than that its client wants the link.
    only_links: AtomicBool,
    /// How much may be in flight.
    width: watch::Sender<Width>,
    /// And on the QUIC connection below, if it is the first stream of one.
    below: watch::Sender<Width>,
    /// The right to be wide, or that below.
    wide: OnceLock<AccountShare>,
    /// Places for calls before that.
    early_calls: Arc<Semaphore>,
    wrong_tokens: AtomicU32,
    /// A link of another server is open on it: a client has proven that it wants it.
    link: AtomicBool,
    /// When something was last asked for. Bytes alone can be trickled for ever.
    asked: Mutex<Instant>,
    /// Of a further stream of a QUIC connection: the first one, that of the commands.
    first: Option<Arc<Conn>>,
}

/// How much may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Width {
    /// Its client has not shown who it is.
    Early,
    /// Commands, and bulk data where its client has wide connections enough.
    Narrow,
    /// Bulk data.
    Wide,
}

impl Width {
    /// Bytes on one stream. Those of a stranger are bounded by the window of the connection.
    pub(crate) fn stream(self) -> u32 {
        match self {
            Width::Early | Width::Narrow => STREAM_WINDOW,
            Width::Wide => HTTP2_BULK_STREAM_WINDOW,
        }
    }

    /// Bytes on the connection.
    pub(crate) fn connection(self) -> u32 {
        match self {
            Width::Early => EARLY_WINDOW,
            Width::Narrow => WINDOW,
            Width::Wide => HTTP2_BULK_WINDOW,
        }
    }
}

/// A place of a call, taken until its stream is closed and its tasks have ended.
pub(crate) enum CallPlace {
    Early { _permit: OwnedSemaphorePermit },
    Client { _share: AccountShare },
}

impl Conn {
    /// A connection of a stranger, in a place for that.
    pub(crate) fn new(shared: &Shared, number: u64, peer: SocketAddr, place: Arc<ConnectionPlace>) -> Conn {
        Conn {
            number,
            peer,
            traffic: Arc::new(Traffic::new(early_bytes(&shared.limits.session))),
            place,
            named: None,
            sessions: Mutex::default(),
            owner: OnceLock::new(),
            only_links: AtomicBool::new(false),
            width: watch::Sender::new(Width::Early),
            below: watch::Sender::new(Width::Early),
            wide: OnceLock::new(),
            early_calls: Arc::new(Semaphore::new(EARLY_CALLS)),
            wrong_tokens: AtomicU32::new(0),
            link: AtomicBool::new(false),
            asked: Mutex::new(Instant::now()),
            first: None,
        }
    }

    /// Its client has proven this name with a certificate. Who needs no token has shown with it who it is.
    fn with_certificate(mut self, shared: &Shared, name: Option<String>) -> Result<Conn> {
        self.named = name;
        if self.named.is_some() && shared.trust.tokens.is_none() {
            self.authorise(&shared.accounts.of(self.named.as_deref(), self.peer.ip()))?;
        }
        Ok(self)
    }

    /// The name that its client has proven.
    pub(crate) fn who(&self) -> Option<&str> {
        let owner = self.owner.get().and_then(|(account, _)| account.name());
        owner.or(self.named.as_deref())
    }

    /// The account of its client: of the name that it has proven with a certificate, or now with a token, or of its address.
    pub(crate) fn account(&self, shared: &Shared, token: Option<&str>) -> Arc<Account> {
        match self.owner.get() {
            Some((account, _)) => account.clone(),
            None => shared.accounts.of(self.named.as_deref().or(token), self.peer.ip()),
        }
    }

    /// Its client has shown who it is: that of this account. An error if that has too many connections.
    pub(crate) fn authorise(&self, account: &Arc<Account>) -> Result<()> {
        if self.owner.get().is_some() {
            return Ok(());
        }
        let share = self.place.becomes_a_clients(account)?;
        self.belongs_to(account.clone(), share);
        Ok(())
    }

    /// Another server has shown that a client of this account wants it to send tensors here. That lets it stay, and do nothing else.
    pub(crate) fn authorise_link(&self, account: &Arc<Account>) -> Result<()> {
        if self.owner.get().is_none() {
            self.only_links.store(true, Ordering::Release);
            self.authorise(account)?;
        }
        self.carries_bulk();
        Ok(())
    }

    fn belongs_to(&self, account: Arc<Account>, share: AccountShare) {
        let _ = self.owner.set((account, share));
        self.traffic.trust();
        self.width.send_replace(Width::Narrow);
        self.below.send_replace(Width::Narrow);
    }

    /// Whether its client has shown who it is.
    pub(crate) fn is_authorised(&self) -> bool {
        self.owner.get().is_some() && !self.only_links()
    }

    /// Whether it is a link of another server, and nothing else.
    pub(crate) fn only_links(&self) -> bool {
        self.only_links.load(Ordering::Acquire)
    }

    /// Bulk data goes on it: if its client has not too many such connections, much may be in flight.
    pub(crate) fn carries_bulk(&self) {
        self.widen(&self.width);
        if let Some(first) = &self.first {
            first.widen(&first.below);
        }
    }

    fn widen(&self, width: &watch::Sender<Width>) {
        if let Some((account, _)) = self.owner.get()
            && self.wide.get().is_none()
            && let Some(share) = account.wide_connection()
        {
            let _ = self.wide.set(share);
            width.send_replace(Width::Wide);
        }
    }

    /// How much may be in flight.
    pub(crate) fn width(&self) -> watch::Receiver<Width> {
        self.width.subscribe()
    }

    /// Notes a wrong token; says how many there were.
    pub(crate) fn wrong_token(&self) -> u32 {
        self.wrong_tokens.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Wrong tokens so far.
    pub(crate) fn wrong_tokens(&self) -> u32 {
        self.wrong_tokens.load(Ordering::Relaxed)
    }

    /// A place for a call. Strangers wait for theirs until one of their calls is done, or they have shown who they are.
    pub(crate) async fn call(&self) -> std::result::Result<CallPlace, Status> {
        *lock(&self.asked) = Instant::now();
        if self.owner.get().is_none() {
            let mut width = self.width.subscribe();
            tokio::select! {
                biased;
                // Nobody closes the semaphore, and the sender is this connection's.
                permit = self.early_calls.clone().acquire_owned() => {
                    let permit = permit.map_err(|_| Status::cancelled("the connection ends"))?;
                    return Ok(CallPlace::Early { _permit: permit });
                }
                _ = width.wait_for(|&width| width != Width::Early) => {}
            }
        }
        let (account, _) = self.owner.get().ok_or_else(|| Status::cancelled("the connection ends"))?;
        let share = account.call().map_err(|e| Status::resource_exhausted(e.to_string()))?;
        Ok(CallPlace::Client { _share: share })
    }

    /// Notes that a link of another server begins here, or that one has ended.
    pub(crate) fn serves_a_link(&self, begins: bool) {
        self.link.store(begins, Ordering::Release);
    }

    pub(crate) fn has_a_link(&self) -> bool {
        self.link.load(Ordering::Acquire)
    }

    /// When its peer last did something that lets it stay: for a client a call, for another server any sign of life.
    fn active(&self) -> Instant {
        if self.has_a_link() { self.traffic.heard() } else { *lock(&self.asked) }
    }

    /// When it is closed, as things are, if none of its sessions lives: `over_since` is when that was first seen.
    fn end(&self, shared: &Shared, had_sessions: bool, over_since: &mut Option<Instant>) -> Instant {
        if had_sessions {
            // Time for last answers.
            return *over_since.get_or_insert_with(Instant::now) + AFTER_SESSIONS;
        }
        if self.is_authorised() || self.has_a_link() {
            return self.active() + IDLE;
        }
        if shared.trust.knows_clients() {
            // Those who have yet to show who they are cannot stay by asking.
            return self.traffic.start() + STRANGER;
        }
        self.active() + STRANGER
    }

    /// Notes that a session has a stream here.
    pub(crate) fn attach(&self, shared: &Shared, session: &Arc<Session>) {
        self.traffic.is_of(|| shared.metrics.client(session.account.name()));
        let mut all = lock(&self.sessions);
        if !all.iter().any(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(session))) {
            // Sessions that have ended go only when another one comes: an empty list means that there never was one.
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
        self.place.end();
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
pub(crate) fn serve_tcp(shared: &Arc<Shared>, conn: Conn, socket: std::net::TcpStream, stopped: Stopped) {
    let peer = conn.peer;
    on_a_loop(peer, async {
        let socket = match socket.set_nodelay(true).and_then(|()| tokio::net::TcpStream::from_std(socket)) {
            Ok(socket) => socket,
            Err(e) => return limited!(debug, %peer, "lost at once: {e}"),
        };
        let mut stop = stopped.clone();
        let accepted = tokio::select! {
            accepted = accept(socket, shared.trust.tls.as_ref(), conn.traffic.clone()) => accepted,
            _ = stop.wait_for(|&s| s) => return,
            () = conn.place.until_over() => return,
        };
        match accepted {
            Ok(accepted) => match conn.with_certificate(shared, accepted.who) {
                Ok(conn) => serve(shared, &Arc::new(conn), accepted.stream, stopped).await,
                Err(why) => refused(peer, &why),
            },
            Err(why) => {
                shared.metrics.refused("handshake");
                refused(peer, &why);
            }
        }
    });
}

/// How a QUIC connection has come in.
pub(crate) enum Origin {
    /// From an address that is its own.
    Proven(Arc<ConnectionPlace>),
    /// From an address that it claims, until the handshake is done.
    Claimed(Handshake),
}

/// Serves a QUIC connection: its first stream, that of the commands, here, where its packets are made and read; each of the
/// others on a thread of its own. It ends with its first stream.
pub(crate) fn serve_quic(shared: &Arc<Shared>, number: u64, incoming: QuicIncoming, origin: Origin, stopped: Stopped) {
    let peer = incoming.peer();
    on_a_loop(peer, async {
        let mut stop = stopped.clone();
        let evicted = async {
            match &origin {
                Origin::Proven(place) => place.until_over().await,
                Origin::Claimed(_) => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            accepted = incoming.accept() => accepted,
            () = evicted => return,
            _ = stop.wait_for(|&s| s) => return,
        };
        let quic = match accepted {
            Ok(quic) => quic,
            Err(why) => {
                shared.metrics.refused("handshake");
                return refused(peer, &why);
            }
        };
        let place = match origin {
            Origin::Proven(place) => Ok(place),
            // Only now it is known that the address is its own.
            Origin::Claimed(_handshake) => shared.places.enter(number, peer.ip(), &shared.accounts).await,
        };
        match place {
            Ok(place) => {
                let leaves = Leaves(place.clone());
                let conn = Conn::new(shared, number, peer, place).with_certificate(shared, quic.who.clone());
                match conn {
                    Ok(conn) => serve_streams(shared, &Arc::new(conn), &quic, stopped).await,
                    Err(why) => refused(peer, &why),
                }
                drop(leaves);
            }
            Err(why) => refused(peer, &why),
        }
        quic.close().await;
    });
}

/// Serves the streams of a QUIC connection.
async fn serve_streams(shared: &Arc<Shared>, conn: &Arc<Conn>, quic: &QuicConnection, stopped: Stopped) {
    let peer = conn.peer;
    let first = tokio::select! {
        first = tokio::time::timeout(FIRST_MESSAGE, quic.stream(conn.traffic.clone())) => first,
        () = conn.place.until_over() => return,
    };
    let first = match first {
        Ok(Ok(stream)) => stream,
        Ok(Err(why)) => return refused(peer, &why),
        Err(_) => return refused(peer, &"it has opened no stream"),
    };
    let windows = async {
        let mut below = conn.below.subscribe();
        // The sender is the connection's.
        while below.changed().await.is_ok() {
            match *below.borrow_and_update() {
                Width::Early => {}
                Width::Narrow => quic.set_windows(QUIC_NARROW),
                Width::Wide => quic.set_windows(QUIC_WIDE),
            }
        }
    };
    let others = async {
        // Further streams are for those who have shown who they are.
        let _ = conn.width().wait_for(|&width| width != Width::Early).await;
        loop {
            let traffic = Arc::new(Traffic::new(0));
            // The end of the connection is that of its first stream, too.
            let Ok(stream) = quic.stream(traffic.clone()).await else { return std::future::pending().await };
            let (stopped, first) = (stopped.clone(), conn.clone());
            shared.client_thread(conn, move |shared, number, place, share| {
                let account = share.account().clone();
                let only_links = AtomicBool::new(first.only_links());
                let conn = Conn { traffic, only_links, first: Some(first), ..Conn::new(shared, number, peer, place) };
                conn.belongs_to(account, share);
                on_a_loop(peer, serve(shared, &Arc::new(conn), stream, stopped));
            });
        }
    };
    tokio::select! {
        () = serve(shared, conn, first, stopped.clone()) => {}
        () = others => {}
        () = windows => {}
    }
}

/// A line about a client that was not let in.
fn refused(peer: SocketAddr, why: &dyn std::fmt::Display) {
    limited!(warn, %peer, "a connection was refused: {why}");
}

/// Runs the work of a connection on an event loop of its own.
fn on_a_loop(peer: SocketAddr, work: impl Future<Output = ()>) {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(e) => return limited!(warn, %peer, "no event loop for a connection: {e}"),
    };
    runtime.block_on(work);
    // Tasks of streams hold sessions; they end with the loop that ran them.
    runtime.shutdown_timeout(Duration::from_millis(100));
}

/// Serves one connection until it ends, goes idle, or the server stops.
async fn serve(shared: &Arc<Shared>, conn: &Arc<Conn>, stream: Stream<Arc<Traffic>>, mut stopped: Stopped) {
    let calls = Calls { service: Service { shared: shared.clone(), conn: conn.clone() } };
    let mut http = std::pin::pin!(http2::serve(stream, conn, &calls));
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
            () = conn.place.until_over() => break,
            _ = tick.tick() => {
                let (used, live) = conn.use_of();
                if live {
                    over_since = None;
                } else if Instant::now() > conn.end(shared, used, &mut over_since) {
                    limited!(debug, peer = %conn.peer, conn = conn.number, "unused connection closed");
                    break;
                }
            }
        }
    }
}

/// The services of a connection.
#[derive(Clone)]
pub(crate) struct Calls {
    service: Service,
}

impl Calls {
    /// Carries out a call. What comes with the answer is kept until that is sent.
    pub(crate) async fn call(self, mut request: Request<Incoming>) -> (Response<Body>, Option<Arc<CallPlace>>) {
        match self.service.conn.call().await {
            Ok(place) => {
                let place = Arc::new(place);
                // Tasks of a stream keep it as well: its client may reset the stream before they have ended.
                request.extensions_mut().insert(place.clone());
                // Boxed, so that a call that waits for its place is small.
                (Box::pin(call::answer(self.service, request)).await, Some(place))
            }
            Err(status) => (status.into_http(), None),
        }
    }
}

/// The status of a client that may not have what it asks for.
pub(crate) fn too_much(error: &Error) -> Status {
    match error {
        Error::Cancelled => Status::unavailable("the connection ends, to make room for others; connect again"),
        error => Status::resource_exhausted(error.to_string()),
    }
}
