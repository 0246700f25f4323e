//! Memory for a model's weights and states on its devices.

use crate::arch::net::Stored;
use crate::error::{Error, Result};
use crate::gguf::FileRange;
use crate::model::Model;
use crate::upload::{Upload, Uploads};
use bytes::Bytes;
use outboard_core::{Buffer, Device, Slice, Usage, WeightTail, try_at_once};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A huge page of most processors (bytes).
const HUGE_PAGE: u64 = 2 << 20;
/// Pages that set the states of a device apart, at most.
const PAGES_APART: u64 = 4;

/// Memory of every weight and state, by what it holds and the device's uid.
pub(crate) type Bound = HashMap<(Stored, u64), Slice>;

/// What a device will hold.
pub(crate) struct Item {
    pub(crate) stored: Stored,
    /// What a leaf that stands for it is called.
    pub(crate) name: String,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    /// Bytes behind it that nobody writes to: zeros that the device wants, or what sets states apart.
    pub(crate) tail: u64,
}

impl Item {
    pub(crate) fn is_weight(&self) -> bool {
        matches!(self.stored, Stored::Weight(_))
    }

    /// Whether it takes a page or more.
    fn is_large(&self) -> bool {
        self.bytes >= HUGE_PAGE
    }

    /// Bytes of memory that it takes.
    pub(crate) fn room(&self) -> u64 {
        self.bytes.saturating_add(self.tail)
    }
}

/// Sets the large states of a device apart so that they begin at many places of a page. The system gives a processor pages when they are first written to:
/// layers whose states lie alike in pages would all wait for new ones in the same run. Devices without a largest allocation are left alone.
pub(crate) fn set_states_apart(items: &mut [Item], max_allocs: impl Iterator<Item = Option<u64>>) {
    for (d, max_alloc) in max_allocs.enumerate() {
        let Some(max_alloc) = max_alloc else { continue };
        let mut states: Vec<_> = items.iter_mut().filter(|item| item.device == d && !item.is_weight()).collect();
        let n = states.iter().filter(|item| item.is_large()).count().max(1) as u64;
        let tails = (0..=PAGES_APART).map(|pages| pages * HUGE_PAGE / n);
        // The first one of those that do as well.
        let best = tails.rev().max_by_key(|&tail| places(&states, n, tail)).unwrap_or(0);
        for item in states.iter_mut().filter(|item| item.is_large()) {
            if item.room().saturating_add(best) <= max_alloc {
                item.tail += best;
            }
        }
    }
}

/// In how many of `n` parts of a page the large ones of some states begin, with such a tail behind each.
fn places(states: &[&mut Item], n: u64, tail: u64) -> usize {
    let (mut at, mut places) = (0u64, HashSet::new());
    for item in states {
        if item.is_large() {
            places.insert(at % HUGE_PAGE * n / HUGE_PAGE);
            at = at.wrapping_add(tail);
        }
        at = at.wrapping_add(item.room());
    }
    places.len()
}

/// The most that [`set_states_apart`] adds on a device, given the largest state.
pub(crate) fn most_apart(largest: u64) -> u64 {
    if largest >= HUGE_PAGE { PAGES_APART * HUGE_PAGE } else { 0 }
}

/// The model's files as memory of a device, if it uses all of them in place.
pub(crate) type Mapped = Option<Vec<Arc<dyn Buffer>>>;

/// A model's mapped files as memory of a device. One that cannot use every file in place uses none, and gets copies of all weights: what
/// it needs is then either nothing or all of them. Behind a weight in a file is no zero, so that a device that wants some gets copies, too.
pub(crate) fn import(device: &dyn Device, files: &[Bytes]) -> outboard_core::Result<Mapped> {
    if device.info().weight_tail != WeightTail::NONE {
        return Ok(None);
    }
    files.iter().map(|file| device.import(file)).collect()
}

/// Memory for everything: for each device and usage as many buffers as its largest allocation asks for, mapped weights where the device can
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
    for (memory, parts) in on_each {
        bound.extend(memory);
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
    let uid = device.uid();
    let (align, most) = (device.info().alignment as u64, device.info().max_alloc);
    let (mut weights, mut states) = (Packing::new(align, most), Packing::new(align, most));
    let (mut bound, mut new_weights, mut new_states) = (HashMap::new(), Vec::new(), Vec::new());
    for item in items {
        let Stored::Weight(weight) = item.stored else {
            new_states.push((item.stored, states.add(item)));
            continue;
        };
        let key = (item.stored, uid);
        if let Some(slice) = kept_weights.get(&key) {
            bound.insert(key, slice.clone());
        } else if let Some(slice) = in_place(model.range(weight)?, mapped, align)? {
            bound.insert(key, slice);
        } else {
            new_weights.push((weight, weights.add(item)));
        }
    }
    let allocations = weights.allocations(Usage::Weights).chain(states.allocations(Usage::Compute)).collect::<Vec<_>>();
    let buffers = try_at_once(&allocations, |&(bytes, usage)| device.alloc(bytes, usage))?;
    let (of_weights, of_states) = buffers.split_at(weights.sizes.len());
    let mut uploads = Vec::new();
    for (weight, range) in new_weights {
        let slice = range.of(of_weights)?;
        bound.insert((Stored::Weight(weight), uid), slice.clone());
        uploads.push((slice, weight));
    }
    for (state, range) in new_states {
        bound.insert((state, uid), range.of(of_states)?);
    }
    Ok((bound, uploads))
}

/// Bytes of mapped files as memory of a device, where it can use them in place.
fn in_place(range: FileRange, mapped: &[Arc<dyn Buffer>], alignment: u64) -> Result<Option<Slice>> {
    let buffer = mapped.get(range.file).filter(|_| range.offset % alignment == 0);
    Ok(buffer.map(|buffer| Slice::new(buffer.clone(), range.offset, range.len)).transpose()?)
}

/// Memory of an item in one of several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    buffer: usize,
    offset: u64,
    size: u64,
}

impl Range {
    fn of(self, buffers: &[Arc<dyn Buffer>]) -> Result<Slice> {
        let buffer = buffers.get(self.buffer).ok_or_else(|| Error::Internal("a leaf has no memory".into()))?;
        Ok(Slice::new(buffer.clone(), self.offset, self.size)?)
    }
}

/// Puts items one behind the other into as few buffers as their order allows.
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

    /// An item that fits into one buffer, and behind it its tail: buffers are zeroed, and nobody writes there.
    fn add(&mut self, item: &Item) -> Range {
        let room = |start: &u64| start.checked_add(item.room()).is_some_and(|end| end <= self.most);
        let start = self.sizes.last().map(|used| used.next_multiple_of(self.alignment)).filter(room);
        if start.is_none() {
            self.sizes.push(0);
        }
        let (offset, buffer) = (start.unwrap_or(0), self.sizes.len() - 1);
        self.sizes[buffer] = offset + item.room();
        Range { buffer, offset, size: item.bytes }
    }

    /// The buffers, none of them empty.
    fn allocations(&self, usage: Usage) -> impl Iterator<Item = (u64, Usage)> {
        self.sizes.iter().map(move |&bytes| (bytes.max(1), usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::net::State;

    fn item(bytes: u64, tail: u64) -> Item {
        Item { stored: Stored::State(State::BlockTable), name: String::new(), device: 0, bytes, tail }
    }

    #[test]
    fn items_fill_buffers_in_their_order() {
        let mut packing = Packing::new(32, 100);
        let places: Vec<_> = [40, 30, 10, 100, 0, 1].map(|size| packing.add(&item(size, 0))).into();
        let at: Vec<_> = places.iter().map(|r| (r.buffer, r.offset)).collect();
        assert_eq!(at, [(0, 0), (0, 64), (1, 0), (2, 0), (3, 0), (3, 0)]);
        assert_eq!(packing.sizes, [94, 10, 100, 1]);
    }

    /// How many places of a page the states of a device begin at, and how many bytes are between them.
    fn apart(n: usize, bytes: u64) -> (usize, u64) {
        let mut items: Vec<_> = (0..n).map(|_| item(bytes, 0)).collect();
        set_states_apart(&mut items, [Some(u64::MAX)].into_iter());
        let tails = items.iter().map(|item| item.tail).sum();
        let starts = items.iter().scan(0, |at, item| Some(std::mem::replace(at, *at + item.room()) % HUGE_PAGE));
        (starts.collect::<HashSet<_>>().len(), tails)
    }

    #[test]
    fn large_states_of_a_device_begin_at_different_places_of_a_page() {
        // Whole pages, halves, and a size that lies apart by itself.
        assert_eq!(apart(60, 4 * HUGE_PAGE), (60, HUGE_PAGE / 60 * 60));
        assert_eq!(apart(60, 9 * HUGE_PAGE / 2).0, 60);
        assert_eq!(apart(2, 3 * HUGE_PAGE / 2), (2, 0));
        assert!(apart(48, 7168 * 384).0 > 40);
        assert_eq!(apart(60, HUGE_PAGE - 1).1, 0, "small ones");
    }

    #[test]
    fn states_are_set_apart_where_that_may_be() {
        let state = |device| Item { device, ..item(2 * HUGE_PAGE, 0) };
        let mut items = [0, 0, 1, 1, 2, 2].map(state);
        set_states_apart(&mut items, [Some(10 * HUGE_PAGE), Some(2 * HUGE_PAGE), None].into_iter());
        assert_eq!(items.map(|item| item.tail), [HUGE_PAGE / 2, HUGE_PAGE / 2, 0, 0, 0, 0]);
    }

    #[test]
    fn tails_lie_behind_items_in_their_buffer() {
        let mut packing = Packing::new(32, 100);
        let places: Vec<_> =
            [(40, 25), (1, 3), (30, 0), (64, 36), (1, 99)].map(|(n, tail)| packing.add(&item(n, tail))).into();
        let at: Vec<_> = places.iter().map(|r| (r.buffer, r.offset, r.size)).collect();
        assert_eq!(at, [(0, 0, 40), (0, 96, 1), (1, 0, 30), (2, 0, 64), (3, 0, 1)]);
        assert_eq!(packing.sizes, [100, 30, 100, 100]);
    }
}
