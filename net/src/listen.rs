//! The server's side of a connection.

use crate::explain::{self, Side};
use crate::limits::{HANDSHAKE, LINGER, LINGER_BYTES, QUIC_GOODBYE, QUIC_LAST_PACKET};
use crate::quic::{self, Carries, QuicStream};
use crate::stream::{Meter, Stream, under_tls};
use crate::tls::{ServerTls, name_of};
use quinn::VarInt;
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// A connection that a client has opened.
#[derive(Debug)]
pub struct Accepted<M> {
    /// Its bytes.
    pub stream: Stream<M>,
    /// The name in the client's certificate, if it has shown one.
    pub who: Option<String>,
}

/// Takes a socket over TLS, if there is a certificate, and plain if not. The error is for the log. Has a deadline.
pub async fn accept<M: Meter>(socket: TcpStream, tls: Option<&ServerTls>, meter: M) -> Result<Accepted<M>, String> {
    let Some(tls) = tls else { return Ok(Accepted { stream: Stream::tcp(socket, meter), who: None }) };
    let handshake = TlsAcceptor::from(tls.tcp.clone()).accept(under_tls(socket, meter)).into_fallible();
    match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(stream)) => {
            let who = stream.get_ref().1.peer_certificates().map(who);
            Ok(Accepted { stream: Stream::tls(stream.into()), who })
        }
        Ok(Err((e, socket))) => {
            linger(socket.into_inner().io).await;
            Err(match e.get_ref().and_then(|e| e.downcast_ref()) {
                Some(e) => explain::tls(e, Side::Server),
                None => format!("the TLS handshake failed: {e}"),
            })
        }
        Err(_) => Err(format!("the TLS handshake was not done within {} s", HANDSHAKE.as_secs())),
    }
}

fn who(chain: &[CertificateDer<'_>]) -> String {
    name_of(chain).unwrap_or_else(|| "a certificate without a DNS name".to_owned())
}

/// Closes a socket so that the peer reads the alert that was sent last.
async fn linger(mut socket: TcpStream) {
    let _ = tokio::time::timeout(LINGER, async {
        let _ = socket.shutdown().await;
        let (mut buf, mut total) = ([0; 4096], 0);
        while let Ok(n) = socket.read(&mut buf).await
            && n > 0
            && total < LINGER_BYTES
        {
            total += n;
        }
    })
    .await;
}

/// Takes QUIC connections.
#[derive(Debug)]
pub struct QuicListener(quinn::Endpoint);

impl QuicListener {
    /// Listens on a UDP address. The event loop in whose context this is called moves the datagrams of all connections.
    pub fn bind(addr: SocketAddr, tls: &ServerTls) -> io::Result<QuicListener> {
        let config = quinn::EndpointConfig::default();
        let endpoint =
            quinn::Endpoint::new(config, Some(tls.quic.clone()), quic::bind(addr)?, Arc::new(quinn::TokioRuntime))?;
        Ok(QuicListener(endpoint))
    }

    /// The next client. While `crowded`, one has to prove first that its address is its own, which takes a round trip and nothing
    /// of this server. Otherwise the address is what its packets claim: see [`QuicIncoming::is_proven`].
    pub async fn next(&self, crowded: impl Fn() -> bool) -> Option<QuicIncoming> {
        loop {
            let incoming = self.0.accept().await?;
            if crowded() && !incoming.remote_address_validated() {
                // Fails only where no retry is possible, and then the connection was refused.
                let _ = incoming.retry();
                continue;
            }
            return Some(QuicIncoming(incoming));
        }
    }

    /// Ends all connections, and waits a little for their clients to hear of it.
    pub async fn close(&self) {
        self.0.close(VarInt::from_u32(0), b"the server stops");
        let _ = tokio::time::timeout(QUIC_GOODBYE, self.0.wait_idle()).await;
    }
}

/// A QUIC connection that is not answered yet.
#[derive(Debug)]
pub struct QuicIncoming(quinn::Incoming);

impl QuicIncoming {
    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.0.remote_address()
    }

    /// Whether that address is known to be its own. If not, anybody can have sent the packet, until the handshake is done.
    pub fn is_proven(&self) -> bool {
        self.0.remote_address_validated()
    }

    /// Says no.
    pub fn refuse(self) {
        self.0.refuse();
    }

    /// Says yes, and makes the handshake, which has a deadline. The event loop that this runs on drives the connection from now on.
    /// The error is for the log.
    pub async fn accept(self) -> Result<QuicConnection, String> {
        let fail = |e| explain::quic_for(&e, Side::Server);
        let connection = match tokio::time::timeout(HANDSHAKE, self.0.accept().map_err(fail)?).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(e)) => {
                // The event loop goes on, to say why as often as the client asks.
                tokio::time::sleep(LINGER).await;
                return Err(fail(e));
            }
            Err(_) => return Err(format!("the QUIC handshake was not done within {} s", HANDSHAKE.as_secs())),
        };
        let chain = connection.peer_identity().and_then(|id| id.downcast::<Vec<CertificateDer<'static>>>().ok());
        Ok(QuicConnection { who: chain.map(|chain| who(&chain)), commands: AtomicBool::new(true), connection })
    }
}

/// Bytes that may be in flight on a QUIC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// From the client.
    pub receive: u32,
    /// To the client.
    pub send: u32,
}

/// A QUIC connection with a client. Ends when it and its streams are dropped.
#[derive(Debug)]
pub struct QuicConnection {
    connection: quinn::Connection,
    /// The name in the client's certificate, if it has shown one.
    pub who: Option<String>,
    commands: AtomicBool,
}

impl QuicConnection {
    /// The next stream that the client opens, the first being that of its commands; an error says why there will be none.
    pub async fn stream<M: Meter>(&self, meter: M) -> Result<Stream<M>, String> {
        let opened = self.connection.accept_bi().await;
        let (send, recv) = opened.map_err(|e| explain::quic_for(&e, Side::Server))?;
        let carries = Carries::next(&self.commands);
        Ok(Stream::quic(QuicStream::new(self.connection.clone(), send, recv, carries), meter))
    }

    /// From now on so much may be in flight; [`crate::limits::QUIC_EARLY_WINDOW`] and less before.
    pub fn set_windows(&self, windows: Windows) {
        self.connection.set_receive_window(VarInt::from_u32(windows.receive));
        self.connection.set_send_window(windows.send.into());
    }

    /// Ends it with all of its streams. Returns when the client has been told.
    pub async fn close(self) {
        self.connection.close(VarInt::from_u32(0), b"not used any more");
        // Its driver sends the packet; there is nothing to wait for but that it has had its turn.
        tokio::time::sleep(QUIC_LAST_PACKET).await;
    }
}
