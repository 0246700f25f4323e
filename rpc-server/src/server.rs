//! The server: its threads, its sessions, start and stop.

use crate::accounts::{Account, AccountShare, Accounts};
use crate::blobs::Blobs;
use crate::conn::{self, Conn, Origin, Stopped};
use crate::descriptors;
use crate::devices::Devices;
use crate::guesses::Guesses;
use crate::limits::{Limits, STOP_TIMEOUT, SessionLimits, TICK};
use crate::lock;
use crate::logs::limited;
use crate::metrics::{Metrics, http};
use crate::peers::Peers;
use crate::places::{ConnectionPlace, Leaves, Places};
use crate::reflection::Reflection;
use crate::service::Service;
use crate::session::Session;
use crate::trust::Trust;
use outboard_core::{Device, Error, Result};
use outboard_net::{QuicIncoming, QuicListener};
use outboard_proto::v1::outboard_server::OutboardServer;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::Status;
use tonic_health::ServingStatus;

/// Ports that are tried for one that is free on TCP and UDP.
const FREE_PORT_TRIES: u32 = 16;

/// What a server is started with.
#[derive(Debug)]
pub struct ServerConfig {
    /// Where to listen; port 0 picks a free one.
    pub addr: SocketAddr,
    /// What to expose; names must be unique.
    pub devices: Vec<Arc<dyn Device>>,
    /// What clients may take.
    pub limits: Limits,
    /// Who is let in, and how what is said is protected.
    pub trust: Trust,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) devices: Arc<Devices>,
    pub(crate) limits: Limits,
    pub(crate) trust: Trust,
    pub(crate) incarnation: u64,
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) accounts: Accounts,
    pub(crate) metrics: Arc<Metrics>,
    /// No new sessions: the server stops soon.
    pub(crate) draining: AtomicBool,
    /// What clients need not send.
    pub(crate) blobs: Option<Arc<Blobs>>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) health: tonic_health::server::HealthReporter,
    /// `None` only if what it tells cannot be read, which a test would find.
    pub(crate) reflection: Option<Reflection>,
    pub(crate) places: Arc<Places>,
    pub(crate) guesses: Guesses,
    /// Held while the first request of a control stream is decoded.
    pub(crate) opening: Mutex<()>,
    /// Connections so far, and those open, when freed memory was last given back.
    trimmed: Mutex<(u64, usize)>,
    next_conn: AtomicU64,
}

/// A running server. Stops when dropped.
pub struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    acceptor: Option<JoinHandle<()>>,
    metrics: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to listen. An address that cannot be had is an error.
    pub fn start(config: ServerConfig) -> Result<Server> {
        Server::start_with(config, None)
    }

    /// Starts to listen, with weights that clients need not send.
    pub fn start_with(config: ServerConfig, blobs: Option<Blobs>) -> Result<Server> {
        let fail = |what: &str, e: std::io::Error| Error::Request(format!("{what}: {e}"));
        let runtime = conn::runtime().map_err(|e| fail("no event loop", e))?;
        let (listener, quic) = {
            let _context = runtime.enter();
            listen(config.addr, &config.trust).map_err(|e| match e.kind() {
                std::io::ErrorKind::AddrInUse => Error::Request(format!(
                    "{} is in use by another program; choose another port with -p, or 0 for any that is free",
                    config.addr
                )),
                _ => fail(&format!("cannot listen on {}", config.addr), e),
            })?
        };
        let addr = listener.local_addr().map_err(|e| fail("the socket has no address", e))?;
        listener.set_nonblocking(true).map_err(|e| fail("the socket does not work", e))?;
        let (stop, stopped) = watch::channel(false);
        let incarnation = rand::random();
        let metrics = Arc::new(Metrics::new());
        let mut limits = config.limits;
        limits.connections = limits.connections.min(descriptors::connections());
        let shared = Arc::new(Shared {
            devices: Arc::new(Devices::new(config.devices)?),
            peers: Peers::new(incarnation, limits.peers.clone(), &config.trust, &metrics, stopped.clone()),
            accounts: Accounts::new(&limits),
            places: Places::new(&limits, &metrics),
            guesses: Guesses::default(),
            opening: Mutex::default(),
            reflection: Reflection::new().ok(),
            limits,
            trust: config.trust,
            incarnation,
            sessions: Mutex::default(),
            metrics: metrics.clone(),
            draining: AtomicBool::new(false),
            blobs: blobs.map(Arc::new),
            health: tonic_health::server::HealthReporter::new(),
            trimmed: Mutex::new((1, 0)),
            next_conn: AtomicU64::new(1),
        });
        runtime.block_on(shared.health.set_serving::<OutboardServer<Service>>());
        let state = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || runtime.block_on(accept(state, listener, quic, stopped)))
            .map_err(|e| fail("no thread", e))?;
        Ok(Server { addr, shared, stop, acceptor: Some(acceptor), metrics: None })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sessions that are open now.
    pub fn sessions(&self) -> usize {
        lock(&self.shared.sessions).len()
    }

    /// Links to other servers that are open now.
    pub fn peer_links(&self) -> usize {
        self.shared.peers.open_links()
    }

    /// Connections that are open now; on QUIC, each stream after the first counts as one.
    pub fn connections(&self) -> usize {
        self.shared.open_connections()
    }

    /// Listens for those who ask for metrics, health and readiness over HTTP, and says where. Port 0 picks a free one.
    pub fn serve_metrics(&mut self, addr: SocketAddr) -> Result<SocketAddr> {
        let (addr, thread) = http::start(&self.shared, addr, self.stop.subscribe())?;
        self.metrics = Some(thread);
        Ok(addr)
    }

    /// Takes no new sessions from now on, and says so to those who ask. Sessions that there are go on.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        // A moment: what it waits for is a lock that is never held for long.
        match conn::runtime() {
            Ok(runtime) => runtime.block_on(async {
                let health = &self.shared.health;
                health.set_not_serving::<OutboardServer<Service>>().await;
                health.set_service_status("", ServingStatus::NotServing).await;
            }),
            Err(e) => tracing::warn!("clients are not told that the server stops: {e}"),
        }
    }

    /// Ends connections and sessions, and returns when they have ended, or after some seconds.
    pub fn stop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.stop.send_replace(true);
        if acceptor.join().is_err() {
            tracing::error!("the accepting thread panicked; this is a bug of Outboard");
        }
        if let Some(metrics) = self.metrics.take() {
            let _ = metrics.join();
        }
        let sessions: Vec<_> = lock(&self.shared.sessions).drain().map(|(_, s)| s).collect();
        sessions.iter().for_each(|s| s.close("the server stops"));
        let end = Instant::now() + STOP_TIMEOUT;
        let busy = || self.shared.open_connections() > 0 || sessions.iter().any(|s| !s.ended());
        while busy() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// Listens on TCP, and with a certificate on UDP under the same number.
fn listen(addr: SocketAddr, trust: &Trust) -> std::io::Result<(TcpListener, Option<QuicListener>)> {
    let mut tries = if addr.port() == 0 { FREE_PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let listener = TcpListener::bind(addr)?;
        let Some(tls) = &trust.tls else { return Ok((listener, None)) };
        match QuicListener::bind(listener.local_addr()?, tls) {
            Ok(quic) => return Ok((listener, Some(quic))),
            // A number that is free on TCP may be taken on UDP.
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && tries > 0 => {}
            Err(e) => return Err(e),
        }
    }
}

/// Takes connections until told to stop, and ends sessions whose client is gone.
async fn accept(shared: Arc<Shared>, listener: TcpListener, quic: Option<QuicListener>, stopped: Stopped) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot accept connections: {e}"),
    };
    {
        let mut newcomers = std::pin::pin!(newcomers(&shared, &listener, quic.as_ref(), &stopped));
        let mut stop = stopped.clone();
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                _ = stop.wait_for(|&s| s) => break,
                _ = tick.tick() => shared.expire(),
                () = newcomers.as_mut() => break,
            }
        }
    }
    // Its connections need this event loop for their last packets.
    if let Some(quic) = quic {
        quic.close().await;
    }
}

/// Takes connections, one after the other: each waits for a place before the next one is looked at.
async fn newcomers(
    shared: &Arc<Shared>,
    listener: &tokio::net::TcpListener,
    quic: Option<&QuicListener>,
    stopped: &Stopped,
) {
    loop {
        tokio::select! {
            Some(incoming) = next_quic(shared, quic) => shared.take_quic(incoming, stopped.clone()).await,
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => shared.take(socket, peer, stopped.clone()).await,
                Err(e) => {
                    limited!(warn, "a connection was not accepted: {e}");
                    // Out of file descriptors, usually: trying at once would only burn time.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}

async fn next_quic(shared: &Shared, quic: Option<&QuicListener>) -> Option<QuicIncoming> {
    match quic {
        Some(quic) => quic.next(|| shared.places.are_full_of_handshakes()).await,
        None => std::future::pending().await,
    }
}

/// A place for a session, on its client's account.
pub(crate) struct SessionPermit {
    pub(crate) account: Arc<Account>,
    pub(crate) share: AccountShare,
    pub(crate) limits: SessionLimits,
}

impl Shared {
    async fn take(self: &Arc<Self>, socket: tokio::net::TcpStream, peer: SocketAddr, stopped: Stopped) {
        let socket = match socket.into_std() {
            Ok(socket) => socket,
            Err(e) => return limited!(warn, %peer, "lost at once: {e}"),
        };
        let number = self.next_number();
        match self.places.enter(number, peer.ip(), &self.accounts).await {
            Ok(place) => self.thread(peer, number, Leaves(place), move |shared, place| {
                conn::serve_tcp(shared, Conn::new(shared, number, peer, place.0.clone()), socket, stopped);
            }),
            Err(why) => limited!(warn, %peer, "refused: {why}"),
        }
    }

    async fn take_quic(self: &Arc<Self>, incoming: QuicIncoming, stopped: Stopped) {
        let (peer, number) = (incoming.peer(), self.next_number());
        if incoming.is_proven() {
            return match self.places.enter(number, peer.ip(), &self.accounts).await {
                Ok(place) => self.thread(peer, number, Leaves(place), move |shared, place| {
                    let origin = Origin::Proven(place.0.clone());
                    conn::serve_quic(shared, number, incoming, origin, stopped);
                }),
                Err(why) => {
                    limited!(warn, %peer, "refused: {why}");
                    incoming.refuse();
                }
            };
        }
        match self.places.handshake() {
            Some(handshake) => self.thread(peer, number, (), move |shared, ()| {
                conn::serve_quic(shared, number, incoming, Origin::Claimed(handshake), stopped);
            }),
            None => {
                self.metrics.refused("connections");
                incoming.refuse();
            }
        }
    }

    fn next_number(&self) -> u64 {
        self.next_conn.fetch_add(1, Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub(crate) fn open_connections(&self) -> usize {
        self.places.open()
    }

    /// A place for one more session of the client at the other end, if it may have one.
    pub(crate) fn permit(&self, conn: &Conn) -> std::result::Result<SessionPermit, Status> {
        let refused = |why: &str| limited!(warn, peer = %conn.peer, who = conn.who(), "a session was refused: {why}");
        if self.draining.load(Ordering::Acquire) {
            refused("the server is draining");
            self.metrics.refused("draining");
            return Err(Status::unavailable(
                "it is draining: it stops soon and takes no new sessions; use another server, or try again once it has restarted",
            ));
        }
        let account = conn.account(self, None);
        let share = account.session().map_err(|why| {
            refused(&why.to_string());
            self.metrics.refused("sessions of one client");
            Status::resource_exhausted(why.to_string())
        })?;
        Ok(SessionPermit { account, share, limits: self.limits.session.clone() })
    }

    /// Gives a further connection of a client its place and its thread, if it may have one more.
    pub(crate) fn client_thread(
        self: &Arc<Self>,
        of: &Conn,
        work: impl FnOnce(&Arc<Self>, u64, Arc<ConnectionPlace>, AccountShare) + Send + 'static,
    ) {
        let (peer, number) = (of.peer, self.next_number());
        match self.places.enter_client(number, &of.account(self, None)) {
            Ok((place, share)) => self.thread(peer, number, Leaves(place), move |shared, place| {
                work(shared, number, place.0.clone(), share);
            }),
            Err(why) => limited!(warn, %peer, "refused: {why}"),
        }
    }

    /// Gives a connection its thread. What it holds is given back when that ends.
    fn thread<T: Send + 'static>(
        self: &Arc<Self>,
        peer: SocketAddr,
        number: u64,
        holds: T,
        work: impl FnOnce(&Arc<Self>, &T) + Send + 'static,
    ) {
        let shared = self.clone();
        let spawned = std::thread::Builder::new().name(format!("conn {number}")).spawn(move || {
            let holds = holds;
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&shared, &holds))).is_err() {
                limited!(error, %peer, "a connection's thread panicked; this is a bug of Outboard");
            }
        });
        if let Err(e) = spawned {
            limited!(warn, %peer, "no thread for a connection: {e}");
        }
    }

    /// Ends the sessions whose lease is over.
    fn expire(&self) {
        let lease = self.limits.lease;
        let gone: Vec<_> = lock(&self.sessions).extract_if(|_, s| s.heard().elapsed() > lease).collect();
        for (_, session) in gone {
            session.close("its client was not heard for the length of the lease");
        }
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        self.peers.expire(&sessions);
        self.trim();
    }

    /// Gives back to the system what connections have left behind, once nobody computes here any more.
    fn trim(&self) {
        let now = (self.next_conn.load(Ordering::Acquire), self.open_connections());
        if lock(&self.sessions).is_empty() && std::mem::replace(&mut *lock(&self.trimmed), now) != now {
            outboard_system::trim_memory();
        }
    }

    /// Ends one session.
    pub(crate) fn end(&self, session: &Arc<Session>, why: &str) {
        lock(&self.sessions).remove(&session.id);
        session.close(why);
    }
}
