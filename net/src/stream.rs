//! A stream of bytes between two hosts, what goes through it, and why it broke.

use crate::explain;
use crate::quic::QuicStream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// Is told what goes through a connection: bytes on the wire, without those of TCP, UDP and QUIC headers.
pub trait Meter: Send + Sync + Unpin + 'static {
    /// Bytes that were sent.
    fn sent(&self, bytes: usize);
    /// Bytes that came.
    fn received(&self, bytes: usize);
}

impl<M: Meter> Meter for Arc<M> {
    fn sent(&self, bytes: usize) {
        (**self).sent(bytes);
    }

    fn received(&self, bytes: usize) {
        (**self).received(bytes);
    }
}

/// Why a stream broke, in words for a user, if more is known than an I/O error says.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<OnceLock<String>>);

impl Fault {
    /// The reason, once there is one.
    pub fn reason(&self) -> Option<String> {
        self.0.get().cloned()
    }

    pub(crate) fn set(&self, reason: String) {
        let _ = self.0.set(reason);
    }
}

/// A transport whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Metered<S, M> {
    pub(crate) io: S,
    pub(crate) meter: M,
}

/// Bytes that TLS works on at a time, either way: with one system call for each record of 16 KiB, these take longer than the cipher.
const TLS_BUFFER: usize = 256 << 10;

/// What TLS reads its records from and writes them to.
pub(crate) type UnderTls<M> = BufReader<Metered<TcpStream, M>>;

/// A socket for TLS.
pub(crate) fn under_tls<M: Meter>(socket: TcpStream, meter: M) -> UnderTls<M> {
    BufReader::with_capacity(TLS_BUFFER, Metered { io: socket, meter })
}

/// An ordered stream of bytes, by whatever carrier.
#[derive(Debug)]
pub struct Stream<M> {
    io: Io<M>,
    fault: Fault,
    /// The first byte has not come yet.
    first: bool,
}

#[derive(Debug)]
enum Io<M> {
    Tcp(Metered<TcpStream, M>),
    Tls(Box<TlsStream<UnderTls<M>>>),
    Quic(Metered<QuicStream, M>),
}

/// First bytes of a TLS record: an alert or a handshake message.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 0x03, ..])
}

impl<M: Meter> Stream<M> {
    fn new(io: Io<M>) -> Stream<M> {
        Stream { io, fault: Fault::default(), first: true }
    }

    /// A plain socket.
    pub fn tcp(socket: TcpStream, meter: M) -> Stream<M> {
        Stream::new(Io::Tcp(Metered { io: socket, meter }))
    }

    pub(crate) fn tls(mut stream: TlsStream<UnderTls<M>>) -> Stream<M> {
        match &mut stream {
            TlsStream::Client(s) => s.get_mut().1.set_buffer_limit(Some(TLS_BUFFER)),
            TlsStream::Server(s) => s.get_mut().1.set_buffer_limit(Some(TLS_BUFFER)),
        }
        Stream::new(Io::Tls(Box::new(stream)))
    }

    pub(crate) fn quic(stream: QuicStream, meter: M) -> Stream<M> {
        Stream::new(Io::Quic(Metered { io: stream, meter }))
    }

    /// Whether nobody on the way can read or change what goes through: it is encrypted, or does not leave this host.
    pub fn is_private(&self) -> bool {
        match &self.io {
            Io::Tcp(socket) => socket.io.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback()),
            Io::Tls(_) | Io::Quic(_) => true,
        }
    }

    /// Where the reason will be if it breaks.
    pub fn fault(&self) -> Fault {
        self.fault.clone()
    }

    /// Keeps what an error means.
    fn look(&mut self, error: &io::Error) {
        let reason = match &self.io {
            Io::Tcp(_) => None,
            Io::Tls(_) => explain::tls_of(error),
            Io::Quic(stream) => stream.io.close_reason().map(|e| explain::quic(&e)),
        };
        if let Some(reason) = reason {
            self.fault.set(reason);
        }
    }

    fn checked<T>(&mut self, result: io::Result<T>) -> Poll<io::Result<T>> {
        if let Err(e) = &result {
            self.look(e);
        }
        Poll::Ready(result)
    }
}

/// Calls the same method on whatever carries the stream.
macro_rules! each {
    ($stream:expr, $io:ident => $call:expr) => {
        match $stream {
            Io::Tcp($io) => $call,
            Io::Tls($io) => $call,
            Io::Quic($io) => $call,
        }
    };
}

impl<M: Meter> AsyncRead for Stream<M> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let result = ready!(each!(&mut this.io, io => Pin::new(io).poll_read(cx, buf)));
        if this.first && buf.filled().len() > before {
            this.first = false;
            let new = buf.filled().get(before..).unwrap_or_default();
            if matches!(this.io, Io::Tcp(_)) && is_tls(new) {
                this.fault.set(explain::TLS_ONLY.to_owned());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, explain::TLS_ONLY)));
            }
        }
        this.checked(result)
    }
}

impl<M: Meter> AsyncWrite for Stream<M> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let result = ready!(each!(&mut this.io, io => Pin::new(io).poll_write(cx, buf)));
        this.checked(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let result = ready!(each!(&mut this.io, io => Pin::new(io).poll_write_vectored(cx, bufs)));
        this.checked(result)
    }

    fn is_write_vectored(&self) -> bool {
        each!(&self.io, io => io.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let result = ready!(each!(&mut this.io, io => Pin::new(io).poll_flush(cx)));
        this.checked(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        each!(&mut this.io, io => Pin::new(io).poll_shutdown(cx))
    }
}

impl<S, M: Meter> Metered<S, M> {
    fn sent(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(n)) = result {
            self.meter.sent(n);
        }
        result
    }
}

impl<S: AsyncRead + Unpin, M: Meter> AsyncRead for Metered<S, M> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        let more = buf.filled().len().saturating_sub(before);
        if more > 0 {
            self.meter.received(more);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin, M: Meter> AsyncWrite for Metered<S, M> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.sent(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.sent(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
