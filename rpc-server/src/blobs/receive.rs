//! Blobs as they come from a client: hashed, and kept if they are what they are said to be.
//!
//! A queue that receives blobs has a thread for that, beside the device that gets the same bytes, so that neither hashing nor the
//! disk stands in the way of the network. What waits for the thread is bounded.

use super::{Blob, Blobs};
use bytes::Bytes;
use outboard_core::{Digest, Error, Result};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Parts that wait for the thread, each a megabyte at most.
const WAITING: usize = 8;

enum Step {
    Begin(Blob),
    Data(Bytes),
    Settle(oneshot::Sender<Result<()>>),
}

/// The queue's side.
pub(crate) struct Receiver(mpsc::Sender<Step>);

impl Receiver {
    /// Starts the thread; it ends when the receiver is dropped.
    pub(crate) fn start(blobs: Option<Arc<Blobs>>) -> Result<Receiver> {
        let (steps, todo) = mpsc::channel(WAITING);
        std::thread::Builder::new()
            .name("blobs".into())
            .spawn(move || run(blobs.as_deref(), todo))
            .map_err(|e| Error::Request(format!("no thread to receive blobs: {e}")))?;
        Ok(Receiver(steps))
    }

    /// The next bytes belong to this blob.
    pub(crate) async fn begin(&self, blob: Blob) -> Result<()> {
        self.step(Step::Begin(blob)).await
    }

    /// The next bytes of the blob.
    pub(crate) async fn data(&self, data: Bytes) -> Result<()> {
        self.step(Step::Data(data)).await
    }

    /// Waits until all blobs so far are checked. Fails if one was not what it was said to be.
    pub(crate) async fn settle(&self) -> Result<()> {
        let (to, result) = oneshot::channel();
        self.step(Step::Settle(to)).await?;
        result.await.unwrap_or_else(|_| Err(panicked()))
    }

    async fn step(&self, step: Step) -> Result<()> {
        self.0.send(step).await.map_err(|_| panicked())
    }
}

fn panicked() -> Error {
    Error::Request("receiving blobs failed because of a bug of the server; see its log".into())
}

/// A blob that has not come to its end.
struct Coming<'b> {
    blob: Blob,
    left: u64,
    hasher: blake3::Hasher,
    writer: Option<super::cache::Writer<'b>>,
}

fn run(blobs: Option<&Blobs>, mut todo: mpsc::Receiver<Step>) {
    let mut coming: Option<Coming<'_>> = None;
    let mut failed: Option<Error> = None;
    while let Some(step) = todo.blocking_recv() {
        match step {
            Step::Begin(blob) => {
                let writer = blobs.and_then(|b| b.begin(blob));
                coming = Some(Coming { blob, left: blob.len, hasher: blake3::Hasher::new(), writer });
            }
            Step::Data(data) => {
                let Some(c) = &mut coming else { continue };
                c.hasher.update(&data);
                if let Some(writer) = &mut c.writer {
                    writer.write(&data);
                }
                c.left = c.left.saturating_sub(data.len() as u64);
                if c.left > 0 {
                    continue;
                }
                let Some(Coming { blob, hasher, writer, .. }) = coming.take() else { continue };
                match Digest(*hasher.finalize().as_bytes()) == blob.digest {
                    true => writer.into_iter().for_each(super::cache::Writer::finish),
                    false => {
                        drop(writer);
                        failed.get_or_insert_with(|| wrong(&blob));
                    }
                }
            }
            Step::Settle(to) => {
                let _ = to.send(failed.clone().map_or(Ok(()), Err));
            }
        }
    }
}

fn wrong(blob: &Blob) -> Error {
    Error::Request(format!(
        "{} bytes of weights do not have the BLAKE3 digest {} that they were sent with, and were refused: they were damaged on the \
         way, or the client's file has changed; load it again",
        blob.len, blob.digest
    ))
}
