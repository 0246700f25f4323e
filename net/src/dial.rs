//! Opens streams to an endpoint.

use crate::endpoint::{Carrier, Endpoint};
use crate::explain::{self, Side};
use crate::limits::{AUTO_QUIC, AUTO_RTT, HANDSHAKE};
use crate::quic;
use crate::stream::{Meter, Stream, under_tls};
use crate::tls::ClientTls;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

/// What [`Dialer::open`] says where nobody listens.
pub const REFUSED: &str = "connection refused; is rpc-server running there, and on this port?";

/// Opens streams to one endpoint: connections of their own on TCP and TLS; on QUIC, streams of one connection.
///
/// For `auto`, the first stream decides between TLS and QUIC.
///
/// A QUIC connection is driven by the event loop that opened the first stream; the others may be used by other threads.
#[derive(Debug)]
pub struct Dialer {
    endpoint: Endpoint,
    /// Where it is, if that is known already.
    addresses: Option<Vec<SocketAddr>>,
    tls: ClientTls,
    quic: OnceCell<quic::Outgoing>,
    /// What `auto` came to.
    chosen: OnceCell<Carrier>,
}

impl Dialer {
    /// For one endpoint. Opens nothing yet.
    pub fn new(endpoint: Endpoint, tls: ClientTls) -> Dialer {
        Dialer { endpoint, addresses: None, tls, quic: OnceCell::new(), chosen: OnceCell::new() }
    }

    /// For one endpoint at these addresses: its name is not looked up, but still what its certificate has to be for.
    pub fn at(endpoint: Endpoint, addresses: Vec<SocketAddr>, tls: ClientTls) -> Dialer {
        Dialer { addresses: Some(addresses), ..Dialer::new(endpoint, tls) }
    }

    /// Where it leads.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Opens a stream; the first one to a server is for commands, and goes before the others where they share a connection.
    /// The error says in words for a user what is wrong and what to do, without the endpoint's name. Handshakes have a deadline;
    /// for TCP's, the caller sets one.
    pub async fn open<M: Meter>(&self, meter: M) -> Result<Stream<M>, String> {
        let carrier = match self.endpoint.carrier() {
            Carrier::Auto => *self.chosen.get_or_try_init(|| self.choose()).await?,
            carrier => carrier,
        };
        match carrier {
            Carrier::Tcp => Ok(Stream::tcp(self.connect().await?, meter)),
            Carrier::Tls | Carrier::Auto => self.tls(meter).await,
            Carrier::Quic => Ok(Stream::quic(self.quic().await?.open().await?, meter)),
        }
    }

    /// What carries the streams: for `auto`, what it came to, once the first stream is open.
    pub fn carrier(&self) -> Carrier {
        self.chosen.get().copied().unwrap_or(self.endpoint.carrier())
    }

    /// Measures how far away the server is, by TCP's handshake, and what gets through to it.
    async fn choose(&self) -> Result<Carrier, String> {
        let start = Instant::now();
        drop(self.connect().await?);
        if start.elapsed() < AUTO_RTT {
            return Ok(Carrier::Tls);
        }
        match tokio::time::timeout(AUTO_QUIC, self.quic()).await {
            Ok(Ok(_)) => Ok(Carrier::Quic),
            // If it is not the network's fault, TLS on TCP has the same to say.
            Ok(Err(_)) | Err(_) => Ok(Carrier::Tls),
        }
    }

    async fn quic(&self) -> Result<&quic::Outgoing, String> {
        let outgoing = || async {
            let configs = self.tls.configs().map_err(|e| e.to_string())?;
            let addresses = match &self.addresses {
                Some(addresses) => addresses.clone(),
                None => quic::addresses(&self.endpoint).await?,
            };
            quic::connect(&self.endpoint, addresses, configs.quic.clone()).await
        };
        self.quic.get_or_try_init(outgoing).await
    }

    /// Says goodbye to the server where that is the carrier's matter. Call it from the event loop that opened the first stream,
    /// before that ends.
    pub async fn close(&self) {
        if let Some(connection) = self.quic.get() {
            connection.close().await;
        }
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        let connected = match &self.addresses {
            Some(addresses) => TcpStream::connect(addresses.as_slice()).await,
            None => TcpStream::connect((self.endpoint.host(), self.endpoint.port())).await,
        };
        let socket = connected.map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => REFUSED.to_owned(),
            io::ErrorKind::TimedOut => "no answer; check the address and the firewall".to_owned(),
            _ => format!("cannot connect: {e}"),
        })?;
        socket.set_nodelay(true).map_err(|e| format!("the socket does not work: {e}"))?;
        Ok(socket)
    }

    async fn tls<M: Meter>(&self, meter: M) -> Result<Stream<M>, String> {
        let configs = self.tls.configs().map_err(|e| e.to_string())?;
        let name = ServerName::try_from(self.endpoint.host().to_owned());
        let name = name.map_err(|_| "no certificate can be for such a name".to_owned())?;
        let socket = under_tls(self.connect().await?, meter);
        let handshake = TlsConnector::from(configs.tcp.clone()).connect(name, socket);
        match tokio::time::timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => Ok(Stream::tls(stream.into())),
            Ok(Err(e)) => Err(handshake_failed(&e)),
            Err(_) => Err(format!(
                "it does not go on with the TLS handshake ({} s); is it an rpc-server with --tls-cert?",
                HANDSHAKE.as_secs()
            )),
        }
    }
}

fn handshake_failed(error: &io::Error) -> String {
    match error.get_ref().and_then(|e| e.downcast_ref()) {
        Some(e) => explain::tls(e, Side::Client),
        None if error.kind() == io::ErrorKind::UnexpectedEof || error.kind() == io::ErrorKind::ConnectionReset => {
            "it closed the connection in the TLS handshake; is it an rpc-server with --tls-cert?".into()
        }
        None => format!("the TLS handshake failed: {error}"),
    }
}
