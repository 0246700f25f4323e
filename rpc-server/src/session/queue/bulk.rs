//! Payloads that come and go in chunks on the bulk stream, and those that are blobs: checked before anybody uses them.

use super::QueueRunner;
use super::progress::HeldUp;
use crate::blobs::{Blob, DEVICE_WAIT, Receiver, Wrong};
use crate::limits::CUT_STREAM;
use crate::session::answers::To;
use crate::session::flight::Hold;
use bytes::Bytes;
use outboard_core::{Digest, Error, Result, Slice};
use outboard_proto::limits::CHUNK;
use outboard_proto::v1;
use tokio::sync::oneshot;

/// Whether a payload is a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    Blob,
    Plain,
}

impl QueueRunner {
    /// Writes chunks as they come, straight to their place, and shows those of a blob to its receiver.
    pub(super) async fn write_bulk(&mut self, c: v1::WriteBulk) -> Result<()> {
        let dst = self.slice(c.dst)?;
        let payload = self.expect_blob(&c.digest, &dst).await?;
        let _timer = self.state.metrics.transfer("upload");
        let mut at = 0;
        while at < dst.len() {
            let (chunk, room) = self.next_chunk().await?;
            let len = chunk.data.len() as u64;
            if chunk.transfer != c.transfer || len == 0 || len > dst.len() - at {
                return Err(Error::Request(format!(
                    "{len} bytes of transfer {} came instead of {} of transfer {}",
                    chunk.transfer,
                    dst.len() - at,
                    c.transfer
                )));
            }
            if payload == Payload::Blob {
                self.show(chunk.data.clone()).await?;
            }
            self.take(len).await?;
            drop(room);
            self.queue.get()?.write(&dst.part(at, len)?, chunk.data)?;
            self.mark()?;
            at += len;
        }
        Ok(())
    }

    async fn next_chunk(&mut self) -> Result<super::UpChunk> {
        let session = self.session.clone();
        let chunks = self.chunks.as_mut().ok_or(Error::Cancelled)?;
        if let Some(chunk) = session.while_open(chunks.recv()).await? {
            return Ok(chunk);
        }
        // Whose connection was lost finds that out itself, and says better than this what is to be done.
        session.while_open(tokio::time::sleep(CUT_STREAM)).await?;
        let detail = "the stream of bulk data ended in the middle of a payload: its connection was lost, or the client has closed it";
        Err(Error::Request(detail.into()))
    }

    /// Reads in chunks, no more at a time than may wait.
    pub(super) async fn read_bulk(&mut self, request: u64, src: &Slice) -> Result<()> {
        let _timer = self.state.metrics.transfer("download");
        let mut at = 0;
        while at < src.len() {
            let len = (src.len() - at).min(CHUNK as u64);
            self.take(len).await?;
            let pending = self.queue.get()?.read(&src.part(at, len)?)?;
            self.answer(pending, To::Chunk(request));
            at += len;
        }
        if src.is_empty() { self.reply_done(request, None).await } else { Ok(()) }
    }

    /// If a payload has a digest, prepares for checking it and keeping it.
    async fn expect_blob(&mut self, digest: &[u8], dst: &Slice) -> Result<Payload> {
        if digest.is_empty() || dst.is_empty() {
            return Ok(Payload::Plain);
        }
        let wrong = || Error::Request(format!("a digest has {} bytes, not {}", Digest::BYTES, digest.len()));
        let digest = Digest::from_slice(digest).ok_or_else(wrong)?;
        let blobs = match &mut self.blobs {
            Some(blobs) => blobs,
            none => none.insert(Receiver::start(self.store.clone(), &self.session.account)?),
        };
        self.unsettled = true;
        let blob = Blob { digest, len: dst.len() };
        self.session.while_open(blobs.begin(blob, dst.clone())).await??;
        Ok(Payload::Blob)
    }

    /// Shows bytes of a blob to its receiver. They take room on the way until it has hashed them, too.
    async fn show(&mut self, data: Bytes) -> Result<()> {
        let load = self.payload(data.len() as u64).await?;
        let hold = Hold::new(&self.flight, load);
        let Some(blobs) = &self.blobs else { return Ok(()) };
        let _held = self.state.hold_up(HeldUp::Disk);
        self.session.while_open(blobs.data(data, hold)).await?
    }

    /// Waits until the blobs so far are checked. If some were wrong, fails when the device has cleared their places.
    pub(super) async fn settle(&mut self) -> Result<()> {
        let Some(blobs) = self.blobs.as_ref().filter(|_| self.unsettled) else { return Ok(()) };
        let held = self.state.hold_up(HeldUp::Disk);
        let wrong = self.session.while_open(blobs.settle()).await??;
        drop(held);
        self.unsettled = false;
        let Some(Wrong { error, places }) = wrong else { return Ok(()) };
        for place in places {
            self.take(0).await?;
            self.queue.get()?.fill(&place, 0)?;
        }
        self.until_done().await?;
        Err(error)
    }

    /// Waits until the device has done everything so far.
    async fn until_done(&mut self) -> Result<()> {
        self.take(0).await?;
        let (to, done) = oneshot::channel();
        let hold = self.hold();
        self.queue.get()?.read(&self.anchor)?.then(move |result| {
            drop(hold);
            // Whoever does not wait any more does not matter.
            let _ = to.send(result.map(drop));
        });
        let late = |_| Error::Timeout { what: "a device to take what was sent".into(), after: DEVICE_WAIT };
        let done = self.session.while_open(tokio::time::timeout(DEVICE_WAIT, done)).await?;
        done.map_err(late)?.map_err(|_| Error::Cancelled)?
    }
}
