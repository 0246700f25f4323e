//! Places what splits compute and copy in the memory of each device, with reuse. A device whose largest allocation is smaller than that gets
//! several buffers, and no place lies across the end of one.
//!
//! Time is the number of a node in the order of execution. A place lives from what fills it (a node, a copy, the caller) to the
//! last node or copy that reads it; two places of a device may share bytes if their lives do not meet. Queues of different
//! devices run side by side, but memory of a device is touched by commands of its own queue only, copies out of it and into
//! it included, and they keep that order, from one run to the next as well. That is all that reuse relies on.

use crate::split::{Place, Splits};
use outboard_core::{DeviceInfo, Graph, TensorId, WeightTail};
use std::collections::HashMap;

/// A place in the buffer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The device's index.
    pub device: usize,
    /// Bytes from the start of the device's memory for results.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// First time it is filled.
    pub first: usize,
    /// Last time it is read; `usize::MAX` for outputs.
    pub last: usize,
}

/// Where everything lies.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlan {
    /// Every place but bound ones and constant copies. Places that share bytes by an in-place op have one entry each.
    pub places: HashMap<Place, Allocation>,
    /// Size of each device's memory for results.
    pub bytes: Vec<u64>,
    /// Size of the buffers that this memory is made of, by device; only the last one may be smaller.
    pub buffers: Vec<u64>,
}

impl MemoryPlan {
    /// The buffer that a place lies in, by its number, and the offset there.
    pub fn in_buffer(&self, a: &Allocation) -> (usize, u64) {
        let size = self.buffers.get(a.device).copied().unwrap_or(u64::MAX);
        (usize::try_from(a.offset / size).unwrap_or(usize::MAX), a.offset % size)
    }
}

/// Sizes of the buffers that so many bytes are made of, none larger than `most`.
pub fn buffer_sizes(bytes: u64, most: u64) -> Vec<u64> {
    let most = most.max(1);
    let count = bytes.div_ceil(most);
    (0..count).map(|i| most.min(bytes - i * most)).collect()
}

/// What the plan has to know of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRules {
    /// Alignment of tensors in buffers.
    pub alignment: usize,
    /// Bytes of the largest buffer.
    pub max_alloc: u64,
    /// What it wants behind weights, which copies of other devices' weights get as well.
    pub weight_tail: WeightTail,
}

impl MemoryRules {
    /// Those of a device.
    pub fn of(info: &DeviceInfo) -> MemoryRules {
        let &DeviceInfo { alignment, max_alloc, weight_tail, .. } = info;
        MemoryRules { alignment, max_alloc, weight_tail }
    }

    /// Size of the buffers: the largest one whose end is aligned.
    fn buffer(&self) -> u64 {
        let alignment = self.alignment.max(1) as u64;
        (self.max_alloc / alignment * alignment).max(alignment)
    }
}

/// A place that no buffer of its device can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// What it is.
    pub place: Place,
    /// Its device's index.
    pub device: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// Plans the memory of `splits` for devices with these rules.
pub fn plan_memory(graph: &Graph, splits: &Splits, rules: &[MemoryRules]) -> Result<MemoryPlan, TooLarge> {
    let mut lives = Lives { graph, order: Vec::new(), lives: HashMap::new() };
    lives.collect(splits);
    let shared = lives.in_place(splits);
    let buffers: Vec<u64> = rules.iter().map(MemoryRules::buffer).collect();
    let mut free: Vec<FreeList> = buffers.iter().map(|&buffer| FreeList::new(buffer)).collect();
    let mut plan = MemoryPlan { places: HashMap::new(), bytes: vec![0; rules.len()], buffers };
    let aligned = |device: usize, size: u64| size.next_multiple_of(rules[device].alignment.max(1) as u64);
    // Ends of lives in order, so that memory comes back before the next place is made.
    let mut ends: Vec<(usize, Place)> = Vec::new();
    for place in lives.order.clone() {
        let life = lives.lives[&place];
        let size = aligned(life.device, life.size);
        if size > plan.buffers[life.device] {
            return Err(TooLarge { place, device: life.device, bytes: life.size });
        }
        ends.retain(|&(last, ended)| {
            let dead = last < life.first;
            if dead {
                let a: Allocation = plan.places[&ended];
                free[a.device].give(a.offset, aligned(a.device, a.size));
            }
            !dead
        });
        let offset = match shared.get(&place) {
            Some(taken) => {
                // The source's place ends here and goes on as this one.
                ends.retain(|&(_, p)| p != *taken);
                plan.places[taken].offset
            }
            None => free[life.device].take(size),
        };
        plan.bytes[life.device] = plan.bytes[life.device].max(offset + size);
        plan.places.insert(
            place,
            Allocation { device: life.device, offset, size: life.size, first: life.first, last: life.last },
        );
        ends.push((life.last, place));
    }
    Ok(plan)
}

#[derive(Clone, Copy, Debug)]
struct Life {
    device: usize,
    size: u64,
    first: usize,
    last: usize,
    /// What uses it last, if that is a node.
    last_reader: Option<TensorId>,
}

struct Lives<'a> {
    graph: &'a Graph,
    /// Places in order of their first use.
    order: Vec<Place>,
    lives: HashMap<Place, Life>,
}

impl Lives<'_> {
    fn begin(&mut self, place: Place, device: usize, size: usize, time: usize) {
        self.order.push(place);
        self.lives.insert(place, Life { device, size: size as u64, first: time, last: time, last_reader: None });
    }

    fn touch(&mut self, place: Place, time: usize, reader: Option<TensorId>) {
        if let Some(life) = self.lives.get_mut(&place)
            && time >= life.last
        {
            life.last = time;
            life.last_reader = reader;
        }
    }

    fn collect(&mut self, splits: &Splits) {
        for (id, devices) in &splits.inputs {
            for &device in devices {
                self.begin(Place::Input(*id, device), device, self.graph.tensor(*id).layout().span(), 0);
            }
        }
        // Time 0 is before the first node: inputs are written then.
        let mut time = 0;
        for split in &splits.splits {
            time += 1;
            for &number in &split.copies {
                let copy = &splits.copies[number];
                self.touch(copy.source, time, None);
                self.begin(Place::Copy(number), copy.to, copy.bytes, time);
            }
            for (id, node) in split.computed() {
                time += 1;
                let t = self.graph.tensor(id);
                if t.root() == id {
                    self.begin(Place::Node(id), split.device, t.layout().span(), time);
                }
                for tensor in split.graph.tensor(node).sources().chain([node]) {
                    if let Some(place) = split.place(tensor) {
                        self.touch(place, time, Some(id));
                    }
                }
            }
        }
        for id in self.graph.outputs() {
            if let Some((_, place)) = splits.homes[self.graph.tensor(id).root().index()] {
                self.touch(place, usize::MAX, None);
            }
        }
    }

    /// Results that take over the memory of a source.
    fn in_place(&self, splits: &Splits) -> HashMap<Place, Place> {
        let mut shared = HashMap::new();
        for split in &splits.splits {
            for (id, node) in split.computed() {
                let t = split.graph.tensor(node);
                let Some(op) = t.op().filter(|_| t.root() == node) else { continue };
                let srcs = t.srcs();
                let taken = op.in_place().iter().find_map(|&i| {
                    let src = srcs.get(i).copied().flatten()?;
                    let source = split.graph.tensor(src);
                    let place = split.place(src)?;
                    // Not what the caller wrote: an input's memory stays as it is.
                    let (Place::Node(_) | Place::Copy(_)) = place else { return None };
                    let life = self.lives.get(&place)?;
                    // The whole of it, read here last and by nothing else of this node.
                    let whole =
                        source.offset() == 0 && source.layout() == t.layout() && life.size == t.layout().span() as u64;
                    let readers = srcs.iter().flatten().filter(|&&s| split.place(s) == Some(place)).count();
                    (whole && readers == 1 && life.last_reader == Some(id)).then_some(place)
                });
                if let Some(taken) = taken {
                    shared.insert(Place::Node(id), taken);
                }
            }
        }
        shared
    }
}

/// Free ranges of a device's memory, in order; what is behind them is free without end.
#[derive(Debug)]
struct FreeList {
    holes: Vec<(u64, u64)>,
    end: u64,
    /// Nothing lies across a multiple of this.
    buffer: u64,
}

impl FreeList {
    fn new(buffer: u64) -> FreeList {
        FreeList { holes: Vec::new(), end: 0, buffer }
    }

    /// The first place at `start` or behind it that lies in one buffer.
    fn in_one_buffer(&self, start: u64, size: u64) -> u64 {
        if start % self.buffer + size <= self.buffer { start } else { start.next_multiple_of(self.buffer) }
    }

    /// The smallest hole that fits, or the end.
    fn take(&mut self, size: u64) -> u64 {
        if size == 0 {
            return 0;
        }
        let fits = |&&(start, len): &&(u64, u64)| self.in_one_buffer(start, size) + size <= start + len;
        let best = self.holes.iter().filter(fits).min_by_key(|(_, len)| *len).copied();
        let Some((start, len)) = best else {
            let offset = self.in_one_buffer(self.end, size);
            let skipped = (self.end, offset - self.end);
            self.holes.extend(Some(skipped).filter(|(_, len)| *len > 0));
            self.end = offset + size;
            return offset;
        };
        let offset = self.in_one_buffer(start, size);
        let at = self.holes.partition_point(|hole| hole.0 < start);
        let rest = [(start, offset - start), (offset + size, start + len - offset - size)];
        self.holes.splice(at..=at, rest.into_iter().filter(|(_, len)| *len > 0));
        offset
    }

    fn give(&mut self, offset: u64, size: u64) {
        if size == 0 {
            return;
        }
        let at = self.holes.partition_point(|h| h.0 < offset);
        self.holes.insert(at, (offset, size));
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.holes.len());
        for &(offset, size) in &self.holes {
            match merged.last_mut() {
                Some(last) if last.0 + last.1 == offset => last.1 += size,
                _ => merged.push((offset, size)),
            }
        }
        if let Some(&(offset, size)) = merged.last()
            && offset + size == self.end
        {
            self.end = offset;
            merged.pop();
        }
        self.holes = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_add_up() {
        assert_eq!(buffer_sizes(0, 10), Vec::<u64>::new());
        assert_eq!(buffer_sizes(25, 10), [10, 10, 5]);
        assert_eq!(buffer_sizes(20, 10), [10, 10]);
        assert_eq!(buffer_sizes(20, u64::MAX), [20]);
    }

    #[test]
    fn nothing_lies_across_the_end_of_a_buffer() {
        let mut free = FreeList::new(100);
        assert_eq!([free.take(60), free.take(60), free.take(40)], [0, 100, 60]);
        // Ranges that meet at the end of a buffer are two for what does not fit into one.
        free.give(60, 40);
        free.give(100, 60);
        assert_eq!((free.holes.clone(), free.end), (vec![], 60));
        assert_eq!([free.take(60), free.take(30)], [100, 60]);
        free.give(0, 60);
        assert_eq!([free.take(61), free.take(60)], [200, 0]);
    }
}
