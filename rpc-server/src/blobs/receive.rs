//! Blobs as they come from a client: hashed, and kept if they are what they are said to be.
//!
//! A queue that receives blobs has a thread for that, beside the device that gets the same bytes, so that neither hashing nor the
//! disk stands in the way of the network. What waits for the thread counts as on the way in its queue. The thread ends at its next
//! megabyte when the queue has gone; only then may the client have another one.

use super::{Blob, Blobs, Writer};
use crate::accounts::{Account, AccountShare};
use crate::session::flight::Hold;
use bytes::Bytes;
use outboard_core::{Error, Result, Slice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Steps that wait for the thread, each a megabyte at most.
const WAITING: usize = 8;

enum Step {
    Begin(Blob, Slice),
    Data(Bytes, Hold),
    Settle(oneshot::Sender<std::result::Result<(), Wrong>>),
}

/// Blobs did not have their digests, or have not come to their end.
#[derive(Clone, Debug)]
pub(crate) struct Wrong {
    /// About the first of them.
    pub(crate) error: Error,
    /// Where they have gone.
    pub(crate) places: Vec<Slice>,
}

/// What both sides look at.
#[derive(Debug, Default)]
struct Flags {
    /// The client has gone: nothing waits for the disk.
    leaving: AtomicBool,
    /// The queue has gone.
    gone: AtomicBool,
    /// A blob was wrong.
    wrong: AtomicBool,
}

/// The queue's side.
pub(crate) struct Receiver {
    steps: mpsc::Sender<Step>,
    flags: Arc<Flags>,
}

impl Receiver {
    /// Starts the thread for a queue of a client; it ends when the receiver is dropped.
    pub(crate) fn start(blobs: Option<Arc<Blobs>>, client: &Arc<Account>) -> Result<Receiver> {
        let (steps, todo) = mpsc::channel(WAITING);
        let flags = Arc::new(Flags::default());
        let share = client.blob_receiver()?;
        let thread = Thread { blobs, client: client.clone(), flags: flags.clone(), _share: share };
        std::thread::Builder::new()
            .name("blobs".into())
            .spawn(move || thread.run(todo))
            .map_err(|e| Error::Request(format!("no thread to receive blobs: {e}")))?;
        Ok(Receiver { steps, flags })
    }

    /// The next bytes belong to this blob, which goes there.
    pub(crate) async fn begin(&self, blob: Blob, dst: Slice) -> Result<()> {
        self.step(Step::Begin(blob, dst)).await
    }

    /// The next bytes of the blob, and the room that they take until they are hashed.
    pub(crate) async fn data(&self, data: Bytes, hold: Hold) -> Result<()> {
        self.step(Step::Data(data, hold)).await
    }

    /// Whether it is known already that a blob was wrong.
    pub(crate) fn has_failed(&self) -> bool {
        self.flags.wrong.load(Ordering::Relaxed)
    }

    /// Nothing more comes.
    pub(crate) fn leave(&self) {
        self.flags.leaving.store(true, Ordering::Relaxed);
    }

    /// Waits until all blobs so far are checked, and says which were not what they were said to be. One that has not come to its end
    /// does not come any more.
    pub(crate) async fn settle(&self) -> Result<Option<Wrong>> {
        let (to, result) = oneshot::channel();
        self.step(Step::Settle(to)).await?;
        Ok(result.await.map_err(|_| panicked())?.err())
    }

    async fn step(&self, step: Step) -> Result<()> {
        self.steps.send(step).await.map_err(|_| panicked())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.leave();
        self.flags.gone.store(true, Ordering::Relaxed);
    }
}

fn panicked() -> Error {
    Error::Request("receiving blobs failed because of a bug of the server; see its log".into())
}

/// A blob that has not come to its end.
struct Coming {
    blob: Blob,
    dst: Slice,
    left: u64,
    hasher: blake3::Hasher,
    writer: Option<Writer>,
}

/// The thread, and what it takes.
struct Thread {
    blobs: Option<Arc<Blobs>>,
    client: Arc<Account>,
    flags: Arc<Flags>,
    _share: AccountShare,
}

impl Thread {
    fn run(self, mut todo: mpsc::Receiver<Step>) {
        let mut coming: Option<Coming> = None;
        let mut failed: Option<Wrong> = None;
        while let Some(step) = todo.blocking_recv() {
            if self.flags.gone.load(Ordering::Relaxed) {
                return;
            }
            match step {
                Step::Begin(blob, dst) => coming = Some(self.begin(blob, dst)),
                Step::Data(data, hold) => {
                    coming = coming.and_then(|coming| self.data(coming, &data, &mut failed));
                    drop((data, hold));
                }
                Step::Settle(to) => {
                    if let Some(Coming { blob, dst, .. }) = coming.take() {
                        add(&mut failed, &blob, dst);
                    }
                    let _ = to.send(failed.take().map_or(Ok(()), Err));
                }
            }
        }
    }

    fn begin(&self, blob: Blob, dst: Slice) -> Coming {
        let begin = |blobs: &Arc<Blobs>| blobs.begin_in_time(blob, &self.client, &self.flags.leaving);
        let writer = self.blobs.as_ref().and_then(begin);
        Coming { blob, dst, left: blob.len, hasher: blake3::Hasher::new(), writer }
    }

    /// The next bytes of a blob: gives it back if there are more to come.
    fn data(&self, mut coming: Coming, data: &[u8], failed: &mut Option<Wrong>) -> Option<Coming> {
        coming.hasher.update(data);
        coming.writer.iter_mut().for_each(|writer| writer.write(data));
        coming.left = coming.left.saturating_sub(data.len() as u64);
        if coming.left > 0 {
            return Some(coming);
        }
        let Coming { blob, dst, hasher, writer, .. } = coming;
        if hasher.finalize() == blob.digest.0 {
            writer.into_iter().for_each(Writer::finish);
        } else {
            drop(writer);
            self.blobs.iter().for_each(|blobs| blobs.wrong(&self.client));
            add(failed, &blob, dst);
            self.flags.wrong.store(true, Ordering::Relaxed);
        }
        None
    }
}

fn add(failed: &mut Option<Wrong>, blob: &Blob, dst: Slice) {
    failed.get_or_insert_with(|| Wrong { error: wrong(blob), places: Vec::new() }).places.push(dst);
}

fn wrong(blob: &Blob) -> Error {
    Error::Request(format!(
        "{} bytes of weights do not have the BLAKE3 digest {} that they were sent with, and were refused: they were damaged on the \
         way, or the client's file has changed; load it again",
        blob.len, blob.digest
    ))
}
