//! What a connection keeps account of: requests, queues, and what was freed.

use crate::lock;
use crate::queue::QueueInner;
use outboard_core::device::Completer;
use outboard_core::{Error, Pending, Result};
use outboard_proto::limits::MAX_FREE;
use outboard_proto::v1;
use outboard_proto::v1::control_request::Request;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::Notify;

/// Requests on the control stream that are not answered yet.
#[derive(Default)]
pub(crate) struct Requests(Mutex<HashMap<u64, Completer<()>>>);

impl Requests {
    /// Takes a request into the books.
    pub(super) fn expect(&self, number: u64, what: String) -> Pending<()> {
        let (completer, pending) = Pending::new(what);
        lock(&self.0).insert(number, completer);
        pending
    }

    /// A request was answered.
    pub(super) fn answered(&self, number: u64, result: Result<()>) {
        if let Some(completer) = lock(&self.0).remove(&number) {
            completer.complete(result);
        }
    }

    /// All get this error.
    pub(super) fn fail(&self, error: &Error) {
        let waiting = std::mem::take(&mut *lock(&self.0));
        waiting.into_values().for_each(|w| w.complete(Err(error.clone())));
    }
}

/// The queues of a connection.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Book>);

#[derive(Default)]
struct Book {
    live: HashMap<u64, Weak<QueueInner>>,
    /// All that ever were: their events can be waited for.
    known: HashSet<u64>,
}

impl Queues {
    /// Takes a queue into the books.
    pub(super) fn add(&self, queue: &Arc<QueueInner>) {
        let mut book = lock(&self.0);
        book.live.retain(|_, q| q.strong_count() > 0);
        book.live.insert(queue.uid, Arc::downgrade(queue));
        book.known.insert(queue.uid);
    }

    /// Those that are in use.
    pub(super) fn live(&self) -> Vec<Arc<QueueInner>> {
        lock(&self.0).live.values().filter_map(Weak::upgrade).collect()
    }

    /// Whether any was ever opened.
    pub(crate) fn were_opened(&self) -> bool {
        !lock(&self.0).known.is_empty()
    }

    /// Whether a queue is of this connection.
    pub(crate) fn knows(&self, uid: u64) -> bool {
        lock(&self.0).known.contains(&uid)
    }
}

/// What was dropped here and the server does not know of yet.
#[derive(Default)]
pub(crate) struct Frees {
    dropped: Mutex<Dropped>,
    /// Told of each.
    added: Notify,
}

#[derive(Default)]
struct Dropped {
    buffers: Vec<u64>,
    executables: Vec<u64>,
}

impl Frees {
    pub(super) fn buffer(&self, handle: u64) {
        lock(&self.dropped).buffers.push(handle);
        self.added.notify_one();
    }

    pub(super) fn executable(&self, handle: u64) {
        lock(&self.dropped).executables.push(handle);
        self.added.notify_one();
    }

    /// Completes when there is something to free.
    pub(crate) async fn any(&self) {
        self.added.notified().await;
    }

    /// Gives the requests that free everything to `send`. The fences tell the server to wait for the commands that were enqueued
    /// before.
    pub(super) fn flush(&self, queues: &Queues, mut send: impl FnMut(Request)) {
        // Held until they are in line: an allocation behind them must find the memory free.
        let mut dropped = lock(&self.dropped);
        let Dropped { buffers, executables } = std::mem::take(&mut *dropped);
        if buffers.is_empty() && executables.is_empty() {
            return;
        }
        let fences: Vec<_> = queues.live().iter().map(|q| v1::Fence { queue: q.uid, commands: q.sent() }).collect();
        let (mut buffers, mut executables) = (buffers.chunks(MAX_FREE), executables.chunks(MAX_FREE));
        loop {
            let (b, e) = (buffers.next(), executables.next());
            if b.is_none() && e.is_none() {
                return;
            }
            send(Request::Free(v1::Free {
                buffers: b.unwrap_or_default().to_vec(),
                executables: e.unwrap_or_default().to_vec(),
                fences: fences.clone(),
            }));
        }
    }
}
