//! The connection under a link: HTTP/2 that any thread can move on, over a transport that knows when it last got anywhere.
//!
//! A device thread that has bytes to send puts them on the stream and polls the connection itself, so that they are in the
//! socket before it goes on: no other thread has to wake up for it. What the socket does not take at once is left to the link's
//! event loop, whose waker is the only one that the connection knows.

use bytes::Bytes;
use h2::SendStream;
use h2::client::Connection;
use outboard_net::{Meter, Stream};
use outboard_proto::chunk::{self, Direction};
use outboard_proto::limits::CHUNK;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// What carries the bytes.
pub(crate) type Transport = Stream<Arc<Progress>>;

/// When bytes last went through, in either direction.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    last_ms: AtomicU64,
}

impl Progress {
    pub(crate) fn new() -> Arc<Progress> {
        Arc::new(Progress { start: Instant::now(), last_ms: AtomicU64::new(0) })
    }

    pub(crate) fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }

    fn note(&self, bytes: usize) {
        if bytes > 0 {
            let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.last_ms.store(ms, Ordering::Relaxed);
        }
    }
}

impl Meter for Progress {
    fn sent(&self, bytes: usize) {
        self.note(bytes);
    }

    fn received(&self, bytes: usize) {
        self.note(bytes);
    }
}

thread_local! {
    /// Set while this thread puts data on a stream of a connection that it polls right after.
    static SENDING: Cell<bool> = const { Cell::new(false) };
}

/// Wakes the link's event loop, but not for what the waking thread itself is about to do.
struct LoopWaker(Waker);

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !SENDING.get() {
            self.0.wake_by_ref();
        }
    }
}

/// An open connection with its one stream.
pub(crate) struct Wire {
    connection: Connection<Transport, Bytes>,
    stream: SendStream<Bytes>,
    /// The event loop's, as it was given and as the connection knows it.
    waker: Option<(Waker, Waker)>,
    ended: Option<String>,
}

impl Wire {
    pub(crate) fn new(connection: Connection<Transport, Bytes>, stream: SendStream<Bytes>) -> Wire {
        Wire { connection, stream, waker: None, ended: None }
    }

    /// Lets the event loop be woken from now on.
    pub(crate) fn register(&mut self, waker: &Waker) {
        if !self.waker.as_ref().is_some_and(|(given, _)| given.will_wake(waker)) {
            self.waker = Some((waker.clone(), Waker::from(Arc::new(LoopWaker(waker.clone())))));
        }
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// What wakes the event loop.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.waker.as_ref().map(|(waker, _)| waker.clone())
    }

    /// Lets `send` put data on the stream, then moves the connection on. The caller holds the lock of the wire, so that nobody
    /// else can come between.
    pub(crate) fn drive(&mut self, send: impl FnOnce(&mut Sender<'_, '_>)) {
        let Some((_, waker)) = self.waker.clone() else { return };
        if self.ended.is_some() {
            return;
        }
        let mut cx = Context::from_waker(&waker);
        SENDING.set(true);
        let mut sender = Sender { stream: &mut self.stream, cx: &mut cx, failed: None };
        send(&mut sender);
        let failed = sender.failed.take();
        SENDING.set(false);
        let ended = match Pin::new(&mut self.connection).poll(&mut cx) {
            Poll::Pending => failed,
            Poll::Ready(Ok(())) => Some("it was closed".to_owned()),
            Poll::Ready(Err(e)) => Some(describe(&e)),
        };
        if ended.is_some() {
            self.ended = ended;
            waker.wake();
        }
    }
}

/// What can be put on the stream now.
pub(crate) struct Sender<'a, 'b> {
    stream: &'a mut SendStream<Bytes>,
    cx: &'a mut Context<'b>,
    failed: Option<String>,
}

impl Sender<'_, '_> {
    /// Room for some of `wanted` bytes; 0 if there is none now: the event loop is woken when there is.
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        if self.failed.is_some() {
            return 0;
        }
        self.stream.reserve_capacity(wanted);
        loop {
            let room = self.stream.capacity();
            if room > 0 {
                return room.min(wanted);
            }
            match self.stream.poll_capacity(self.cx) {
                Poll::Pending => return 0,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(e))) => self.failed = Some(describe(&e)),
                Poll::Ready(None) => self.failed = Some("the stream has ended".into()),
            }
            if self.failed.is_some() {
                return 0;
            }
        }
    }

    /// Bytes that there is room for, or few.
    pub(crate) fn send(&mut self, bytes: Bytes) {
        if let Err(e) = self.stream.send_data(bytes, false)
            && self.failed.is_none()
        {
            self.failed = Some(describe(&e));
        }
    }

    /// The next bytes of a transfer, as a chunk.
    pub(crate) fn chunk(&mut self, transfer: u64, data: Bytes) {
        self.send(chunk::head(Direction::Up, transfer, &data));
        self.send(data);
    }
}

/// Largest piece that is sent of one transfer before another has its turn, in bytes.
pub(crate) const PIECE: usize = if CHUNK < 256 << 10 { CHUNK } else { 256 << 10 };

/// What a failure of HTTP/2 means.
pub(crate) fn describe(e: &h2::Error) -> String {
    match e.get_io() {
        Some(io) => io.to_string(),
        None => e.to_string(),
    }
}
