//! Weights on their way to their devices.
//!
//! Devices that take contents get all of theirs in one batch, so that what several need travels once, and what they have already
//! does not travel at all. The others are written to through their queues, all at once.

use crate::error::{Error, Result};
use crate::gguf::WeightRef;
use crate::model::Model;
use outboard_core::{Content, DeviceContents, Queue, Slice};
use outboard_scheduler::Scheduler;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one write through a queue: small enough for a smooth progress bar, large enough to cost nothing.
const UPLOAD_PART: usize = 4 << 20;

/// What goes to one device: where to, and which weights.
pub(crate) type Upload = Vec<(Slice, WeightRef)>;
/// What goes where, for each device of the scheduler.
pub(crate) type Uploads = Vec<Upload>;

/// Brings weights to all devices at once and returns when they are there.
pub(crate) fn upload(
    model: &Model,
    scheduler: &Scheduler,
    uploads: Uploads,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<()> {
    let total: u64 = uploads.iter().flatten().map(|(slice, _)| slice.len()).sum();
    let done = AtomicU64::new(0);
    let add = |len: u64| progress(done.fetch_add(len, Ordering::Relaxed) + len, total);
    let mut batches: Vec<Vec<DeviceContents>> = Vec::new();
    let mut writes: Vec<(&Arc<dyn Queue>, Upload)> = Vec::new();
    for (d, parts) in uploads.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        let (Some(device), Some(queue)) = (scheduler.devices().get(d), scheduler.queue(d)) else { continue };
        let Some(content) = device.content() else {
            writes.push((queue, parts));
            continue;
        };
        let contents = parts.into_iter().map(|part| with_bytes(model, part)).collect::<Result<_>>()?;
        let contents = DeviceContents { device: device.clone(), contents };
        match batches.iter_mut().find(|b| b.first().is_some_and(|first| content.together(first.device.as_ref()))) {
            Some(batch) => batch.push(contents),
            None => batches.push(vec![contents]),
        }
    }
    std::thread::scope(|scope| {
        let add = &add;
        let mut threads = Vec::new();
        threads.extend(batches.iter().map(|batch| scope.spawn(move || give(batch, add))));
        threads.extend(
            writes
                .into_iter()
                .map(|(queue, parts)| scope.spawn(move || write(model, scheduler, queue.as_ref(), parts, add))),
        );
        let lost = |_| Err(Error::Internal("an upload thread panicked".into()));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(lost))
    })
}

/// Weights with their bytes and what is known of their digest.
fn with_bytes(model: &Model, (dst, weight): (Slice, WeightRef)) -> Result<Content> {
    Ok(Content { dst, data: model.bytes(weight)?, digest: model.digest(weight)? })
}

/// The byte of which weights are that nobody uploads. Every format reads it as numbers that are finite and not denormal, scales
/// included, and small enough that no result overflows: kernels take as long as with real ones.
const BLANK: u8 = 0x38;

/// Fills the weights in place of bringing them to their devices, and returns when they are there. New memory as it is would not
/// do: until something is written to them, its pages may all be one page of zeros, which a processor's cache has.
pub(crate) fn fill(scheduler: &Scheduler, uploads: &Uploads) -> Result<()> {
    let queues = || uploads.iter().enumerate().filter_map(|(d, parts)| Some((scheduler.queue(d)?, parts)));
    for (queue, parts) in queues() {
        parts.iter().try_for_each(|(slice, _)| queue.fill(slice, BLANK))?;
    }
    queues().try_for_each(|(queue, _)| Ok(scheduler.finish_queue(queue.as_ref())?))
}

fn give(batch: &[DeviceContents], add: &(dyn Fn(u64) + Sync)) -> Result<()> {
    let content = batch.first().and_then(|first| first.device.content());
    let content = content.ok_or_else(|| Error::Internal("a device does not take contents any more".into()))?;
    Ok(content.upload(batch, add)?)
}

fn write(
    model: &Model,
    scheduler: &Scheduler,
    queue: &dyn Queue,
    parts: Upload,
    add: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    for (slice, weight) in parts {
        let data = model.bytes(weight)?;
        for at in (0..data.len()).step_by(UPLOAD_PART) {
            let part = data.slice(at..data.len().min(at + UPLOAD_PART));
            let len = part.len() as u64;
            queue.write(&slice.part(at as u64, len)?, part)?;
            add(len);
        }
    }
    Ok(scheduler.finish_queue(queue)?)
}

#[cfg(test)]
mod tests {
    use super::BLANK;
    use outboard_core::{DType, quant::dequantize_row};

    #[test]
    fn blank_weights_are_plain_numbers_in_every_format() {
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::I32) {
            let bytes = dtype.row_bytes(256).unwrap();
            let mut row = [0f32; 256];
            dequantize_row(dtype, &vec![BLANK; bytes], &mut row).unwrap();
            assert!(row.iter().all(|v| (v.is_normal() || *v == 0.0) && v.abs() < 1e3), "{dtype}: {row:?}");
            assert!(row.iter().any(|v| *v != 0.0), "{dtype}");
        }
    }
}
