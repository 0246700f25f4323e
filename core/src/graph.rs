//! Graphs of tensors, and the builder that is the only way to make one.
//!
//! A [`Graph`] is a list of tensors in the order of execution: leaves (weights, inputs, state) and nodes, each after its
//! sources. Views and ops that write into a source have no memory of their own: their [`Tensor::root`] names the tensor
//! that has. Whoever holds a `Graph` may rely on it: shapes are inferred, sources exist and come first, views are in
//! bounds, weights are never written.
//!
//! Order is meaning where memory is written: a node that reads a tensor sees what the nodes before it in the list wrote
//! there. Whatever cuts or moves nodes must keep the order of those that share a root that is written.

mod prune;

use crate::dtype::DType;
use crate::op::{MAX_SRCS, Op, Srcs};
use crate::shape::{DIMS, Layout, ShapeError, dims};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt;

/// Most tensors in a graph: a model of some hundred layers has ten thousand.
pub const MAX_TENSORS: usize = 1 << 16;
/// Longest name of a tensor in bytes.
pub const MAX_NAME: usize = 128;

/// A tensor of one graph, by its place in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(u32);

impl TensorId {
    /// Its place in [`Graph::tensors`].
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The tensor at that place, whatever the graph; a place above [`MAX_TENSORS`] is in no graph.
    pub fn from_index(index: usize) -> TensorId {
        TensorId(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

impl fmt::Debug for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// What a leaf is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeafKind {
    /// Written once before the first run, only read by the graph.
    Weight,
    /// Written anew before a run.
    Input,
    /// Kept from run to run and written by the graph: the KV cache.
    State,
}

/// Sources of a node; `None` where an optional one is left out.
pub type SrcIds = SmallVec<[Option<TensorId>; 4]>;

/// Where a tensor comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// From outside.
    Leaf(LeafKind),
    /// From an op.
    Node {
        /// What is computed.
        op: Op,
        /// From what.
        srcs: SrcIds,
    },
}

/// One tensor of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    name: String,
    layout: Layout,
    kind: Kind,
    root: TensorId,
    offset: usize,
    output: bool,
}

impl Tensor {
    /// Its name, for people and reports. Leaves have unique names; nodes may have none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type, shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// Shape in elements.
    pub fn ne(&self) -> [usize; DIMS] {
        self.layout.ne()
    }

    /// Leaf or node.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The op, if it is a node.
    pub fn op(&self) -> Option<&Op> {
        match &self.kind {
            Kind::Node { op, .. } => Some(op),
            Kind::Leaf(_) => None,
        }
    }

    /// What the leaf is for, if it is one.
    pub fn leaf(&self) -> Option<LeafKind> {
        match self.kind {
            Kind::Leaf(kind) => Some(kind),
            Kind::Node { .. } => None,
        }
    }

    /// All places for sources; empty for leaves.
    pub fn srcs(&self) -> &[Option<TensorId>] {
        match &self.kind {
            Kind::Node { srcs, .. } => srcs,
            Kind::Leaf(_) => &[],
        }
    }

    /// The sources that are there.
    pub fn sources(&self) -> impl Iterator<Item = TensorId> {
        self.srcs().iter().flatten().copied()
    }

    /// The tensor whose memory this one lies in; itself unless it is a view or written into a source.
    pub fn root(&self) -> TensorId {
        self.root
    }

    /// Bytes from the root's first element to this one's.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether it must still be there when the graph has run.
    pub fn is_output(&self) -> bool {
        self.output
    }

    /// Whether it computes something: a node that is not a view.
    pub fn is_compute(&self) -> bool {
        self.op().is_some_and(|op| !op.is_view())
    }
}

/// A valid graph. Made by [`GraphBuilder::finish`].
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    tensors: Vec<Tensor>,
}

impl Graph {
    /// All tensors in order of execution.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// One tensor. Panics if `id` is of a larger graph, which is a bug of the caller; ids from outside go through [`Graph::get`].
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// The tensor of that id, if there is one.
    pub fn get(&self, id: TensorId) -> Option<&Tensor> {
        self.tensors.get(id.index())
    }

    /// All ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// Nodes (not leaves) in order of execution, views included.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = TensorId> + '_ {
        self.ids().filter(|&id| self.tensor(id).op().is_some())
    }

    /// Leaves in order.
    pub fn leaves(&self) -> impl DoubleEndedIterator<Item = (TensorId, LeafKind)> + '_ {
        self.ids().filter_map(|id| Some((id, self.tensor(id).leaf()?)))
    }

    /// Tensors marked as outputs.
    pub fn outputs(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.ids().filter(|&id| self.tensor(id).is_output())
    }

    /// The first tensor of that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.ids().find(|&id| self.tensor(id).name == name)
    }

    /// Layouts of a node's sources.
    pub fn src_layouts(&self, id: TensorId) -> SmallVec<[Option<Layout>; 4]> {
        self.tensor(id).srcs().iter().map(|s| s.map(|s| *self.tensor(s).layout())).collect()
    }

    /// Floating-point operations of a node, for estimates; 0 for leaves and views.
    pub fn flops(&self, id: TensorId) -> u64 {
        match self.tensor(id).op() {
            Some(op) => op.flops(&Srcs(&self.src_layouts(id)), self.tensor(id).layout()),
            None => 0,
        }
    }

    /// How often each tensor is read by nodes, by its index.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.tensors().len()];
        self.nodes().flat_map(|id| self.tensor(id).sources()).for_each(|src| uses[src.index()] += 1);
        uses
    }

    /// How reports name a tensor: `MUL_MAT blk.0.attn_q` or `leaf token_embd.weight`.
    pub fn label(&self, id: TensorId) -> String {
        let t = self.tensor(id);
        let what = t.op().map_or("leaf", |op| op.name());
        if t.name.is_empty() { format!("{what} {id:?}") } else { format!("{what} {}", t.name) }
    }
}

/// What is wrong with a graph, with the node that it is wrong at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// An op does not fit its sources or parameters.
    #[error("node {index} ({op}{}): {detail}", of.as_deref().map(|of| format!(" of {of}")).unwrap_or_default())]
    Op {
        /// Its place in the graph.
        index: usize,
        /// The op's name.
        op: String,
        /// Its sources.
        of: Option<String>,
        /// What is wrong.
        detail: String,
    },
    /// A leaf's shape is not valid.
    #[error("tensor {name}: {detail}")]
    Leaf {
        /// The leaf's name.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// The graph is too large.
    #[error("a graph may have {MAX_TENSORS} tensors at most")]
    TooMany,
}

/// Builds a [`Graph`] and checks every step.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    tensors: Vec<Tensor>,
    leaves: HashMap<String, TensorId>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// Adds a leaf of a contiguous shape of up to four dimensions. Leaves need unique names.
    pub fn leaf(&mut self, kind: LeafKind, name: &str, dtype: DType, shape: &[usize]) -> Result<TensorId, GraphError> {
        let fail = |detail: String| GraphError::Leaf { name: clip(name), detail };
        let ne = dims(shape).ok_or_else(|| fail(format!("{} dimensions, at most {DIMS} are possible", shape.len())))?;
        let layout = Layout::contiguous(dtype, ne).map_err(|e: ShapeError| fail(e.to_string()))?;
        self.leaf_with_layout(kind, name, layout)
    }

    /// Adds a leaf with its own strides, which a cut graph needs for views that come from elsewhere.
    pub fn leaf_with_layout(&mut self, kind: LeafKind, name: &str, layout: Layout) -> Result<TensorId, GraphError> {
        let fail = |detail: &str| GraphError::Leaf { name: clip(name), detail: detail.to_owned() };
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(fail("names of leaves have 1 to 128 bytes"));
        }
        if kind != LeafKind::Weight && !layout.is_disjoint() {
            return Err(fail("elements of a tensor that is written must not overlap"));
        }
        if self.leaves.contains_key(name) {
            return Err(fail("there is another leaf of that name"));
        }
        let root = self.next_id()?;
        self.leaves.insert(name.to_owned(), root);
        self.tensors.push(Tensor {
            name: name.to_owned(),
            layout,
            kind: Kind::Leaf(kind),
            root,
            offset: 0,
            output: false,
        });
        Ok(root)
    }

    /// Adds a weight.
    pub fn weight(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<TensorId, GraphError> {
        self.leaf(LeafKind::Weight, name, dtype, shape)
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<TensorId, GraphError> {
        self.leaf(LeafKind::Input, name, dtype, shape)
    }

    /// Adds state that lasts from run to run.
    pub fn state(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<TensorId, GraphError> {
        self.leaf(LeafKind::State, name, dtype, shape)
    }

    /// Adds a node.
    pub fn push(&mut self, op: impl Into<Op>, srcs: &[TensorId]) -> Result<TensorId, GraphError> {
        let srcs: SrcIds = srcs.iter().map(|&s| Some(s)).collect();
        self.push_opt(op, &srcs)
    }

    /// Adds a node of which optional sources may be left out.
    pub fn push_opt(&mut self, op: impl Into<Op>, srcs: &[Option<TensorId>]) -> Result<TensorId, GraphError> {
        let op = op.into();
        let fail = |of: Option<String>, detail: String| GraphError::Op {
            index: self.tensors.len(),
            op: op.name().to_owned(),
            of,
            detail,
        };
        if srcs.len() > MAX_SRCS {
            return Err(fail(None, format!("{} sources, at most {MAX_SRCS} are possible", srcs.len())));
        }
        if let Some(missing) = srcs.iter().flatten().find(|s| s.index() >= self.tensors.len()) {
            return Err(fail(None, format!("source {missing:?} does not come before it")));
        }
        let layouts: SmallVec<[Option<Layout>; 4]> =
            srcs.iter().map(|s| s.map(|s| self.tensors[s.index()].layout)).collect();
        let inferred = op.infer(&Srcs(&layouts)).map_err(|detail| fail(Some(self.describe(srcs)), detail))?;
        let id = self.next_id()?;
        let (root, offset) = match inferred.alias.and_then(|a| Some((srcs.get(a.src).copied()??, a.offset))) {
            Some((src, offset)) => {
                let src = &self.tensors[src.index()];
                (src.root, src.offset + offset)
            }
            None => (id, 0),
        };
        let reads_only = self.tensors.get(root.index()).is_some_and(|t| t.leaf() == Some(LeafKind::Weight));
        if op.writes().is_some() && reads_only {
            return Err(fail(Some(self.describe(srcs)), "writes into a weight".into()));
        }
        let kind = Kind::Node { op, srcs: srcs.into() };
        self.tensors.push(Tensor { name: String::new(), layout: inferred.layout, kind, root, offset, output: false });
        Ok(id)
    }

    /// Names a node, for reports; names that are too long are cut. Leaves keep theirs.
    pub fn name(&mut self, id: TensorId, name: &str) -> TensorId {
        if let Some(t) = self.tensors.get_mut(id.index())
            && t.op().is_some()
        {
            t.name = clip(name);
        }
        id
    }

    /// Marks a tensor as an output: it is still there when the graph has run.
    pub fn output(&mut self, id: TensorId) -> TensorId {
        if let Some(t) = self.tensors.get_mut(id.index()) {
            t.output = true;
        }
        id
    }

    /// A tensor that was added.
    pub fn tensor(&self, id: TensorId) -> Option<&Tensor> {
        self.tensors.get(id.index())
    }

    /// Shape of a tensor that was added; ones for an unknown id, which the next op will refuse.
    pub fn ne(&self, id: TensorId) -> [usize; DIMS] {
        self.tensor(id).map_or([1; DIMS], Tensor::ne)
    }

    /// The leaf of that name, if it was added.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.leaves.get(name).copied()
    }

    /// Number of tensors so far.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The graph.
    pub fn finish(self) -> Result<Graph, GraphError> {
        Ok(Graph { tensors: self.tensors })
    }

    fn next_id(&self) -> Result<TensorId, GraphError> {
        if self.tensors.len() < MAX_TENSORS {
            Ok(TensorId::from_index(self.tensors.len()))
        } else {
            Err(GraphError::TooMany)
        }
    }

    fn describe(&self, srcs: &[Option<TensorId>]) -> String {
        let one = |s: &Option<TensorId>| match s.and_then(|s| self.tensor(s)) {
            Some(t) if !t.name.is_empty() => t.name.clone(),
            Some(t) => t.op().map_or("leaf", |op| op.name()).to_owned(),
            None => "none".to_owned(),
        };
        srcs.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// A name cut to [`MAX_NAME`], at a boundary of characters.
pub fn clip(name: &str) -> String {
    let end = (0..=name.len().min(MAX_NAME)).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
    name[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::*;

    #[test]
    fn views_share_their_root() {
        let mut g = GraphBuilder::new();
        let s = g.state("cache", DType::F16, &[8, 16]).unwrap();
        let x = g.input("x", DType::F32, &[8, 2]).unwrap();
        let ids = g.input("ids", DType::I32, &[2]).unwrap();
        let w = g.push(SetRows, &[s, x, ids]).unwrap();
        let v = g.push(View { ne: [4, 3, 1, 1], nb: [2, 16, 48, 48], offset: 18 }, &[w]).unwrap();
        let g = g.finish().unwrap();
        assert_eq!((g.tensor(v).root(), g.tensor(v).offset()), (s, 18));
        assert_eq!(g.tensor(w).root(), s);
    }

    #[test]
    fn errors_name_the_node() {
        let mut g = GraphBuilder::new();
        let w = g.weight("blk.0.w", DType::F16, &[8, 4]).unwrap();
        let x = g.input("x", DType::F32, &[7, 2]).unwrap();
        let e = g.push(MulMat, &[w, x]).unwrap_err().to_string();
        assert_eq!(e, "node 2 (MUL_MAT of blk.0.w, x): rows of a F16[8, 4] and b F32[7, 2] differ in length");
        assert!(g.push(SetRows, &[w, x, x]).is_err());
        assert!(g.weight("x", DType::F32, &[1]).is_err());
        assert!(g.push(Unary { kind: UnaryKind::Silu }, &[TensorId::from_index(99)]).is_err());
    }

    #[test]
    fn weights_are_not_written() {
        let mut g = GraphBuilder::new();
        let w = g.weight("w", DType::F32, &[4]).unwrap();
        let x = g.input("x", DType::F32, &[4]).unwrap();
        let e = g.push(Cpy, &[x, w]).unwrap_err().to_string();
        assert!(e.contains("writes into a weight"), "{e}");
    }

    #[test]
    fn views_stay_inside() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", DType::F32, &[4, 4]).unwrap();
        for (ne, nb, offset) in [
            ([4, 4, 1, 1], [4, 16, 64, 64], 4),
            ([1, 1, 1, 1], [4, 4, 4, 4], 64),
            ([1, 1, 1, 1], [4, 4, 4, 4], usize::MAX - 3),
            ([2, 1, 1, 1], [64, 4, 4, 4], 0),
            ([1, 1, 1, 1], [4, 4, 4, 4], 2),
        ] {
            assert!(g.push(View { ne, nb, offset }, &[x]).is_err(), "{ne:?} {nb:?} {offset}");
        }
        assert!(g.push(View { ne: [2, 2, 1, 1], nb: [4, 32, 64, 64], offset: 8 }, &[x]).is_ok());
    }

    #[test]
    fn ops_round_trip_through_attrs() {
        let ops: Vec<Op> = vec![
            MulMat.into(),
            AddId.into(),
            Cast { dtype: DType::Q4_0 }.into(),
            Rope::plain(RopeMode::Neox, 64, 1e6).into(),
            Sample.into(),
            Penalty { block: 256 }.into(),
            FlashAttn { scale: 0.125, window: 128, softcap: 0.0, block: 256 }.into(),
            View { ne: [1, 2, 3, 4], nb: [4, 8, 16, 32], offset: 4 }.into(),
            Unary { kind: UnaryKind::Silu }.into(),
            Glu { kind: GluKind::Geglu }.into(),
            Glu { kind: GluKind::SwigluOai { alpha: 1.5, limit: 6.0 } }.into(),
            Argsort { order: Order::Descending }.into(),
        ];
        for op in ops {
            assert_eq!(Op::from_attrs(op.name(), op.attrs()), Ok(op.clone()));
        }
        assert!(Op::from_attrs("NOPE", Default::default()).is_err());
        assert!(Op::from_attrs("ROPE", Default::default()).is_err());
        let names: Vec<_> = Op::names().collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(names.len(), unique.len());
    }
}
