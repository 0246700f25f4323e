//! Places what splits compute and copy in one buffer per device, with reuse.
//!
//! Time is the number of a node in the order of execution. A place lives from what fills it (a node, a copy, the caller) to the
//! last node or copy that reads it; two places of a device may share bytes if their lives do not meet. Queues of different
//! devices run side by side, but memory of a device is touched by commands of its own queue only, copies out of it and into
//! it included, and they keep that order, from one run to the next as well. That is all that reuse relies on.

use crate::split::{Place, Splits};
use outboard_core::{Graph, TensorId};
use std::collections::HashMap;

/// A place in the buffer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The device's index.
    pub device: usize,
    /// Bytes from the start of its buffer.
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
    /// Size of each device's buffer.
    pub bytes: Vec<u64>,
}

/// Plans the memory of `splits` for devices with these alignments.
pub fn plan_memory(graph: &Graph, splits: &Splits, alignments: &[usize]) -> MemoryPlan {
    let mut lives = Lives { graph, order: Vec::new(), lives: HashMap::new() };
    lives.collect(splits);
    let shared = lives.in_place(splits);
    let mut plan = MemoryPlan { places: HashMap::new(), bytes: vec![0; alignments.len()] };
    let mut free: Vec<FreeList> = alignments.iter().map(|_| FreeList::default()).collect();
    // Ends of lives in order, so that memory comes back before the next place is made.
    let mut ends: Vec<(usize, Place)> = Vec::new();
    for place in lives.order.clone() {
        let life = lives.lives[&place];
        let align = alignments[life.device].max(1) as u64;
        let size = life.size.next_multiple_of(align);
        ends.retain(|&(last, ended)| {
            let dead = last < life.first;
            if dead {
                let a: Allocation = plan.places[&ended];
                free[a.device].give(a.offset, a.size.next_multiple_of(alignments[a.device].max(1) as u64));
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
    plan
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

/// Free ranges of one buffer, in order; what is behind them is free without end.
#[derive(Debug, Default)]
struct FreeList {
    holes: Vec<(u64, u64)>,
    end: u64,
}

impl FreeList {
    /// The smallest hole that fits, or the end.
    fn take(&mut self, size: u64) -> u64 {
        if size == 0 {
            return 0;
        }
        let best = self.holes.iter().enumerate().filter(|(_, h)| h.1 >= size).min_by_key(|(_, h)| h.1).map(|(i, _)| i);
        match best {
            Some(i) => {
                let (offset, len) = self.holes[i];
                if len == size {
                    self.holes.remove(i);
                } else {
                    self.holes[i] = (offset + size, len - size);
                }
                offset
            }
            None => {
                let offset = self.end;
                self.end += size;
                offset
            }
        }
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
