//! A service on a port: a thread with an event loop that takes connections, within limits, and drains.

use crate::blocking::THREADS;
use crate::connection::{self, Phase};
use crate::limits::Limits;
use crate::queue::Client;
use crate::service::Service;
use axum::Router;
use outboard::{Error, Result};
use outboard_net::ServerTls;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// After a connection could not be accepted, for want of file descriptors perhaps.
const PAUSE: Duration = Duration::from_millis(50);
/// How long connections may take to end with the server.
const ENDING: Duration = Duration::from_secs(1);

/// A service that listens on a port. Dropping it ends it at once.
#[derive(Debug)]
pub struct Server {
    service: Service,
    addr: SocketAddr,
    connections: Each,
    phase: watch::Sender<Phase>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to listen, over TLS if there is a certificate ([`ServerTls::load_http`]). Port 0 is a free one. Whether an address that others can
    /// reach is one to listen on is for the caller to decide.
    pub fn start(service: Service, addr: SocketAddr, tls: Option<ServerTls>) -> Result<Server> {
        let fail = |e: std::io::Error| Error::Request(format!("cannot listen on {addr}: {e}"));
        let listener = TcpListener::bind(addr).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build();
        let runtime = runtime.map_err(fail)?;
        let (phase, watched) = watch::channel(Phase::Open);
        let connections = Each::default();
        let accepting = Accepting {
            router: service.router(),
            tls: tls.map(Arc::new),
            limits: service.options().limits.clone(),
            service: service.clone(),
            each: connections.clone(),
        };
        let work = move || {
            runtime.block_on(accepting.run(listener, watched));
            runtime.shutdown_timeout(ENDING);
        };
        let thread = std::thread::Builder::new().name("serve".into()).spawn(work).map_err(fail)?;
        Ok(Server { service, addr: bound, connections, phase, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it serves.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Connections that are open. While it drains, these are the ones whose clients have not got their whole answer, or not sent their whole request.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// From now on there are no new connections and texts; what is under way goes on. It is drained when there are neither texts
    /// ([`Service::texts`]) nor [connections](Server::connections): a text that has ended may still be on its way to a slow reader.
    pub fn drain(&self) {
        self.service.drain();
        self.advance(Phase::Draining);
    }

    /// Ends it. Texts that are under way end with an error that says why.
    pub fn stop(self) {
        drop(self);
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let changes = *phase < to;
            *phase = (*phase).max(to);
            changes
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.service.end();
        self.advance(Phase::Ended);
        if let Some(thread) = self.thread.take() {
            // It has deadlines for all that it waits for.
            let _ = thread.join();
        }
    }
}

/// Connections of each address.
#[derive(Clone, Debug, Default)]
struct Each(Arc<Mutex<HashMap<Client, usize>>>);

/// One of them, until it is dropped.
struct One {
    each: Each,
    client: Client,
}

impl Each {
    fn enter(&self, ip: IpAddr, most: usize) -> Option<One> {
        let client = Client::at(ip);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = all.entry(client.clone()).or_default();
        if *mine >= most {
            return None;
        }
        *mine += 1;
        Some(One { each: self.clone(), client })
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl Drop for One {
    fn drop(&mut self) {
        let mut all = self.each.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = all.get_mut(&self.client) {
            *mine -= 1;
            if *mine == 0 {
                all.remove(&self.client);
            }
        }
    }
}

/// What a connection keeps until its end: its place among all, and what says that it is there.
type Held = (OwnedSemaphorePermit, mpsc::Sender<()>);

/// What takes connections.
struct Accepting {
    service: Service,
    router: Router,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    each: Each,
}

impl Accepting {
    async fn run(self, listener: TcpListener, mut phase: watch::Receiver<Phase>) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(e) => return tracing::error!("cannot accept connections: {e}"),
        };
        let (alive, mut gone) = mpsc::channel::<()>(1);
        let (tell, told) = watch::channel(Phase::Open);
        let room = Arc::new(Semaphore::new(self.limits.connections.min(Semaphore::MAX_PERMITS)));
        let next = async || {
            let room = room.clone().acquire_owned().await;
            (room, listener.accept().await)
        };
        loop {
            tokio::select! {
                _ = phase.wait_for(|&phase| phase > Phase::Open) => break,
                next = next() => match next {
                    (Ok(place), Ok((socket, peer))) => self.begin(socket, peer, (place, alive.clone()), &told),
                    (_, Err(e)) => {
                        tracing::debug!("a connection was not accepted: {e}");
                        tokio::time::sleep(PAUSE).await;
                    }
                    // Nobody closes the semaphore.
                    (Err(_), _) => break,
                },
            }
        }
        // Connections are told after it: a client whose connection ends here and that comes again is refused, and goes elsewhere.
        drop((alive, listener));
        tell.send_replace(Phase::Draining);
        let _ = phase.wait_for(|&phase| phase == Phase::Ended).await;
        tell.send_replace(Phase::Ended);
        let _ = tokio::time::timeout(ENDING, gone.recv()).await;
    }

    /// Serves a connection in a task of its own.
    fn begin(&self, socket: TcpStream, peer: SocketAddr, held: Held, phase: &watch::Receiver<Phase>) {
        let service = self.service.clone();
        let Some(one) = self.each.enter(peer.ip(), self.limits.connections_each) else {
            return service.metrics().refused("connections");
        };
        let (router, tls, limits) = (self.router.clone(), self.tls.clone(), self.limits.clone());
        let phase = phase.clone();
        tokio::spawn(async move {
            service.metrics().connection(1);
            if let Err(why) = connection::serve(router, socket, peer, tls.as_deref(), &limits, phase).await {
                tracing::debug!(%peer, "a connection has ended: {why}");
            }
            service.metrics().connection(-1);
            drop((one, held));
        });
    }
}
