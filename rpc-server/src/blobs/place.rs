//! From where this server has a blob to where a client wants it.

use super::{Blob, Blobs};
use crate::session::Session;
use bytes::Bytes;
use outboard_core::{Device, Error, Pending, Queue, Result, Slice};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that a device's queue holds before it is waited for: twice this at most.
const AHEAD: u64 = 4 << 20;
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

/// A queue of the device, for as long as blobs are placed.
struct DeviceWriter<'s> {
    session: &'s Session,
    queue: Option<Arc<dyn Queue>>,
    anchor: Slice,
    /// Bytes since the last mark.
    unmarked: u64,
    mark: Option<Pending<Bytes>>,
}

impl<'s> DeviceWriter<'s> {
    fn new(session: &'s Session, device: &dyn Device) -> Result<DeviceWriter<'s>> {
        let anchor = session.anchor(device)?;
        let queue = device.queue()?;
        session.live_queues.fetch_add(1, Ordering::AcqRel);
        Ok(DeviceWriter { session, queue: Some(queue), anchor, unmarked: 0, mark: None })
    }

    fn queue(&self) -> Result<&dyn Queue> {
        self.queue.as_deref().ok_or(Error::Cancelled)
    }

    fn write(&mut self, dst: &Slice, at: u64, part: Vec<u8>) -> Result<()> {
        if self.session.is_closed() {
            return Err(Error::Cancelled);
        }
        let len = part.len() as u64;
        self.queue()?.write(&dst.part(at, len)?, part.into())?;
        self.unmarked += len;
        if self.unmarked >= AHEAD {
            self.unmarked = 0;
            let mark = self.queue()?.read(&self.anchor)?;
            if let Some(before) = self.mark.replace(mark) {
                before.wait(DEVICE_WAIT)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.queue()?.finish(DEVICE_WAIT)
    }
}

impl Drop for DeviceWriter<'_> {
    fn drop(&mut self) {
        // Freed before the session may say that it has ended.
        drop(self.queue.take());
        self.session.live_queues.fetch_sub(1, Ordering::AcqRel);
        self.session.progress.notify_waiters();
    }
}
