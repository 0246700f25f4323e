//! How a queue is opened.

use super::progress::Meter;
use super::{BulkEnds, QueueRunner, QueueState};
use crate::accounts::AccountShare;
use crate::limits::{BULK_CHUNKS, KNOWN_QUEUES};
use crate::lock;
use crate::metrics::QueueMeter;
use crate::server::Shared;
use crate::session::Session;
use crate::session::answers::{Answers, Replies};
use crate::session::flight::{Flight, Inlet, Load};
use outboard_core::{Device, Error, Queue, Result, Slice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// A device's queue, dropped on the session's thread: that may wait for the device.
pub(super) struct DeviceQueue {
    /// `None` once it is dropped.
    pub(super) queue: Option<Arc<dyn Queue>>,
    session: Arc<Session>,
    share: Option<Arc<AccountShare>>,
}

impl DeviceQueue {
    pub(super) fn get(&self) -> Result<&Arc<dyn Queue>> {
        self.queue.as_ref().ok_or(Error::Cancelled)
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        let (queue, share, session) = (self.queue.take(), self.share.take(), self.session.clone());
        self.session.worker.post(move || {
            drop(queue);
            drop(share);
            session.live_queues.fetch_sub(1, Ordering::AcqRel);
            session.progress.notify_waiters();
        });
    }
}

/// A queue that is being opened. Dropped before it is done, as by a stream that ends, it is refused, so that none is left behind that counts
/// as open.
struct Opening<'a> {
    session: &'a Session,
    state: Option<&'a QueueState>,
}

impl Opening<'_> {
    fn done(mut self) {
        self.state = None;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state {
            state.refuse(self.session, &Error::Cancelled);
        }
    }
}

/// Notes a new queue under its handle, and gives its device.
fn register(session: &Session, handle: u64, device: &str, state: &Arc<QueueState>) -> Result<Arc<dyn Device>> {
    let mut queues = lock(&session.queues);
    if queues.len() >= KNOWN_QUEUES {
        // Those that are closed are kept only for the sake of late waits and frees.
        queues.retain(|_, queue| queue.is_open());
    }
    if handle == 0 || queues.contains_key(&handle) || queues.len() >= KNOWN_QUEUES {
        return Err(Error::Request(format!(
            "queue {handle} cannot be made: the handle is 0 or taken, or there are {KNOWN_QUEUES}"
        )));
    }
    let (open, limit) = (queues.values().filter(|queue| queue.is_open()).count(), session.max_queues());
    queues.insert(handle, state.clone());
    drop(queues);
    let found = if open < limit {
        session.devices.get(device).cloned()
    } else {
        Err(Error::Request(format!("a session may have {limit} queues at a time; close one first")))
    };
    found.inspect_err(|error| state.refuse(session, error))
}

/// Makes the device's queue, and its anchor, on the session's thread, unless the session has been taken up again since `age`.
async fn make(
    session: &Arc<Session>,
    device: &Arc<dyn Device>,
    handle: u64,
    age: u64,
    meter: QueueMeter,
) -> Result<(Slice, DeviceQueue)> {
    let share = session.account.queue();
    let (owner, device) = (session.clone(), device.clone());
    let job = move || {
        // Whoever takes it up waits for the jobs before, and for the queues that they have opened.
        if owner.keys.is_renewed(age) {
            return Err(Error::Cancelled);
        }
        let share = Arc::new(share?);
        let anchor = owner.anchor(device.as_ref())?;
        let queue = device.queue()?;
        owner.trace.watch(queue.as_ref(), handle, &device.info().name, meter)?;
        owner.live_queues.fetch_add(1, Ordering::AcqRel);
        Ok((anchor, DeviceQueue { queue: Some(queue), session: owner, share: Some(share) }))
    };
    session.worker.run(job).await
}

impl QueueRunner {
    /// Opens a queue under a new handle, unless the session has been taken up again since `age`.
    pub(crate) async fn open(
        session: &Arc<Session>,
        shared: &Arc<Shared>,
        handle: u64,
        device: &str,
        replies: Replies,
        age: u64,
    ) -> Result<QueueRunner> {
        let (up, chunks) = mpsc::channel(BULK_CHUNKS);
        let (chunks_down, down) = mpsc::unbounded_channel();
        let bulk = BulkEnds { up, room: Inlet::new(session.account.payload.clone()), down };
        let state = Arc::new(QueueState::new(&shared.metrics, bulk));
        let device = register(session, handle, device, &state)?;
        let opening = Opening { session, state: Some(&state) };
        let meter = shared.metrics.queue(&device.info().name, session.account.name());
        let depth = meter.depth.clone();
        let made = make(session, &device, handle, age, meter).await;
        let made = made.inspect_err(|error| state.refuse(session, error));
        session.progress.notify_waiters();
        let (anchor, queue) = made?;
        let _ = state.meter.set(Meter::new(device.clone(), queue.get()?.progress()));
        opening.done();
        Ok(QueueRunner {
            session: session.clone(),
            store: shared.blobs.clone(),
            peers: shared.peers.clone(),
            handle,
            device,
            flight: Arc::new(Flight::new(queue.share.clone(), session.account.payload.clone(), depth)),
            queue,
            answers: Answers { state: state.clone(), replies, chunks: chunks_down },
            state,
            unmarked: Load::default(),
            anchor,
            left: Arc::default(),
            chunks: Some(chunks),
            link: None,
            blobs: None,
            unsettled: false,
        })
    }
}
