//! From where this server has a blob to where a client wants it, and back: what another server has sent is checked and kept.

use super::{Blob, Blobs, PART};
use crate::session::Session;
use bytes::Bytes;
use outboard_core::{Device, Digest, Error, Pending, Queue, Result, Slice};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that a device's queue holds before it is waited for: twice this at most.
const AHEAD: u64 = 4 << 20;
/// Parts that are read from a device while one is hashed.
const READ_AHEAD: usize = 3;
/// Longest wait for a device to take that much. A device that takes longer is broken.
const DEVICE_WAIT: Duration = Duration::from_secs(300);

/// A blob, and where it goes.
pub(crate) struct Placing {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) dst: Slice,
    pub(crate) blob: Blob,
}

/// Copies blobs to their places and says which of them are there, whole. Blocks. The session's other queues run beside it.
pub(crate) fn place(session: &Session, blobs: &Blobs, places: &[Placing]) -> Result<Vec<bool>> {
    let mut writers: HashMap<u64, DeviceWriter<'_>> = HashMap::new();
    let mut placed = Vec::with_capacity(places.len());
    for Placing { device, dst, blob } in places {
        let writer = match writers.entry(device.uid()) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => e.insert(DeviceWriter::new(session, device.as_ref())?),
        };
        placed.push(blobs.read(blob, |at, part| writer.write(dst, at, part))?);
    }
    writers.into_values().try_for_each(DeviceWriter::finish)?;
    Ok(placed)
}

/// Reads blobs from their places, says which of them have their digest, and keeps those. Blocks.
pub(crate) fn check(session: &Session, blobs: &Blobs, places: &[Placing]) -> Result<Vec<bool>> {
    places.iter().map(|place| check_one(session, blobs, place)).collect()
}

fn check_one(session: &Session, blobs: &Blobs, Placing { device, dst, blob }: &Placing) -> Result<bool> {
    let queue = SessionQueue::new(session, device.as_ref())?;
    let mut writer = blobs.begin(*blob);
    let mut hasher = blake3::Hasher::new();
    let mut read = VecDeque::new();
    let mut at = 0;
    loop {
        while read.len() < READ_AHEAD && at < blob.len {
            let len = (blob.len - at).min(PART as u64);
            read.push_back(queue.get()?.read(&dst.part(at, len)?)?);
            at += len;
        }
        let Some(part) = read.pop_front() else { break };
        let part = part.wait(DEVICE_WAIT)?;
        hasher.update(&part);
        if let Some(writer) = &mut writer {
            writer.write(&part);
        }
        if session.is_closed() {
            return Err(Error::Cancelled);
        }
    }
    let good = Digest(*hasher.finalize().as_bytes()) == blob.digest;
    if let Some(writer) = writer.filter(|_| good) {
        writer.finish();
    }
    Ok(good)
}

/// A queue of the device, counted as the session's.
struct SessionQueue<'s> {
    session: &'s Session,
    queue: Option<Arc<dyn Queue>>,
}

impl<'s> SessionQueue<'s> {
    fn new(session: &'s Session, device: &dyn Device) -> Result<SessionQueue<'s>> {
        let queue = device.queue()?;
        session.live_queues.fetch_add(1, Ordering::AcqRel);
        Ok(SessionQueue { session, queue: Some(queue) })
    }

    fn get(&self) -> Result<&dyn Queue> {
        self.queue.as_deref().ok_or(Error::Cancelled)
    }
}

impl Drop for SessionQueue<'_> {
    fn drop(&mut self) {
        // Freed before the session may say that it has ended.
        drop(self.queue.take());
        self.session.live_queues.fetch_sub(1, Ordering::AcqRel);
        self.session.progress.notify_waiters();
    }
}

/// Writes to a device, not too far ahead of it.
struct DeviceWriter<'s> {
    queue: SessionQueue<'s>,
    anchor: Slice,
    /// Bytes since the last mark.
    unmarked: u64,
    mark: Option<Pending<Bytes>>,
}

impl<'s> DeviceWriter<'s> {
    fn new(session: &'s Session, device: &dyn Device) -> Result<DeviceWriter<'s>> {
        let anchor = session.anchor(device)?;
        Ok(DeviceWriter { queue: SessionQueue::new(session, device)?, anchor, unmarked: 0, mark: None })
    }

    fn write(&mut self, dst: &Slice, at: u64, part: Vec<u8>) -> Result<()> {
        if self.queue.session.is_closed() {
            return Err(Error::Cancelled);
        }
        let len = part.len() as u64;
        self.queue.get()?.write(&dst.part(at, len)?, part.into())?;
        self.unmarked += len;
        if self.unmarked >= AHEAD {
            self.unmarked = 0;
            let mark = self.queue.get()?.read(&self.anchor)?;
            if let Some(before) = self.mark.replace(mark) {
                before.wait(DEVICE_WAIT)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.queue.get()?.finish(DEVICE_WAIT)
    }
}
