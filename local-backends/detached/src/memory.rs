//! Memory of the card. To the host a buffer is a name: there is no address in it.

use outboard_core::{Buffer, Error, Executable, Graph, LeafKind, Placement, Result, Slice, WeightTail};
use std::any::Any;
use std::sync::Arc;

/// Memory of a card.
#[derive(Debug)]
pub(crate) struct CardBuffer {
    /// What stands for the card's own memory.
    pub(crate) inner: Arc<dyn Buffer>,
    pub(crate) device: u64,
}

impl Buffer for CardBuffer {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The card's side of a slice.
pub(crate) fn inner(slice: &Slice) -> Result<Slice> {
    let wrong = || Error::Misuse("a buffer of another kind of device".into());
    let buffer = slice.buffer().as_any().downcast_ref::<CardBuffer>().ok_or_else(wrong)?;
    Slice::new(buffer.inner.clone(), slice.offset(), slice.len())
}

/// A graph on a card. It keeps the buffers that its tensors lie in.
#[derive(Debug)]
pub(crate) struct CardExecutable {
    pub(crate) inner: Arc<dyn Executable>,
    pub(crate) device: u64,
    pub(crate) tails: Arc<[Tail]>,
    pub(crate) _buffers: Vec<Slice>,
}

/// What the card wants to be zero behind a weight.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) weight: String,
    /// On the card's side.
    pub(crate) bytes: Slice,
}

/// What lies behind the weights of a graph, as far as the card reads it.
pub(crate) fn tails(graph: &Graph, placement: &Placement, wanted: WeightTail) -> Result<Arc<[Tail]>> {
    let mut tails = Vec::new();
    for (id, _) in graph.leaves().filter(|(_, kind)| *kind == LeafKind::Weight) {
        let (t, slice) = (graph.tensor(id), placement.get(id));
        if let Some(slice) = slice.filter(|_| wanted.of(t.dtype()) > 0 && !t.layout().is_empty()) {
            let weight = inner(slice)?;
            let end = weight.offset() + t.layout().span() as u64;
            let bytes = Slice::new(weight.buffer().clone(), end, wanted.of(t.dtype()))?;
            tails.push(Tail { weight: graph.label(id), bytes });
        }
    }
    Ok(tails.into())
}

impl Executable for CardExecutable {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
