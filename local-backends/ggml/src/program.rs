//! A compiled graph: tensors with their places, pieces that run, and what is done before each.

use crate::checks::{Indices, Job, Mask, elements};
use crate::functions::Object;
use crate::memory::{GgmlBuffer, Heap, buffer, placed};
use crate::tensors::Tensors;
use crate::translate::{Piece, Place, Translator};
use outboard_core::local::Funds;
use outboard_core::{Error, Executable, Graph, Placement, Result, TensorId};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A graph on a device. It keeps the buffers that its tensors lie in.
pub(crate) struct Program {
    device: u64,
    graph: Arc<Graph>,
    placement: Placement,
    /// Intermediates of ggml's, and behind them what is written before pieces.
    scratch: GgmlBuffer,
    /// Where the latter begins.
    kept: u64,
    pieces: Vec<Ready>,
    running: Mutex<()>,
    _tensors: Tensors,
}

/// A piece with its graph; none where there is only something to check.
pub(crate) struct Ready {
    jobs: Vec<Job>,
    graph: Option<Object>,
    /// Nodes of ours in it.
    pub(crate) count: u64,
}

// SAFETY: the graphs and tensors belong to the program; whoever runs it takes the lock.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Executable for Program {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Program {
    /// Translates a graph and gives its tensors their places. Memory beside them is paid for by `funds`.
    pub(crate) fn new(heap: &Arc<Heap>, funds: &Funds, graph: Arc<Graph>, placement: Placement) -> Result<Program> {
        let id = &funds.info().id;
        let mut translator = Translator::new(&graph, heap);
        translator.all().map_err(|node| Error::Request(format!("{id} cannot compute {node}")))?;
        let kept = translator.scratch_most.next_multiple_of(translator.room() as u64);
        let needed = kept + translator.kept;
        let Translator { mut tensors, places, pieces, .. } = translator;
        let scratch = GgmlBuffer::new(heap, funds, needed)?;
        let order = heap.lock();
        let all = places.len();
        for (tensor, place) in places {
            put(heap, &placement, (&scratch, kept), tensor, place)?;
        }
        drop(order);
        let no_memory = || Error::OutOfMemory { device: id.clone(), needed: 0, free: 0 };
        tensors.mark(pieces.iter().flat_map(|piece| piece.nodes.iter().copied()), all).ok_or_else(no_memory)?;
        let ready = |Piece { jobs, nodes, count }| {
            let graph = if nodes.is_empty() { None } else { Some(tensors.graph(&nodes).ok_or_else(no_memory)?) };
            Ok(Ready { jobs, graph, count })
        };
        let pieces = pieces.into_iter().map(ready).collect::<Result<_>>()?;
        let device = funds.device();
        Ok(Program { device, graph, placement, scratch, kept, pieces, running: Mutex::default(), _tensors: tensors })
    }

    /// The right to run it. Two queues may have it, and it has one set of intermediates.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pieces(&self) -> &[Ready] {
        &self.pieces
    }

    /// Does what comes before a piece as long as it is wanted, and gives its graph. Errors name the node whose values are wrong.
    pub(crate) fn prepare(&self, piece: &Ready, device: &str, cancel: &AtomicBool) -> Result<Option<Object>> {
        for job in &piece.jobs {
            let (node, done) = match job {
                Job::Indices(indices) => (indices.node, self.copy_indices(indices)?),
                Job::Mask(mask, _) => (mask.node, self.make_mask(mask, cancel)?),
            };
            done.map_err(|detail| Error::Device {
                device: device.to_owned(),
                op: Some(self.graph.label(node)),
                detail,
            })?;
        }
        Ok(piece.graph)
    }

    fn copy_indices(&self, indices: &Indices) -> Result<std::result::Result<(), String>> {
        let values = self.values(indices.source)?;
        if let Err(wrong) = indices.check(&values) {
            return Ok(Err(wrong));
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
        self.scratch.write(self.kept + indices.to, &bytes).map(Ok)
    }

    fn make_mask(&self, mask: &Mask, cancel: &AtomicBool) -> Result<std::result::Result<(), String>> {
        let pos = self.values(mask.pos)?;
        let paging = match mask.paging {
            Some((table, seqs)) => {
                let blocks = self.graph.tensor(table).ne()[0];
                Some((self.values(table)?, blocks, self.values(seqs)?))
            }
            None => None,
        };
        let paging = paging.as_ref().map(|(table, blocks, seqs)| (table.as_slice(), *blocks, seqs.as_slice()));
        let row = 2 * mask.keys as u64;
        for start in (0..mask.tokens).step_by(mask.rows_at_once()) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let rows = start..mask.tokens.min(start + mask.rows_at_once());
            match mask.make(rows, &pos, paging) {
                Ok(bytes) => self.scratch.write(self.kept + mask.to + start as u64 * row, &bytes)?,
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
        Ok(Ok(()))
    }

    /// What an I32 tensor holds now.
    fn values(&self, id: TensorId) -> Result<Vec<i32>> {
        let t = self.graph.tensor(id);
        let Some(slice) = self.placement.get(t.root()).filter(|_| !t.layout().is_empty()) else {
            return Ok(Vec::new());
        };
        let bytes = buffer(slice)?.read(slice.offset() + t.offset() as u64, t.layout().span())?;
        Ok(elements(t.layout(), &bytes))
    }
}

/// Gives a tensor its place.
fn put(heap: &Heap, placement: &Placement, scratch: (&GgmlBuffer, u64), tensor: Object, place: Place) -> Result<()> {
    let (memory, offset) = match place {
        Place::Root(id) => {
            let slice = placement.get(id).ok_or_else(|| Error::Misuse("a tensor without a place".into()))?;
            (buffer(slice)?, slice.offset())
        }
        Place::Scratch(at) => (scratch.0, at),
        Place::Kept(at) => (scratch.0, scratch.1 + at),
        Place::View => {
            // SAFETY: what it lies in comes before it, and has its place.
            let status = unsafe { (heap.library().functions.ggml_backend_view_init)(tensor) };
            return placed(status);
        }
    };
    let end = offset.checked_add(heap.bytes_of(tensor) as u64);
    if memory.handle().is_null() || end.is_none_or(|end| end > memory.room()) {
        return Err(Error::Misuse("a tensor that reaches beyond its buffer".into()));
    }
    let f = &heap.library().functions;
    // SAFETY: the tensor has no place yet, and lies within the buffer with its padding.
    placed(unsafe {
        let base = (f.ggml_backend_buffer_get_base)(memory.handle());
        (f.ggml_backend_tensor_alloc)(memory.handle(), tensor, base.wrapping_byte_add(offset as usize))
    })
}
