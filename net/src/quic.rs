//! QUIC: the client's end of a connection, and what both ends share.
//!
//! A connection has one stream for commands, the first, and further ones for bulk data. Packets that are lost hold up only the
//! streams they belong to.

use crate::endpoint::Endpoint;
use crate::explain::{self, Side};
use crate::limits::{
    ADDRESSES, HANDSHAKE, NEXT_ADDRESS, QUIC_EARLY_SEND_WINDOW, QUIC_EARLY_WINDOW, QUIC_GOODBYE, QUIC_IDLE,
    QUIC_INITIAL_MTU, QUIC_MTU, QUIC_STREAM_WINDOW, QUIC_STREAMS, QUIC_WINDOW, UDP_BUFFER,
};
use quinn::{Connection, ConnectionError, MtuDiscoveryConfig, RecvStream, SendStream, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

/// Packets of the stream of commands go before those of the others.
const COMMANDS_FIRST: i32 = 1;

/// What a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    Commands,
    Bulk,
}

impl Carries {
    /// Of the next stream of a connection, whose first one is for commands.
    pub(crate) fn next(commands: &AtomicBool) -> Carries {
        if commands.swap(false, Ordering::Relaxed) { Carries::Commands } else { Carries::Bulk }
    }
}

/// How both ends use QUIC.
pub(crate) fn transport(side: Side) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let (receive, send) = match side {
        Side::Server => (QUIC_EARLY_WINDOW, QUIC_EARLY_SEND_WINDOW),
        Side::Client => (QUIC_WINDOW, QUIC_WINDOW),
    };
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(QUIC_MTU);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(if side == Side::Server { QUIC_STREAMS } else { 0 }))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(QUIC_STREAM_WINDOW))
        .receive_window(VarInt::from_u32(receive))
        .send_window(send.into())
        .initial_mtu(QUIC_INITIAL_MTU)
        .mtu_discovery_config(Some(mtu))
        .max_idle_timeout(quinn::IdleTimeout::try_from(QUIC_IDLE).ok());
    if side == Side::Client {
        // For the server's sake, while the client waits for a long computation without a word.
        config.keep_alive_interval(Some(QUIC_IDLE / 4));
    }
    Arc::new(config)
}

/// A UDP socket with room for bursts.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    // The system may allow less; that costs speed only.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER);
    let _ = socket.set_send_buffer_size(UDP_BUFFER);
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

/// The client's end of a connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    endpoint: quinn::Endpoint,
    connection: Connection,
    commands: AtomicBool,
}

/// The addresses that the endpoint's name has.
pub(crate) async fn addresses(of: &Endpoint) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::net::lookup_host((of.host(), of.port())).await;
    found.map(Iterator::collect).map_err(|e| format!("cannot find its address: {e}"))
}

/// Connects to the first of these addresses of the endpoint that answers; the next is tried when one takes its time.
pub(crate) async fn connect(
    to: &Endpoint,
    mut addresses: Vec<SocketAddr>,
    config: quinn::ClientConfig,
) -> Result<Outgoing, String> {
    addresses.truncate(ADDRESSES);
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut error = "its name has no address".to_owned();
    let deadline = tokio::time::Instant::now() + HANDSHAKE;
    loop {
        let mut more = false;
        if let Some(address) = waiting.next() {
            attempts.spawn(attempt(address, to.host().to_owned(), config.clone()));
            more = true;
        }
        if attempts.is_empty() {
            return Err(error);
        }
        let until = if more { deadline.min(tokio::time::Instant::now() + NEXT_ADDRESS) } else { deadline };
        match tokio::time::timeout_at(until, attempts.join_next()).await {
            Ok(Some(Ok(Ok(outgoing)))) => return Ok(outgoing),
            Ok(Some(Ok(Err(e)))) => error = e,
            Ok(Some(Err(_)) | None) => error = "connecting failed; this is a bug of Outboard".into(),
            Err(_) if more => {}
            Err(_) => return Err(no_answer()),
        }
    }
}

fn no_answer() -> String {
    format!(
        "no answer over QUIC within {} s; is it an rpc-server with --tls-cert, and does UDP get through the firewall? (grpcs:// needs TCP only)",
        HANDSHAKE.as_secs()
    )
}

async fn attempt(to: SocketAddr, host: String, config: quinn::ClientConfig) -> Result<Outgoing, String> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let fail = |e: io::Error| format!("no UDP socket: {e}");
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(quinn::EndpointConfig::default(), None, bind(any).map_err(fail)?, runtime);
    let endpoint = endpoint.map_err(fail)?;
    let connecting = endpoint.connect_with(config, to, &host).map_err(|e| format!("cannot connect over QUIC: {e}"))?;
    let connection = connecting.await.map_err(|e| match e {
        ConnectionError::TimedOut => no_answer(),
        e => explain::quic(&e),
    })?;
    Ok(Outgoing { endpoint, connection, commands: AtomicBool::new(true) })
}

impl Outgoing {
    pub(crate) async fn open(&self) -> Result<QuicStream, String> {
        let (send, recv) = self.connection.open_bi().await.map_err(|e| explain::quic(&e))?;
        Ok(QuicStream::new(self.connection.clone(), send, recv, Carries::next(&self.commands)))
    }

    pub(crate) async fn close(&self) {
        self.connection.close(VarInt::from_u32(0), b"goodbye");
        let _ = tokio::time::timeout(QUIC_GOODBYE, self.endpoint.wait_idle()).await;
    }
}

/// A stream of a connection as one object.
#[derive(Debug)]
pub(crate) struct QuicStream {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

impl QuicStream {
    pub(crate) fn new(connection: Connection, send: SendStream, recv: RecvStream, carries: Carries) -> QuicStream {
        if carries == Carries::Commands {
            // Fails only for a stream that has ended already.
            let _ = send.set_priority(COMMANDS_FIRST);
        }
        QuicStream { connection, send, recv }
    }

    /// Why its connection has ended, if it has.
    pub(crate) fn close_reason(&self) -> Option<ConnectionError> {
        self.connection.close_reason()
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }
}
