//! Tensors of ggml while a graph is built: descriptions without memory, in contexts that grow.

use crate::functions::{Functions, InitParams, Object};
use crate::memory::Heap;
use outboard_core::{DIMS, DType, Layout};
use std::sync::Arc;

/// Tensors of a context.
const ROOM: usize = 256;

/// A tensor of ggml's. Made by [`Tensors`] alone, and used as long as that lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct T {
    object: Object,
    /// Type, shape and strides, as ggml has them.
    pub(crate) layout: Layout,
    /// Bytes from the beginning of the memory that it is a view of.
    pub(crate) offset: usize,
}

impl T {
    pub(crate) fn object(&self) -> Object {
        self.object
    }
}

/// A constructor of a node of one source, of two and of three.
pub(crate) type Of1 = unsafe extern "C" fn(Object, Object) -> Object;
pub(crate) type Of2 = unsafe extern "C" fn(Object, Object, Object) -> Object;
pub(crate) type Of3 = unsafe extern "C" fn(Object, Object, Object, Object) -> Object;

/// Contexts with tensors. They refer to one another, and go together.
pub(crate) struct Tensors {
    heap: Arc<Heap>,
    contexts: Vec<Object>,
    /// Tensors that the last context has room for.
    room: usize,
}

// SAFETY: the contexts belong to this value, and whoever has it mutably is alone; a graph that runs is guarded by its executable.
unsafe impl Send for Tensors {}
// SAFETY: as above.
unsafe impl Sync for Tensors {}

impl Tensors {
    pub(crate) fn new(heap: &Arc<Heap>) -> Tensors {
        Tensors { heap: heap.clone(), contexts: Vec::new(), room: 0 }
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.heap.library().functions
    }

    /// A context with room for a tensor. `None` without memory.
    fn context(&mut self) -> Option<Object> {
        if self.room == 0 {
            // SAFETY: it takes nothing.
            let size = unsafe { (self.functions().ggml_tensor_overhead)() };
            self.contexts.push(self.open(size * (ROOM + 1))?);
            self.room = ROOM;
        }
        self.room -= 1;
        self.contexts.last().copied()
    }

    fn open(&self, size: usize) -> Option<Object> {
        let params = InitParams { size, buffer: std::ptr::null_mut(), no_alloc: true };
        // SAFETY: the library takes the memory from its own allocator.
        let context = unsafe { (self.functions().ggml_init)(params) };
        (!context.is_null()).then_some(context)
    }

    /// A new tensor: a constructor is given a context with room for it, and makes one of a shape that the caller knows.
    fn make(&mut self, layout: Layout, offset: usize, new: impl FnOnce(&Functions, Object) -> Object) -> Option<T> {
        let context = self.context()?;
        let object = new(self.functions(), context);
        (!object.is_null()).then_some(T { object, layout, offset })
    }

    /// A contiguous tensor from outside.
    pub(crate) fn leaf(&mut self, layout: Layout) -> Option<T> {
        let kind = kind(layout.dtype())?;
        let [n0, n1, n2, n3] = extents(layout.ne())?;
        // SAFETY: a context with room, a type that ggml has, and extents that are whole blocks and small enough.
        self.make(layout, 0, |f, context| unsafe { (f.ggml_new_tensor_4d)(context, kind, n0, n1, n2, n3) })
    }

    /// A part of a tensor with dense rows. `None` if ggml would not take it for one: it counts elements, not what they span.
    pub(crate) fn view(&mut self, of: T, layout: Layout, offset: usize) -> Option<T> {
        let [n0, n1, n2, n3] = extents(layout.ne())?;
        let [_, nb1, nb2, nb3] = layout.nb();
        let counted = Layout::contiguous(layout.dtype(), layout.ne()).ok()?.span();
        let end = of.offset.checked_add(offset)?.checked_add(counted)?;
        if layout.nb()[0] != layout.dtype().block_bytes() || end > of.offset.checked_add(of.layout.span())? {
            return None;
        }
        // SAFETY: a tensor of this library; what the view counts lies within it.
        let new = |f: &Functions, context| unsafe {
            (f.ggml_view_4d)(context, of.object, n0, n1, n2, n3, nb1, nb2, nb3, offset)
        };
        self.make(layout, of.offset + offset, new)
    }

    /// Dimension `i` becomes dimension `axes[i]`, a permutation.
    pub(crate) fn permuted(&mut self, of: T, axes: [usize; DIMS]) -> Option<T> {
        let (mut ne, mut nb) = ([1; DIMS], [0; DIMS]);
        for (d, &axis) in axes.iter().enumerate() {
            ne[axis] = of.layout.ne()[d];
            nb[axis] = of.layout.nb()[d];
        }
        let layout = Layout::strided(of.layout.dtype(), ne, nb).ok()?;
        let [a0, a1, a2, a3] = axes.map(|axis| axis as i32);
        // SAFETY: a tensor of this library and a permutation of its dimensions.
        let new = |f: &Functions, context| unsafe { (f.ggml_permute)(context, of.object, a0, a1, a2, a3) };
        self.make(layout, of.offset, new)
    }

    /// A node of one source. What ggml asserts of it is the caller's duty, here and below: it would end the process.
    pub(crate) fn of1(&mut self, layout: Layout, new: impl Fn(&Functions) -> Of1, a: T) -> Option<T> {
        // SAFETY: a tensor of this library, and a constructor of one of a source.
        self.make(layout, 0, |f, context| unsafe { new(f)(context, a.object) })
    }

    /// A node of two sources.
    pub(crate) fn of2(&mut self, layout: Layout, new: impl Fn(&Functions) -> Of2, [a, b]: [T; 2]) -> Option<T> {
        // SAFETY: as above, of two.
        self.make(layout, 0, |f, context| unsafe { new(f)(context, a.object, b.object) })
    }

    /// A node of three sources.
    pub(crate) fn of3(&mut self, layout: Layout, new: impl Fn(&Functions) -> Of3, [a, b, c]: [T; 3]) -> Option<T> {
        // SAFETY: as above, of three.
        self.make(layout, 0, |f, context| unsafe { new(f)(context, a.object, b.object, c.object) })
    }

    /// A node whose constructor has parameters: `new` gives it the context and handles of its sources, which are tensors of these.
    pub(crate) fn with(&mut self, layout: Layout, new: impl FnOnce(&Functions, Object) -> Object) -> Option<T> {
        self.make(layout, 0, new)
    }

    /// Whether the device computes this node.
    pub(crate) fn supports(&self, node: T) -> bool {
        let device = self.heap.device.handle();
        // SAFETY: a device and a tensor of this library.
        unsafe { (self.functions().ggml_backend_dev_supports_op)(device, node.object) }
    }

    /// Bytes that it takes in memory of the device.
    pub(crate) fn bytes_of(&self, tensor: T) -> usize {
        self.heap.bytes_of(tensor.object)
    }

    /// Notes in nodes that they are to be computed, as backends ask; `all` is the number of tensors that there are. `None` without memory.
    pub(crate) fn mark(&mut self, nodes: impl Iterator<Item = Object>, all: usize) -> Option<()> {
        let mut nodes = nodes.peekable();
        if nodes.peek().is_none() {
            return Some(());
        }
        // SAFETY: as below; a graph of all tensors has room for whatever a node is made of. It is not run.
        unsafe {
            let size = (self.functions().ggml_graph_overhead_custom)(all, false);
            let (context, f) = (self.open(size + 1024)?, self.functions());
            let graph = (f.ggml_new_graph_custom)(context, all, false);
            nodes.for_each(|node| (f.ggml_build_forward_expand)(graph, node));
            (f.ggml_free)(context);
        }
        Some(())
    }

    /// A graph of marked nodes in this order. `None` without memory. It says nothing of what nodes are made of, so that backends compute each one on
    /// its own: results of ours may lie where those of others did, which a node made of several would not know.
    pub(crate) fn graph(&mut self, nodes: &[Object]) -> Option<Object> {
        // SAFETY: it takes numbers.
        let size = unsafe { (self.functions().ggml_graph_overhead_custom)(nodes.len(), false) };
        // The memory of a context is rounded to its alignment, which is less than this.
        let context = self.open(size + 1024)?;
        self.contexts.insert(0, context);
        let f = self.functions();
        // SAFETY: the context has room for a graph of so many nodes, and each of them is a tensor of this library.
        unsafe {
            let graph = (f.ggml_new_graph_custom)(context, nodes.len(), false);
            nodes.iter().for_each(|&node| (f.ggml_graph_add_node)(graph, node));
            Some(graph)
        }
    }
}

impl Drop for Tensors {
    fn drop(&mut self) {
        for &context in &self.contexts {
            // SAFETY: made here, freed once, and no graph of them runs any more.
            unsafe { (self.functions().ggml_free)(context) };
        }
    }
}

/// The largest extent and number of rows of a tensor: ggml counts both in 32 bits here and there, and adds a little to them.
const MOST: usize = i32::MAX as usize - (1 << 16);

/// Whether ggml can count the elements of a row and the rows of such a tensor.
pub(crate) fn can_be_counted(ne: [usize; DIMS]) -> bool {
    let rows = ne[1..].iter().try_fold(1usize, |rows, &n| rows.checked_mul(n));
    ne.iter().all(|&n| n <= MOST) && rows.is_some_and(|rows| rows <= MOST)
}

/// Extents for ggml.
fn extents(ne: [usize; DIMS]) -> Option<[i64; DIMS]> {
    can_be_counted(ne).then(|| ne.map(|n| n as i64))
}

/// `ggml_type`.
pub(crate) fn kind(dtype: DType) -> Option<i32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2_K => 10,
        DType::Q3_K => 11,
        DType::Q4_K => 12,
        DType::Q5_K => 13,
        DType::Q6_K => 14,
        DType::IQ4_NL => 20,
        DType::IQ4_XS => 23,
        DType::I32 => 26,
        DType::BF16 => 30,
        DType::MXFP4 => 39,
        // An intermediate of ggml's own.
        DType::Q8_K => return None,
    })
}
