//! Where the tensors of a graph lie on a device.

use super::{Device, Slice};
use crate::error::{Error, Result};
use crate::graph::{Graph, LeafKind, TensorId};
use std::sync::Arc;

/// Where the tensors of a graph lie: a slice for each root, in bounds by construction.
#[derive(Clone, Debug)]
pub struct Placement(Vec<Option<Slice>>);

impl Placement {
    /// Checks that every root that is not empty has a slice of the device with its size and alignment, that a weight's buffer goes on
    /// behind it as far as the device [wants](super::WeightTail) (what lies there is the caller's duty), that nothing is written to
    /// read-only memory, and that no node writes where it reads: a result may lie on a source only if it takes over that
    /// source's memory as a whole ([`OpSpec::in_place`](crate::op::OpSpec::in_place)), element on element. Otherwise a kernel never has the same
    /// bytes as a source and as a result. Results whose lives do not meet may share memory.
    ///
    /// `slices` has one entry per tensor; those of views are ignored.
    pub fn new(graph: &Graph, device: &dyn Device, slices: Vec<Option<Slice>>) -> Result<Placement> {
        let placement = Placement(slices);
        placement.check(graph, device)?;
        Ok(placement)
    }

    /// Checks that this is a placement of that graph on that device, as [`Placement::new`] does. A device in this process does so before it
    /// compiles, because memory depends on it.
    pub(crate) fn check(&self, graph: &Graph, device: &dyn Device) -> Result<()> {
        if self.0.len() != graph.tensors().len() {
            return Err(Error::Request(format!("{} places for {} tensors", self.0.len(), graph.tensors().len())));
        }
        for id in graph.ids() {
            let t = graph.tensor(id);
            if t.root() == id && t.layout().span() > 0 {
                self.check_root(graph, device, id).map_err(|why| wrong_place(graph, id, &why))?;
            }
        }
        for id in graph.nodes() {
            self.check_node(graph, id).map_err(|why| wrong_place(graph, id, &why))?;
        }
        Ok(())
    }

    fn check_root(&self, graph: &Graph, device: &dyn Device, id: TensorId) -> std::result::Result<(), String> {
        let t = graph.tensor(id);
        let slice = self.get(id).ok_or("there is none")?;
        let (needed, align) = (t.layout().span() as u64, device.info().alignment as u64);
        if slice.len() < needed {
            return Err(format!("{} bytes, {needed} needed", slice.len()));
        }
        if slice.offset() % align != 0 {
            return Err(format!("offset {} is not a multiple of {align}", slice.offset()));
        }
        if slice.buffer().device() != device.uid() {
            return Err("it is a buffer of another device".into());
        }
        let tail = if t.leaf() == Some(LeafKind::Weight) { device.info().weight_tail.of(t.dtype()) } else { 0 };
        let behind = slice.buffer().size() - (slice.offset() + needed);
        if behind < tail {
            return Err(format!(
                "{behind} bytes of its buffer are behind it; leave {tail} zeros there, which the device reads"
            ));
        }
        if slice.buffer().is_read_only() && t.leaf() != Some(LeafKind::Weight) {
            return Err("its memory can only be read".into());
        }
        Ok(())
    }

    /// A node that computes must not write what it reads, unless it takes over one source as a whole.
    fn check_node(&self, graph: &Graph, id: TensorId) -> std::result::Result<(), String> {
        let t = graph.tensor(id);
        let Some(op) = t.op().filter(|op| !op.is_view()) else { return Ok(()) };
        let Some(written) = self.bytes(graph, id) else { return Ok(()) };
        let mut taken_over = false;
        for (i, source) in t.srcs().iter().enumerate() {
            let Some(source) = source.filter(|_| op.writes() != Some(i)) else { continue };
            let Some(read) = self.bytes(graph, source).filter(|read| read.meets(&written)) else { continue };
            let whole = read == written && graph.tensor(source).layout() == t.layout();
            if taken_over || !whole || !op.in_place().contains(&i) {
                return Err(format!("its result would lie on its source {}", graph.label(source)));
            }
            taken_over = true;
        }
        Ok(())
    }

    /// Where a tensor of the graph lies, a view in its root's memory; `None` if it is empty or has no place.
    pub fn bytes(&self, graph: &Graph, id: TensorId) -> Option<PlacedBytes> {
        let t = graph.tensor(id);
        let slice = self.get(t.root()).filter(|_| t.layout().span() > 0)?;
        let start = slice.offset() + t.offset() as u64;
        let buffer = Arc::as_ptr(slice.buffer()).cast::<()>().addr();
        Some(PlacedBytes { buffer, start, end: start + t.layout().span() as u64 })
    }

    /// The slice of a root tensor; `None` for views and empty tensors.
    pub fn get(&self, id: TensorId) -> Option<&Slice> {
        self.0.get(id.index()).and_then(Option::as_ref)
    }
}

/// Bytes of a buffer, which is told from others by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBytes {
    pub(crate) buffer: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl PlacedBytes {
    /// Whether both have a byte in common.
    pub fn meets(&self, other: &PlacedBytes) -> bool {
        self.buffer == other.buffer && self.start < other.end && other.start < self.end
    }
}

fn wrong_place(graph: &Graph, id: TensorId, why: &str) -> Error {
    Error::Request(format!("placement of {}: {why}", graph.label(id)))
}
