//! A stream of bytes between two hosts, what goes through it, and why it broke.

use crate::explain;
use crate::limits::TLS_BUFFER;
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
    /// How many bytes may be read now. If none may, the task is woken when that changes; what comes meanwhile waits in the
    /// system, and then at its sender.
    fn poll_allowance(&self, _: &mut Context<'_>) -> Poll<usize> {
        Poll::Ready(usize::MAX)
    }
}

impl<M: Meter> Meter for Arc<M> {
    fn sent(&self, bytes: usize) {
        (**self).sent(bytes);
    }

    fn received(&self, bytes: usize) {
        (**self).received(bytes);
    }

    fn poll_allowance(&self, cx: &mut Context<'_>) -> Poll<usize> {
        (**self).poll_allowance(cx)
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
        let allowed = ready!(self.meter.poll_allowance(cx));
        let before = buf.filled().len();
        let result = if allowed >= buf.remaining() {
            Pin::new(&mut self.io).poll_read(cx, buf)
        } else {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(allowed));
            let result = Pin::new(&mut self.io).poll_read(cx, &mut part);
            let read = part.filled().len();
            buf.advance(read);
            result
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Lets some bytes through, then none until there are more.
    #[derive(Default)]
    struct Gate {
        left: AtomicUsize,
        waker: Mutex<Option<Waker>>,
    }

    impl Meter for Gate {
        fn sent(&self, _: usize) {}

        fn received(&self, bytes: usize) {
            self.left.fetch_sub(bytes, Ordering::SeqCst);
        }

        fn poll_allowance(&self, cx: &mut Context<'_>) -> Poll<usize> {
            match self.left.load(Ordering::SeqCst) {
                0 => {
                    *self.waker.lock().unwrap() = Some(cx.waker().clone());
                    Poll::Pending
                }
                left => Poll::Ready(left),
            }
        }
    }

    #[test]
    fn no_more_is_read_than_is_allowed_and_nothing_is_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            let gate = Arc::new(Gate { left: AtomicUsize::new(1000), ..Default::default() });
            let mut stream = Stream::tcp(socket, gate.clone());
            let sent: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
            client.write_all(&sent).await.unwrap();
            let mut got = vec![0; 5000];
            stream.read_exact(&mut got[..1000]).await.unwrap();
            let more = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut [0; 10])).await;
            assert!(more.is_err(), "{more:?}");
            let opened = gate.clone();
            tokio::spawn(async move {
                opened.left.store(usize::MAX, Ordering::SeqCst);
                opened.waker.lock().unwrap().take().unwrap().wake();
            });
            stream.read_exact(&mut got[1000..]).await.unwrap();
            assert_eq!(got, sent);
        });
    }
}
