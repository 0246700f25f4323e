//! Memory for a model's weights and states on its devices.

use crate::arch::net;
use crate::error::{Error, Result};
use crate::gguf::FileRange;
use crate::model::Model;
use crate::upload::{Upload, Uploads};
use bytes::Bytes;
use outboard_core::{Buffer, Device, LeafKind, Slice, Usage, try_at_once};
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of every weight and state, by leaf.
pub(crate) type Bound = HashMap<String, Slice>;

/// Memory that has a weight already, if it is of this device.
pub(crate) fn kept<'k>(kept: &'k Bound, leaf: &str, device: &dyn Device) -> Option<&'k Slice> {
    kept.get(leaf).filter(|slice| slice.buffer().device() == device.uid())
}

/// Where a leaf will lie: its name, its device's number, its bytes.
pub(crate) struct Item {
    pub(crate) leaf: String,
    pub(crate) device: usize,
    pub(crate) kind: LeafKind,
    pub(crate) size: u64,
}

/// The model's files as memory of a device, if it uses all of them in place.
pub(crate) type Mapped = Option<Vec<Arc<dyn Buffer>>>;

/// A model's mapped files as memory of a device. One that cannot use every file in place uses none, and gets copies of all weights: what
/// it needs is then either nothing or all of them.
pub(crate) fn import(device: &dyn Device, files: &[Bytes]) -> outboard_core::Result<Mapped> {
    files.iter().map(|file| device.import(file)).collect()
}

/// Memory for every leaf: for each device and kind as many buffers as its largest allocation asks for, mapped weights where the device can
/// use them in place.
pub(crate) fn allocate(
    model: &Model,
    devices: &[Arc<dyn Device>],
    items: &[Item],
    mapped: &[Mapped],
    kept_weights: &Bound,
) -> Result<(Bound, Uploads)> {
    let devices: Vec<_> = devices.iter().zip(mapped).enumerate().collect();
    let on_each = try_at_once(&devices, |&(d, (device, mapped))| {
        let items = items.iter().filter(|i| i.device == d);
        allocate_on(model, device, items, mapped.as_deref().unwrap_or_default(), kept_weights)
    })?;
    let (mut bound, mut uploads) = (HashMap::new(), Vec::new());
    for (leaves, parts) in on_each {
        bound.extend(leaves);
        uploads.push(parts);
    }
    Ok((bound, uploads))
}

/// [`allocate`] on one device.
fn allocate_on<'i>(
    model: &Model,
    device: &Arc<dyn Device>,
    items: impl Iterator<Item = &'i Item>,
    mapped: &[Arc<dyn Buffer>],
    kept_weights: &Bound,
) -> Result<(Bound, Upload)> {
    let mut bound = HashMap::new();
    let (align, most) = (device.info().alignment as u64, device.info().max_alloc);
    let (mut weights, mut state) = (Packing::new(align, most), Packing::new(align, most));
    let mut uploads: Vec<(Range, FileRange)> = Vec::new();
    let mut leaves: Vec<(&Item, Range)> = Vec::new();
    // Leaves of one tensor on one device (embedding and output of a tied model, the table of blocks) share its memory.
    let mut placed: HashMap<&str, Range> = HashMap::new();
    for item in items {
        if item.kind != LeafKind::Weight {
            let range = *placed.entry(net::file_name(&item.leaf)).or_insert_with(|| state.add(item.size));
            leaves.push((item, range));
            continue;
        }
        if let Some(slice) = kept(kept_weights, &item.leaf, device.as_ref()) {
            bound.insert(item.leaf.clone(), slice.clone());
            continue;
        }
        let name = net::file_name(&item.leaf);
        let info = model.gguf().tensor(name).ok_or_else(|| Error::Model(format!("tensor {name} is missing")))?;
        if let Some(buffer) = mapped.get(info.file).filter(|_| info.offset as u64 % align == 0) {
            bound.insert(item.leaf.clone(), Slice::new(buffer.clone(), info.offset as u64, item.size)?);
            continue;
        }
        let range = *placed.entry(name).or_insert_with(|| {
            let range = weights.add(item.size);
            uploads.push((range, info.range()));
            range
        });
        leaves.push((item, range));
    }
    let allocations = weights.allocations(Usage::Weights).chain(state.allocations(Usage::Compute)).collect::<Vec<_>>();
    let mut buffers = try_at_once(&allocations, |&(bytes, usage)| device.alloc(bytes, usage))?;
    let states = buffers.split_off(weights.sizes.len());
    let slice = |kind: LeafKind, range: Range| {
        let buffers = if kind == LeafKind::Weight { &buffers } else { &states };
        let buffer = buffers.get(range.buffer).ok_or_else(|| Error::Plan("a leaf has no memory".into()))?;
        Ok::<_, Error>(Slice::new(buffer.clone(), range.offset, range.size)?)
    };
    for (item, range) in leaves {
        bound.insert(item.leaf.clone(), slice(item.kind, range)?);
    }
    let upload = |(range, tensor): (Range, FileRange)| Ok((slice(LeafKind::Weight, range)?, tensor));
    Ok((bound, uploads.into_iter().map(upload).collect::<Result<_>>()?))
}

/// Memory of a leaf in one of several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    buffer: usize,
    offset: u64,
    size: u64,
}

/// Puts leaves one behind the other into as few buffers as their order allows.
struct Packing {
    alignment: u64,
    /// Bytes of the largest buffer.
    most: u64,
    sizes: Vec<u64>,
}

impl Packing {
    fn new(alignment: u64, most: u64) -> Packing {
        Packing { alignment, most, sizes: Vec::new() }
    }

    /// A leaf that fits into one buffer.
    fn add(&mut self, size: u64) -> Range {
        let room = |start: &u64| start.checked_add(size).is_some_and(|end| end <= self.most);
        let start = self.sizes.last().map(|used| used.next_multiple_of(self.alignment)).filter(room);
        if start.is_none() {
            self.sizes.push(0);
        }
        let (offset, buffer) = (start.unwrap_or(0), self.sizes.len() - 1);
        self.sizes[buffer] = offset + size;
        Range { buffer, offset, size }
    }

    /// The buffers, none of them empty.
    fn allocations(&self, usage: Usage) -> impl Iterator<Item = (u64, Usage)> {
        self.sizes.iter().map(move |&bytes| (bytes.max(1), usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_fill_buffers_in_their_order() {
        let mut packing = Packing::new(32, 100);
        let places: Vec<_> = [40, 30, 10, 100, 0, 1].map(|size| packing.add(size)).into();
        let at: Vec<_> = places.iter().map(|r| (r.buffer, r.offset)).collect();
        assert_eq!(at, [(0, 0), (0, 64), (1, 0), (2, 0), (3, 0), (3, 0)]);
        assert_eq!(packing.sizes, [94, 10, 100, 1]);
    }
}
