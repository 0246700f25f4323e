//! A graph of ours as a graph of ggml's: roots become tensors, views become views, and nodes what `ops` makes of them.

use crate::checks::{Indices, Job, Mask};
use crate::functions::Object;
use crate::memory::Heap;
use crate::ops;
use crate::tensors::{T, Tensors, can_be_counted};
use outboard_core::{DIMS, DType, Graph, Layout, LeafKind, Op, TensorId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Nodes of a piece, on devices that cannot be stopped within one.
const PIECE_NODES: usize = 64;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Where the root of our graph does.
    Root(TensorId),
    /// In scratch memory that the next node of ours uses again.
    Scratch(u64),
    /// In memory of the executable, written before its piece runs: bytes from where that begins.
    Kept(u64),
    /// Within another tensor.
    View,
}

/// Nodes of ggml's that run in one call, and what is checked and written before.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) jobs: Vec<Job>,
    pub(crate) nodes: Vec<Object>,
    /// Nodes of ours in it.
    pub(crate) count: u64,
}

/// Builds ggml's graph.
pub(crate) struct Translator<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) heap: Arc<Heap>,
    pub(crate) tensors: Tensors,
    roots: HashMap<TensorId, T>,
    /// Every tensor in the order in which they were made.
    pub(crate) places: Vec<(Object, Place)>,
    pub(crate) pieces: Vec<Piece>,
    piece: Piece,
    /// Roots that the piece writes.
    written: HashSet<TensorId>,
    /// Roots that any node of the graph writes.
    changing: HashSet<TensorId>,
    /// Rows of a cache that attention by positions looks at, at most.
    pub(crate) most_keys: usize,
    /// Scratch memory of the node of ours that is looked at, and the most of all.
    scratch: u64,
    pub(crate) scratch_most: u64,
    pub(crate) kept: u64,
}

impl<'g> Translator<'g> {
    pub(crate) fn new(graph: &'g Graph, heap: &Arc<Heap>) -> Translator<'g> {
        Translator {
            graph,
            heap: heap.clone(),
            tensors: Tensors::new(heap),
            roots: HashMap::new(),
            places: Vec::new(),
            pieces: Vec::new(),
            piece: Piece::default(),
            written: HashSet::new(),
            changing: HashSet::new(),
            most_keys: usize::MAX,
            scratch: 0,
            scratch_most: 0,
            kept: 0,
        }
    }

    /// The whole graph. The label of the node that cannot be translated, if there is one.
    pub(crate) fn all(&mut self) -> Result<(), String> {
        let nodes = self.graph.nodes().map(|id| self.graph.tensor(id)).filter(|t| t.is_compute());
        self.changing = nodes.map(|t| t.root()).collect();
        for id in self.graph.nodes().filter(|&id| self.graph.tensor(id).is_compute()) {
            self.cut_before(id);
            self.node(id).ok_or_else(|| self.graph.label(id))?;
        }
        self.cut();
        Ok(())
    }

    /// One node. `None` if ggml, or this device, cannot compute it.
    pub(crate) fn node(&mut self, id: TensorId) -> Option<()> {
        self.scratch = 0;
        let t = self.graph.tensor(id);
        ops::node(self, id, t.op()?)?;
        self.written.insert(t.root());
        self.piece.count += 1;
        Some(())
    }

    /// Begins another piece where the values that a node's rows are chosen by are written in this one.
    fn cut_before(&mut self, id: TensorId) {
        let t = self.graph.tensor(id);
        let chosen = t.op().map_or(&[] as &[usize], chosen_by);
        let sources = chosen.iter().filter_map(|&i| t.srcs().get(i).copied().flatten());
        let late = sources.map(|s| self.graph.tensor(s).root()).any(|root| self.written.contains(&root));
        if late || (!self.heap.is_host && self.piece.nodes.len() >= PIECE_NODES) {
            self.cut();
        }
    }

    /// Whether no node writes a tensor. Another root may lie on the same bytes: what was read is then older, and was checked all the same.
    pub(crate) fn is_constant(&self, id: TensorId) -> bool {
        !self.changing.contains(&self.graph.tensor(id).root())
    }

    /// What was made before some piece, or will be made before this one, and is still there.
    fn made(&self, same: impl Fn(&Job) -> Option<T>, is_constant: bool) -> Option<T> {
        let before = self.pieces.iter().filter(|_| is_constant).flat_map(|piece| &piece.jobs);
        before.chain(&self.piece.jobs).find_map(same)
    }

    fn cut(&mut self) {
        self.written.clear();
        let piece = std::mem::take(&mut self.piece);
        if !piece.nodes.is_empty() || !piece.jobs.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// The layout of a tensor of our graph.
    pub(crate) fn layout(&self, id: TensorId) -> Layout {
        *self.graph.tensor(id).layout()
    }

    /// Whether source `i` of a node has nothing in it.
    pub(crate) fn is_empty(&self, node: TensorId, i: usize) -> bool {
        let source = self.graph.tensor(node).srcs().get(i).copied().flatten();
        source.is_some_and(|source| self.layout(source).is_empty())
    }

    /// Source `i` of a node, as ggml sees it. `None` if it has no place in ggml, or nothing in it.
    pub(crate) fn source(&mut self, node: TensorId, i: usize) -> Option<T> {
        let id = self.graph.tensor(node).srcs().get(i).copied().flatten()?;
        self.tensor(id)
    }

    /// A tensor of our graph, as ggml sees it.
    pub(crate) fn tensor(&mut self, id: TensorId) -> Option<T> {
        let t = self.graph.tensor(id);
        if t.layout().is_empty() {
            return None;
        }
        let root = self.root(t.root())?;
        let layout = plain(t.layout())?;
        if t.offset() == 0 && layout == root.layout { Some(root) } else { self.view(root, layout, t.offset()) }
    }

    /// The memory of a tensor as one of ggml's: of its shape, or a row of all that it spans.
    fn root(&mut self, id: TensorId) -> Option<T> {
        if let Some(&root) = self.roots.get(&id) {
            return Some(root);
        }
        let t = self.tensors.leaf(whole(&self.layout(id))?)?;
        self.take(id, t)
    }

    /// A tensor of I32 as F32 of the same bits, for ops that move what they do not look at.
    pub(crate) fn bits(&mut self, id: TensorId) -> Option<T> {
        let as_f32 = |layout: &Layout| Layout::strided(DType::F32, layout.ne(), layout.nb()).ok();
        let t = self.graph.tensor(id);
        if t.layout().is_empty() {
            return None;
        }
        let root = self.tensors.leaf(whole(&as_f32(&self.layout(t.root()))?)?)?;
        self.places.push((root.object(), Place::Root(t.root())));
        let layout = as_f32(&plain(t.layout())?)?;
        if t.offset() == 0 && layout == root.layout { Some(root) } else { self.view(root, layout, t.offset()) }
    }

    /// Notes that a tensor lies where a root of ours does. `None` if the device wants more memory for it than is the root's: CUDA reads
    /// padding behind the last row, and writes zeros there when the tensor gets its place.
    fn take(&mut self, id: TensorId, t: T) -> Option<T> {
        if self.tensors.bytes_of(t) > self.room_of(id) {
            return None;
        }
        self.places.push((t.object(), Place::Root(id)));
        self.roots.insert(id, t);
        Some(t)
    }

    /// A view with any strides. A stride of 0 becomes a copy, because ggml has none.
    fn view(&mut self, root: T, layout: Layout, offset: usize) -> Option<T> {
        let (ne, nb, dtype) = (layout.ne(), layout.nb(), layout.dtype());
        // Its kernels count strides in blocks.
        let is_whole = |bytes: usize| bytes.is_multiple_of(dtype.block_bytes());
        if dtype.is_quantized() && !((0..DIMS).all(|d| ne[d] == 1 || is_whole(nb[d])) && is_whole(offset)) {
            return None;
        }
        let repeats = |d: usize| ne[d] > 1 && nb[d] == 0;
        if (0..DIMS).any(repeats) {
            if dtype.is_quantized() {
                // ggml says that it can repeat them, and aborts.
                return None;
            }
            let once = std::array::from_fn(|d| if repeats(d) { 1 } else { ne[d] });
            let once = plain(&Layout::strided(dtype, once, nb).ok()?)?;
            let part = self.view(root, once, offset)?;
            let part = self.contiguous(part)?;
            return ops::repeated(self, part, ne);
        }
        if nb[0] == dtype.block_bytes() {
            return self.note_view(|tensors| tensors.view(root, layout, offset));
        }
        // Another dimension is the dense one, or one of a single element takes its part.
        let dense = |d: &usize| nb[*d] == dtype.block_bytes() && ne[*d] > 1;
        let first = (1..DIMS).find(dense).or_else(|| (1..DIMS).find(|&d| ne[d] == 1))?;
        let mut axes = [first, 0, 0, 0];
        (0..DIMS).filter(|&d| d != first).zip(1..).for_each(|(d, i)| axes[i] = d);
        let mut stored = axes.map(|d| nb[d]);
        stored[0] = dtype.block_bytes();
        let part = Layout::strided(dtype, axes.map(|d| ne[d]), stored).ok()?;
        let part = self.note_view(|tensors| tensors.view(root, part, offset))?;
        self.note_view(|tensors| tensors.permuted(part, axes))
    }

    /// Notes a tensor that lies within another one.
    pub(crate) fn note_view(&mut self, new: impl FnOnce(&mut Tensors) -> Option<T>) -> Option<T> {
        let t = new(&mut self.tensors)?;
        self.places.push((t.object(), Place::View));
        Some(t)
    }

    /// Whether the device can read it as it lies.
    pub(crate) fn is_aligned(&self, t: T) -> bool {
        self.heap.is_host || t.offset.is_multiple_of(self.heap.alignment)
    }

    /// The same with elements behind one another, copied if they are not. `None` for blocks that would have to be.
    pub(crate) fn contiguous(&mut self, t: T) -> Option<T> {
        if t.layout.is_contiguous() && self.is_aligned(t) { Some(t) } else { self.copied(t) }
    }

    /// The same with dense rows that lie one behind the other in memory, copied if they do not.
    pub(crate) fn rows(&mut self, t: T) -> Option<T> {
        let [nb0, nb1, nb2, nb3] = t.layout.nb();
        let dense = nb0 == t.layout.dtype().block_bytes() && nb0 <= nb1 && nb0 <= nb2 && nb0 <= nb3;
        if dense && self.is_aligned(t) { Some(t) } else { self.copied(t) }
    }

    /// The same for attention: kernels of cards read four elements at a time, and take strides as so many fours.
    pub(crate) fn rows_of_fours(&mut self, t: T) -> Option<T> {
        let (ne, nb, dtype) = (t.layout.ne(), t.layout.nb(), t.layout.dtype());
        let is_fours = dtype.is_quantized() || (1..DIMS).all(|d| ne[d] == 1 || nb[d].is_multiple_of(4 * nb[0]));
        if self.heap.is_host || is_fours { self.rows(t) } else { self.copied(t) }
    }

    /// The same for products: kernels of cards take planes to lie one behind the other where rows do.
    pub(crate) fn planes(&mut self, t: T) -> Option<T> {
        let [.., n2, n3] = t.layout.ne();
        if self.heap.is_host || n2 * n3 == 1 { self.rows(t) } else { self.contiguous(t) }
    }

    fn copied(&mut self, t: T) -> Option<T> {
        let dtype = t.layout.dtype();
        if dtype.is_quantized() {
            return None;
        }
        let layout = Layout::contiguous(dtype, t.layout.ne()).ok()?;
        let copy = self.tensors.of1(layout, |f| f.ggml_cont, t)?;
        self.scratch_node(copy)
    }

    /// Bytes that a root has: its own, and behind a weight those that the device wants there. [`outboard_core::Placement`] has checked that they
    /// are in its buffer.
    fn room_of(&self, root: TensorId) -> usize {
        let t = self.graph.tensor(root);
        let tail = if t.leaf() == Some(LeafKind::Weight) { self.heap.weight_tail.of(t.dtype()) } else { 0 };
        t.layout().span() + tail as usize
    }

    /// The matrix of a product, its source 0, with dense rows. `None` if the device would read padding beyond what is its root's: ggml does
    /// not look for that where the matrix is a part of a tensor.
    pub(crate) fn matrix(&mut self, node: TensorId) -> Option<T> {
        let id = self.graph.tensor(node).srcs().first().copied().flatten()?;
        let source = self.tensor(id)?;
        let x = self.planes(source)?;
        let end = x.offset.checked_add(self.tensors.bytes_of(x))?;
        // What was copied is padded by its own place, and is not of blocks.
        let is_inside = !x.layout.dtype().is_quantized() || end <= self.room_of(self.graph.tensor(id).root());
        is_inside.then_some(x)
    }

    /// A node whose result is an intermediate of ggml's alone.
    pub(crate) fn scratch_node(&mut self, t: T) -> Option<T> {
        let at = self.scratch.next_multiple_of(self.alignment() as u64);
        self.scratch = at.checked_add(self.tensors.bytes_of(t) as u64)?;
        self.scratch_most = self.scratch_most.max(self.scratch);
        self.add(t, Place::Scratch(at))
    }

    /// A node whose result is that of a node of ours.
    pub(crate) fn result(&mut self, id: TensorId, t: T) -> Option<()> {
        self.take(id, t)?;
        self.places.pop();
        self.add(t, Place::Root(id))?;
        Some(())
    }

    /// A node that writes into one of its sources.
    pub(crate) fn written(&mut self, t: T) -> Option<()> {
        self.add(t, Place::View).map(|_| ())
    }

    fn add(&mut self, t: T, place: Place) -> Option<T> {
        if !can_be_counted(t.layout.ne()) || !self.tensors.supports(t) {
            return None;
        }
        self.places.push((t.object(), place));
        self.piece.nodes.push(t.object());
        Some(t)
    }

    /// What tensors in scratch memory begin at multiples of.
    pub(crate) fn alignment(&self) -> usize {
        self.heap.alignment.max(64)
    }

    /// The row numbers of source `i` of a node, checked and copied before the piece runs: nobody else can change the copy.
    pub(crate) fn indices(&mut self, node: TensorId, i: usize, bound: usize, of: &'static str) -> Option<T> {
        let source = self.graph.tensor(node).srcs().get(i).copied().flatten()?;
        // Elements that share their bytes would be many more than somebody has paid for.
        if self.layout(source).is_empty() || !self.layout(source).is_disjoint() {
            return None;
        }
        let same = |job: &Job| match job {
            Job::Indices(made, t) if (made.source, made.bound) == (source, bound) => Some(*t),
            _ => None,
        };
        if let Some(t) = self.made(same, self.is_constant(source)) {
            return Some(t);
        }
        let layout = Layout::contiguous(DType::I32, self.layout(source).ne()).ok()?;
        let (t, to) = self.kept(layout)?;
        self.piece.jobs.push(Job::Indices(Indices { node, source, bound, of, to }, t));
        Some(t)
    }

    /// The mask of attention that sees by positions, made before the piece runs; the same for all layers.
    pub(crate) fn mask(&mut self, mut mask: Mask) -> Option<T> {
        let layout = Layout::contiguous(DType::F16, [mask.keys, mask.tokens, 1, 1]).ok()?;
        let same = |job: &Job| match job {
            Job::Mask(made, t) if made.is_like(&mask) => Some(*t),
            _ => None,
        };
        if let Some(t) = self.made(same, mask.sources().all(|id| self.is_constant(id))) {
            return Some(t);
        }
        let (t, to) = self.kept(layout)?;
        mask.to = to;
        self.piece.jobs.push(Job::Mask(mask, t));
        Some(t)
    }

    /// A tensor that is written before its piece runs, and where it lies in that memory.
    fn kept(&mut self, layout: Layout) -> Option<(T, u64)> {
        let t = self.tensors.leaf(layout)?;
        let at = self.kept.next_multiple_of(self.alignment() as u64);
        self.kept = at.checked_add(self.tensors.bytes_of(t) as u64)?;
        self.places.push((t.object(), Place::Kept(at)));
        Some((t, at))
    }
}

/// The sources whose values choose rows, blocks or experts: the host reads them before a piece runs.
fn chosen_by(op: &Op) -> &'static [usize] {
    match op {
        Op::GetRows(_) => &[1],
        Op::SetRows(_) | Op::AddId(_) | Op::MulMatId(_) => &[2],
        Op::FlashAttn(_) => &[4, 6, 7],
        _ => &[],
    }
}

/// A contiguous layout of the memory of a root: of its shape, or a row of all that it spans. `None` of nothing.
fn whole(layout: &Layout) -> Option<Layout> {
    let (dtype, span) = (layout.dtype(), layout.span());
    let ne = if layout.is_contiguous() {
        layout.ne()
    } else {
        let blocks = span.is_multiple_of(dtype.block_bytes()).then_some(span / dtype.block_bytes())?;
        [blocks * dtype.block_len(), 1, 1, 1]
    };
    Layout::contiguous(dtype, ne).ok().filter(|whole| !whole.is_empty())
}

/// The same layout with the strides that ggml has where a dimension has one element and any would do.
fn plain(layout: &Layout) -> Option<Layout> {
    let (ne, mut nb, dtype) = (layout.ne(), layout.nb(), layout.dtype());
    for d in (0..DIMS).filter(|&d| ne[d] == 1) {
        nb[d] = match d {
            0 => dtype.block_bytes(),
            1 => nb[0].checked_mul(ne[0] / dtype.block_len())?,
            _ => nb[d - 1].checked_mul(ne[d - 1])?,
        };
    }
    Layout::strided(dtype, ne, nb).ok()
}
