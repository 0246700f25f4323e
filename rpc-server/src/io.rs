//! The traffic of a connection: when it was last heard, how much may be read before its client has shown who it is, and its bytes,
//! counted for its client.

use crate::limits::EARLY_READ;
use crate::lock;
use crate::metrics::ByteMeter;
use outboard_net::Meter;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What is known about the traffic of a connection.
#[derive(Debug)]
pub(crate) struct Traffic {
    start: Instant,
    heard_ms: AtomicU64,
    /// Whose bytes they are, once a session is known.
    client: OnceLock<ByteMeter>,
    /// Those from before.
    early: [AtomicU64; 2],
    allowance: Allowance,
}

/// Bytes that may be read.
#[derive(Debug)]
struct Allowance {
    /// As many as there are.
    unlimited: AtomicBool,
    left: AtomicUsize,
    /// Some have just been read: what they make comes first.
    pause: AtomicBool,
    /// Who waits for more.
    waiting: Mutex<Option<Waker>>,
}

impl Traffic {
    /// Of a connection from which so many bytes are read until it is trusted.
    pub(crate) fn new(early: usize) -> Traffic {
        let allowance = Allowance {
            unlimited: AtomicBool::new(false),
            left: AtomicUsize::new(early),
            pause: AtomicBool::new(false),
            waiting: Mutex::default(),
        };
        let (client, early) = (OnceLock::new(), Default::default());
        Traffic { start: Instant::now(), heard_ms: AtomicU64::new(0), client, early, allowance }
    }

    /// From now on all is read that comes.
    pub(crate) fn trust(&self) {
        self.allowance.unlimited.store(true, Ordering::Release);
        if let Some(waker) = lock(&self.allowance.waiting).take() {
            waker.wake();
        }
    }

    /// When bytes came last, or the connection began.
    pub(crate) fn heard(&self) -> Instant {
        self.start + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// When the connection began.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// From now on its bytes are counted as those of a client, with those that there were.
    pub(crate) fn is_of(&self, client: impl FnOnce() -> ByteMeter) {
        if self.client.get().is_some() {
            return;
        }
        let client = self.client.get_or_init(client);
        client.sent.inc_by(self.early[0].swap(0, Ordering::Relaxed));
        client.received.inc_by(self.early[1].swap(0, Ordering::Relaxed));
    }
}

impl Meter for Traffic {
    fn sent(&self, bytes: usize) {
        match self.client.get() {
            Some(client) => client.sent.inc_by(bytes as u64),
            None => self.early[0].fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }

    fn received(&self, bytes: usize) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(ms, Ordering::Relaxed);
        match self.client.get() {
            Some(client) => client.received.inc_by(bytes as u64),
            None => self.early[1].fetch_add(bytes as u64, Ordering::Relaxed),
        };
        if !self.allowance.unlimited.load(Ordering::Relaxed) {
            // One task reads, so that nobody takes from it in between.
            let left = self.allowance.left.load(Ordering::Relaxed);
            self.allowance.left.store(left.saturating_sub(bytes), Ordering::Relaxed);
            self.allowance.pause.store(true, Ordering::Relaxed);
        }
    }

    fn poll_allowance(&self, cx: &mut Context<'_>) -> Poll<usize> {
        let Allowance { unlimited, left, pause, waiting } = &self.allowance;
        if unlimited.load(Ordering::Acquire) {
            return Poll::Ready(usize::MAX);
        }
        match left.load(Ordering::Relaxed) {
            0 => {}
            _ if pause.swap(false, Ordering::Relaxed) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            left => return Poll::Ready(left.min(EARLY_READ)),
        }
        *lock(waiting) = Some(cx.waker().clone());
        // It may have become trusted before there was anybody to wake.
        if unlimited.load(Ordering::Acquire) { Poll::Ready(usize::MAX) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_is_read_early_is_bounded_until_the_connection_is_trusted() {
        let (traffic, count) = (Traffic::new(EARLY_READ + 100), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let woken = || count.0.load(Ordering::SeqCst);
        assert_eq!(traffic.poll_allowance(&mut cx), Poll::Ready(EARLY_READ));
        traffic.received(EARLY_READ);
        // A pause, in which the task is not lost.
        assert_eq!((traffic.poll_allowance(&mut cx), woken()), (Poll::Pending, 1));
        assert_eq!(traffic.poll_allowance(&mut cx), Poll::Ready(100));
        traffic.received(100);
        assert_eq!((traffic.poll_allowance(&mut cx), woken()), (Poll::Pending, 1));
        traffic.trust();
        assert_eq!(woken(), 2);
        traffic.received(1 << 30);
        assert_eq!(traffic.poll_allowance(&mut cx), Poll::Ready(usize::MAX));
    }
}
