//! What others see of a queue: its events, its failure, how far it is, its bulk stream.

use super::progress::{HeldBy, Meter};
use crate::metrics::Metrics;
use crate::session::Session;
use crate::session::answers::WithRoom;
use crate::session::flight::{ChunkRoom, Inlet};
use crate::session::timeline::Timeline;
use outboard_core::Error;
use outboard_proto::v1;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::mpsc;

/// In place of the commands of a queue that takes no more: nobody waits for them.
const CLOSED: u64 = u64::MAX;

/// What others see of a queue.
pub(crate) struct QueueState {
    pub(super) failed: OnceLock<Error>,
    processed: AtomicU64,
    pub(super) metrics: Arc<Metrics>,
    pub(super) timeline: Mutex<Timeline>,
    /// Once it is open.
    pub(super) meter: OnceLock<Meter>,
    pub(super) held: HeldBy,
    /// Ends of the bulk stream's channels, until it takes them.
    pub(crate) bulk: Mutex<Option<BulkEnds>>,
}

/// The bulk stream's ends: where chunks from the client go, and where those for it come from.
pub(crate) struct BulkEnds {
    pub(crate) up: mpsc::Sender<UpChunk>,
    /// Where room for those is taken, before they are read.
    pub(crate) room: Inlet,
    pub(crate) down: mpsc::UnboundedReceiver<WithRoom<v1::Chunk>>,
}

/// A chunk on its way to a queue, and its room until the device's queue has taken it.
pub(crate) type UpChunk = (v1::Chunk, ChunkRoom);

impl QueueState {
    pub(super) fn new(metrics: &Arc<Metrics>, bulk: BulkEnds) -> QueueState {
        QueueState {
            failed: OnceLock::new(),
            processed: AtomicU64::new(0),
            metrics: metrics.clone(),
            timeline: Mutex::default(),
            meter: OnceLock::new(),
            held: HeldBy::default(),
            bulk: Mutex::new(Some(bulk)),
        }
    }

    /// Notes a failure; `true` if it is the first one, which stays.
    pub(crate) fn note_failure(&self, error: &Error) -> bool {
        let is_first = self.failed.set(error.clone()).is_ok();
        if is_first {
            self.metrics.error(error);
        }
        is_first
    }

    /// It cannot be opened: who waits for it learns why, frees do not wait for it, and there may be another one.
    pub(super) fn refuse(&self, session: &Session, error: &Error) {
        self.note_failure(error);
        self.close(session);
    }

    /// It takes no more commands.
    pub(super) fn close(&self, session: &Session) {
        self.processed.store(CLOSED, Ordering::Release);
        session.progress.notify_waiters();
    }

    /// Whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.processed() != CLOSED
    }

    /// Commands that the queue has been given.
    pub(crate) fn processed(&self) -> u64 {
        self.processed.load(Ordering::Acquire)
    }

    /// Counts a command that the queue has been given.
    pub(super) fn count_command(&self) {
        self.processed.fetch_add(1, Ordering::AcqRel);
    }
}
