//! Memory for a model's weights and states on its devices.

use crate::arch::net;
use crate::error::{Error, Result};
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

/// The model's file as memory of a device, if it uses it in place.
pub(crate) type Mapped = Option<Arc<dyn Buffer>>;

/// Memory for every leaf: one buffer per device and kind, mapped weights where the device can use them in place.
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
        allocate_on(model, device, items, mapped.as_ref(), kept_weights)
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
    mapped: Option<&Arc<dyn Buffer>>,
    kept_weights: &Bound,
) -> Result<(Bound, Upload)> {
    let mut bound = HashMap::new();
    let align = device.info().alignment as u64;
    let mut pending: Vec<(u64, Bytes)> = Vec::new();
    let (mut weights, mut state) = (Vec::new(), Vec::new());
    let (mut weight_bytes, mut state_bytes) = (0u64, 0u64);
    // Leaves of one tensor on one device (embedding and output of a tied model) share its memory.
    let mut placed: HashMap<&str, u64> = HashMap::new();
    for item in items {
        if item.kind != LeafKind::Weight {
            state.push((item, state_bytes));
            state_bytes += item.size.next_multiple_of(align);
            continue;
        }
        if let Some(slice) = kept(kept_weights, &item.leaf, device.as_ref()) {
            bound.insert(item.leaf.clone(), slice.clone());
            continue;
        }
        let name = net::file_name(&item.leaf);
        let info = model.gguf().tensor(name).ok_or_else(|| Error::Model(format!("tensor {name} is missing")))?;
        if let Some(buffer) = mapped.filter(|_| info.offset as u64 % align == 0) {
            bound.insert(item.leaf.clone(), Slice::new(buffer.clone(), info.offset as u64, item.size)?);
            continue;
        }
        let offset = *placed.entry(name).or_insert_with(|| {
            pending.push((weight_bytes, model.gguf().data(info)));
            let offset = weight_bytes;
            weight_bytes += item.size.next_multiple_of(align);
            offset
        });
        weights.push((item, offset));
    }
    let kinds = [(weights, weight_bytes, Usage::Weights), (state, state_bytes, Usage::Compute)];
    let buffers = try_at_once(&kinds, |&(_, bytes, usage)| match bytes {
        0 => Ok(None),
        _ => device.alloc(bytes, usage).map(Some),
    })?;
    let mut parts = Upload::new();
    for ((leaves, _, usage), buffer) in kinds.into_iter().zip(buffers) {
        let Some(buffer) = buffer else { continue };
        for (item, offset) in leaves {
            bound.insert(item.leaf.clone(), Slice::new(buffer.clone(), offset, item.size)?);
        }
        if usage == Usage::Weights {
            for (offset, data) in pending.drain(..) {
                parts.push((Slice::new(buffer.clone(), offset, data.len() as u64)?, data));
            }
        }
    }
    Ok((bound, parts))
}
