//! A compiled graph: tensors with their places, pieces that run, and what is done before each.

use crate::checks::{Indices, Job, Mask, elements};
use crate::functions::Object;
use crate::lock;
use crate::memory::{GgmlBuffer, Heap, buffer, placed};
use crate::tensors::Tensors;
use crate::translate::{Piece, Place, Translator};
use outboard_core::local::Funds;
use outboard_core::{Buffer, Error, Executable, Graph, Placement, Result, TensorId};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Fewest rows of a cache that attention looks at, and what they are a multiple of: kernels of cards take them by so many.
const KEYS: usize = 256;
/// Versions for parts of the cache that are kept: texts grow slowly, and what ggml remembers of a graph nobody has paid for.
const MOST_VERSIONS: usize = 4;
/// Tensors of a graph that has versions, at most: each of them is translated once more while others wait.
const MOST_TENSORS: usize = 1 << 14;

/// A graph on a device. It keeps the buffers that its tensors lie in.
pub(crate) struct Program {
    heap: Arc<Heap>,
    device: u64,
    graph: Arc<Graph>,
    placement: Placement,
    /// Intermediates of ggml's, and behind them what is written before pieces.
    scratch: GgmlBuffer,
    /// For the whole cache.
    whole: Version,
    /// What attention sees by, where it is the same during a run: it says how much of the cache a run needs.
    masks: Vec<Mask>,
    running: Mutex<Parts>,
}

/// Versions for parts of the cache, by their rows; `None` where there can be none.
type Parts = Vec<(usize, Option<Version>)>;

/// ggml's graph.
pub(crate) struct Version {
    /// Where in the scratch memory begins what is written before pieces.
    kept: u64,
    pub(crate) pieces: Vec<Ready>,
    _tensors: Tensors,
}

/// A piece with its graph; none where there is only something to check.
pub(crate) struct Ready {
    jobs: Vec<Job>,
    graph: Option<Object>,
    /// Nodes of ours in it.
    pub(crate) count: u64,
}

impl Ready {
    /// Whether the host looks at values before it runs: what was enqueued before has to have ended then.
    pub(crate) fn looks_at_values(&self) -> bool {
        !self.jobs.is_empty()
    }
}

/// A translation that has no places yet.
struct Translated {
    tensors: Tensors,
    places: Vec<(Object, Place)>,
    pieces: Vec<Piece>,
    kept: u64,
    needed: u64,
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
        let masks = masks(&translator);
        let translated = Translated::of(translator);
        let scratch = GgmlBuffer::new(heap, funds, translated.needed)?;
        let whole = translated.placed(heap, &placement, &scratch)?;
        let device = funds.device();
        Ok(Program { heap: heap.clone(), device, graph, placement, scratch, whole, masks, running: Mutex::default() })
    }

    /// The right to run it. Two queues may have it, and it has one set of intermediates.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Parts> {
        lock(&self.running)
    }

    /// The version for the part of the cache that a run needs now: attention reads what is there, and not all that there may be.
    pub(crate) fn version<'a>(&'a self, parts: &'a mut Parts, cancel: &AtomicBool) -> Result<&'a Version> {
        let Some(keys) = self.keys(cancel)? else { return Ok(&self.whole) };
        // The one that was used last is at the end.
        let part = match parts.iter().position(|(of, _)| *of == keys) {
            Some(at) => parts.remove(at),
            None => {
                if parts.len() == MOST_VERSIONS {
                    parts.remove(0);
                }
                (keys, self.part(keys))
            }
        };
        parts.push(part);
        Ok(parts.last().and_then(|(_, version)| version.as_ref()).unwrap_or(&self.whole))
    }

    /// Rows of the cache that a run needs, in steps of a quarter of a power of two; `None` for all, and for values that are wrong.
    fn keys(&self, cancel: &AtomicBool) -> Result<Option<usize>> {
        let mut used = 0;
        for mask in &self.masks {
            match self.with_values(mask, |pos, paging| mask.used(pos, paging, || !cancel.load(Ordering::Relaxed)))? {
                Some(rows) => used = used.max(rows),
                None => return Ok(None),
            }
        }
        let step = KEYS.max((used + 1).next_power_of_two() / 8);
        let keys = used.max(1).next_multiple_of(step);
        Ok(self.masks.iter().any(|mask| keys < mask.keys).then_some(keys))
    }

    /// The version for so many rows, in the memory that there is. `None` if it does not go.
    fn part(&self, keys: usize) -> Option<Version> {
        let mut translator = Translator::new(&self.graph, &self.heap);
        translator.most_keys = keys;
        translator.all().ok()?;
        let translated = Translated::of(translator);
        let fits = translated.needed <= self.scratch.size();
        fits.then(|| translated.placed(&self.heap, &self.placement, &self.scratch).ok()).flatten()
    }

    /// Does what comes before a piece as long as it is wanted, and gives its graph. Errors name the node whose values are wrong.
    pub(crate) fn prepare(
        &self,
        version: &Version,
        piece: &Ready,
        device: &str,
        cancel: &AtomicBool,
    ) -> Result<Option<Object>> {
        for job in &piece.jobs {
            let (node, done) = match job {
                Job::Indices(indices, _) => (indices.node, self.copy_indices(version.kept, indices)?),
                Job::Mask(mask, _) => (mask.node, self.make_mask(version.kept, mask, cancel)?),
            };
            done.map_err(|detail| Error::Device {
                device: device.to_owned(),
                op: Some(self.graph.label(node)),
                detail,
            })?;
        }
        Ok(piece.graph)
    }

    fn copy_indices(&self, kept: u64, indices: &Indices) -> Result<std::result::Result<(), String>> {
        let values = self.values(indices.source)?;
        if let Err(wrong) = indices.check(&values) {
            return Ok(Err(wrong));
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
        self.scratch.write(kept + indices.to, &bytes).map(Ok)
    }

    fn make_mask(&self, kept: u64, mask: &Mask, cancel: &AtomicBool) -> Result<std::result::Result<(), String>> {
        self.with_values(mask, |pos, paging| {
            let row = 2 * mask.keys as u64;
            let at_once = mask.rows_at_once(paging.map_or(0, |(_, blocks, _)| blocks.saturating_mul(mask.block)));
            for start in (0..mask.tokens).step_by(at_once) {
                if cancel.load(Ordering::Relaxed) {
                    return Err(Error::Cancelled);
                }
                let rows = start..mask.tokens.min(start + at_once);
                match mask.make(rows, pos, paging) {
                    Ok(bytes) => self.scratch.write(kept + mask.to + start as u64 * row, &bytes)?,
                    Err(wrong) => return Ok(Err(wrong)),
                }
            }
            Ok(Ok(()))
        })?
    }

    /// Gives the positions, and the table with its blocks for each sequence and the sequences, of a mask.
    fn with_values<R>(&self, mask: &Mask, f: impl FnOnce(&[i32], Option<(&[i32], usize, &[i32])>) -> R) -> Result<R> {
        let pos = self.values(mask.pos)?;
        let Some((table, seqs)) = mask.paging else { return Ok(f(&pos, None)) };
        let (blocks, table, seqs) = (self.graph.tensor(table).ne()[0], self.values(table)?, self.values(seqs)?);
        Ok(f(&pos, Some((&table, blocks, &seqs))))
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

/// One of the masks of each kind; none if one is made of what the graph computes.
fn masks(translator: &Translator<'_>) -> Vec<Mask> {
    let mut masks: Vec<Mask> = Vec::new();
    if translator.graph.tensors().len() > MOST_TENSORS {
        return masks;
    }
    for job in translator.pieces.iter().flat_map(|piece| &piece.jobs) {
        let Job::Mask(mask, _) = job else { continue };
        if !mask.sources().all(|id| translator.is_constant(id)) {
            return Vec::new();
        }
        if mask.keys > KEYS && !masks.iter().any(|known| known.is_like(mask)) {
            masks.push(*mask);
        }
    }
    masks
}

impl Translated {
    fn of(translator: Translator<'_>) -> Translated {
        let kept = translator.scratch_most.next_multiple_of(translator.alignment() as u64);
        let needed = kept + translator.kept;
        let Translator { tensors, places, pieces, .. } = translator;
        Translated { tensors, places, pieces, kept, needed }
    }

    /// Gives all tensors their places.
    fn placed(self, heap: &Heap, placement: &Placement, scratch: &GgmlBuffer) -> Result<Version> {
        let Translated { mut tensors, places, pieces, kept, .. } = self;
        let order = heap.lock();
        let all = places.len();
        for (tensor, place) in places {
            put(heap, placement, (scratch, kept), tensor, place)?;
        }
        drop(order);
        let no_memory = || Error::OutOfMemory { device: "host".into(), needed: 0, free: 0 };
        tensors.mark(pieces.iter().flat_map(|piece| piece.nodes.iter().copied()), all).ok_or_else(no_memory)?;
        let ready = |Piece { jobs, nodes, count }| {
            let graph = if nodes.is_empty() { None } else { Some(tensors.graph(&nodes).ok_or_else(no_memory)?) };
            Ok(Ready { jobs, graph, count })
        };
        let pieces = pieces.into_iter().map(ready).collect::<Result<_>>()?;
        Ok(Version { kept, pieces, _tensors: tensors })
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
