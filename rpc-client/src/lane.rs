//! A bounded line of bytes from callers to a stream.
//!
//! Callers append encoded messages; the event loop takes all that is there at once, so that a burst of commands is one frame and
//! one wake-up. Payloads are passed on by reference. A full line makes its callers wait, which is how a slow server slows them. They have
//! no deadline of their own: [`crate::stall`] watches them, and gives up a server that takes nothing.

use crate::lock;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(crate) struct Lane {
    state: Mutex<State>,
    space: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    /// What goes before `tail`.
    parts: VecDeque<Bytes>,
    /// Messages that are still being gathered.
    tail: BytesMut,
    bytes: usize,
    /// Bytes that were taken, in all.
    taken: u64,
    /// Callers that wait for room.
    waiting: usize,
    waker: Option<Waker>,
    /// Nothing more will be added.
    closed: bool,
    /// Nothing more will be taken.
    broken: bool,
}

/// How much was taken from a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    /// Callers wait for room.
    pub(crate) callers_wait: bool,
}

/// What a caller does at a line without room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    Wait,
    Exceed,
}

impl Lane {
    /// A line that holds about `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Lane> {
        Arc::new(Lane { state: Mutex::default(), space: Condvar::new(), limit })
    }

    /// Appends what `write` writes, when there is room. `false` if nobody takes it any more.
    pub(crate) fn push(&self, write: impl FnOnce(&mut BytesMut)) -> bool {
        self.add(WhenFull::Wait, |state| write(&mut state.tail))
    }

    /// Appends at once, room or not: for what the event loop itself has to say.
    pub(crate) fn push_now(&self, write: impl FnOnce(&mut BytesMut)) -> bool {
        self.add(WhenFull::Exceed, |state| write(&mut state.tail))
    }

    /// Appends a payload with its head, when there is room.
    pub(crate) fn push_payload(&self, head: Bytes, payload: Bytes) -> bool {
        self.add(WhenFull::Wait, |state| {
            if !state.tail.is_empty() {
                let tail = state.tail.split().freeze();
                state.parts.push_back(tail);
            }
            state.parts.extend([head, payload]);
        })
    }

    fn add(&self, when_full: WhenFull, write: impl FnOnce(&mut State)) -> bool {
        let mut state = lock(&self.state);
        while when_full == WhenFull::Wait && state.bytes >= self.limit && !state.broken && !state.closed {
            state.waiting += 1;
            state = self.space.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.broken || state.closed {
            return false;
        }
        write(&mut state);
        state.bytes = state.parts.iter().map(Bytes::len).sum::<usize>() + state.tail.len();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// How much was taken from it until now.
    pub(crate) fn taken(&self) -> Taken {
        let state = lock(&self.state);
        Taken { bytes: state.taken, callers_wait: state.waiting > 0 }
    }

    /// Says that nothing more comes; what is there is still sent.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.space.notify_all();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Throws away what is there and lets all callers go.
    pub(crate) fn break_off(&self) {
        let mut state = lock(&self.state);
        state.broken = true;
        state.parts.clear();
        state.tail.clear();
        self.space.notify_all();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// The end that a request sends. Dropped, it breaks the line off.
#[derive(Debug)]
pub(crate) struct LaneBody(pub(crate) Arc<Lane>);

impl Body for LaneBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut state = lock(&self.0.state);
        if state.broken {
            return Poll::Ready(None);
        }
        let next = match state.parts.pop_front() {
            Some(part) => part,
            None if !state.tail.is_empty() => state.tail.split().freeze(),
            None if state.closed => return Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        };
        state.bytes = state.bytes.saturating_sub(next.len());
        state.taken += next.len() as u64;
        self.0.space.notify_all();
        Poll::Ready(Some(Ok(Frame::data(next))))
    }
}

impl Drop for LaneBody {
    fn drop(&mut self) {
        self.0.break_off();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: &mut LaneBody) -> Option<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
            _ => None,
        }
    }

    #[test]
    fn messages_are_gathered_and_payloads_are_not_copied() {
        let lane = Lane::new(1 << 20);
        let mut body = LaneBody(lane.clone());
        assert!(take(&mut body).is_none());
        let payload = Bytes::from(vec![9; 5000]);
        lane.push(|b| b.extend_from_slice(b"ab"));
        lane.push(|b| b.extend_from_slice(b"cd"));
        lane.push_payload(Bytes::from_static(b"head"), payload.clone());
        lane.push(|b| b.extend_from_slice(b"ef"));
        assert_eq!(take(&mut body).unwrap(), "abcd");
        assert_eq!(take(&mut body).unwrap(), "head");
        assert_eq!(take(&mut body).unwrap().as_ptr(), payload.as_ptr());
        assert_eq!(take(&mut body).unwrap(), "ef");
        lane.close();
        assert!(!lane.push(|_| {}));
    }

    #[test]
    fn a_full_line_waits_until_there_is_room_or_it_breaks() {
        let lane = Lane::new(10);
        let mut body = LaneBody(lane.clone());
        assert!(lane.push(|b| b.extend_from_slice(&[0; 10])));
        let (other, second) = (lane.clone(), lane.clone());
        assert_eq!(lane.taken(), Taken { bytes: 0, callers_wait: false });
        let writer = std::thread::spawn(move || other.push(|b| b.extend_from_slice(&[1; 10])));
        while lane.taken() != (Taken { bytes: 0, callers_wait: true }) {
            std::thread::yield_now();
        }
        assert_eq!(take(&mut body).unwrap().len(), 10);
        assert!(writer.join().unwrap());
        assert_eq!(lane.taken(), Taken { bytes: 10, callers_wait: false });
        let writer = std::thread::spawn(move || second.push(|_| {}));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(body);
        assert!(!writer.join().unwrap());
    }
}
