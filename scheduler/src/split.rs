//! Cuts a graph into splits: runs of nodes on one device, each a graph of its own, with the copies they need.
//!
//! Views are not nodes of a split: where one is used, it is made anew from its root. A tensor whose memory is on another
//! device is copied in, the bytes of its own span with its strides, once per version: a root that is written (the KV cache)
//! begins a new version with each write.

use crate::assign::Assignment;
use crate::plan::PlanError;
use outboard_core::graph::{MAX_NAME, clip};
use outboard_core::op::View;
use outboard_core::{Graph, GraphBuilder, Layout, LeafKind, Tensor, TensorId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Where a tensor's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In memory that the caller has bound: a weight or state.
    Bound(TensorId),
    /// In memory that the plan gives to the result of a node.
    Node(TensorId),
    /// In memory that the plan gives to an input, on this device.
    Input(TensorId, usize),
    /// In the target of a copy, by its number.
    Copy(usize),
}

/// One tensor that goes from one device to another.
#[derive(Clone, Debug)]
pub struct PlannedCopy {
    /// The tensor (of the full graph) whose bytes go over.
    pub tensor: TensorId,
    /// Device that has it.
    pub from: usize,
    /// Device that needs it.
    pub to: usize,
    /// Where its root is on `from`.
    pub source: Place,
    /// Bytes from the start of that place.
    pub offset: usize,
    /// Bytes that go over.
    pub bytes: usize,
    /// Whether it never changes (a weight), so that one copy before the first run is enough.
    pub constant: bool,
}

/// A run of nodes on one device.
#[derive(Clone, Debug)]
pub struct Split {
    /// The device's index.
    pub device: usize,
    /// Nodes of the full graph in order, without views.
    pub nodes: Vec<TensorId>,
    /// The same as a graph of its own.
    pub graph: Arc<Graph>,
    /// Where each root tensor of `graph` is, by its index there; `None` for views.
    pub places: Vec<Option<Place>>,
    /// Copies (by number) that have to be done before it runs, beside the constant ones.
    pub copies: Vec<usize>,
}

impl Split {
    /// Its nodes: the id in the full graph, and that in the split's own.
    pub fn computed(&self) -> impl Iterator<Item = (TensorId, TensorId)> + '_ {
        self.nodes.iter().copied().zip(self.graph.nodes().filter(|&id| self.graph.tensor(id).is_compute()))
    }

    /// Where the memory of a tensor of its own graph is.
    pub fn place(&self, id: TensorId) -> Option<Place> {
        self.places[self.graph.tensor(id).root().index()]
    }
}

/// The splits of a graph and the copies between them.
#[derive(Clone, Debug, Default)]
pub struct Splits {
    /// In order of execution.
    pub splits: Vec<Split>,
    /// All copies.
    pub copies: Vec<PlannedCopy>,
    /// Devices that need each input.
    pub inputs: Vec<(TensorId, Vec<usize>)>,
    /// By tensor: the device and place where a root can be read when the graph has run. `None` for views and unused inputs.
    pub homes: Vec<Option<(usize, Place)>>,
}

impl Splits {
    /// How many splits, the first ones, may be run a while before the rest, with others in between that use the same memory for results.
    ///
    /// They leave nothing for the rest, or for readers of the graph, but what is copied from device to device. Of those that do, it is the first: all
    /// but the last ones, which are on one device, if that has some before; those up to its first one; those on the first device; or 0.
    pub fn leading(&self, graph: &Graph) -> usize {
        let (Some(first), Some(last)) = (self.splits.first(), self.splits.last()) else { return 0 };
        let at_the_end = self.splits.iter().rev().take_while(|split| split.device == last.device).count();
        let before_end = self.splits.len() - at_the_end;
        let first_of_last = self.splits.iter().take(before_end).position(|split| split.device == last.device);
        let on_first = self.splits.iter().take_while(|split| split.device == first.device).count();
        let choices = [first_of_last.map(|_| before_end), first_of_last.map(|at| at + 1), Some(on_first)];
        choices.into_iter().flatten().find(|&n| self.leaves_nothing(n, graph)).unwrap_or(0)
    }

    /// Whether the first `n` splits leave nothing for the rest, or for readers of the graph, but what is copied from device to device.
    fn leaves_nothing(&self, n: usize, graph: &Graph) -> bool {
        let (leading, rest) = self.splits.split_at(n);
        let computed: HashSet<&TensorId> = leading.iter().flat_map(|split| &split.nodes).collect();
        let left = |place: &Place| match place {
            Place::Node(id) => computed.contains(id),
            Place::Copy(number) => leading.iter().any(|split| split.copies.contains(number)),
            Place::Bound(_) | Place::Input(..) => false,
        };
        let writes_input = |split: &Split| {
            let writes = |&id: &TensorId| split.graph.tensor(id).op().is_some_and(|op| op.writes().is_some());
            split.graph.nodes().filter(writes).any(|id| matches!(split.place(id), Some(Place::Input(..))))
        };
        let stays = rest.iter().flat_map(|split| &split.places).flatten().any(left)
            || graph.outputs().any(|id| computed.contains(&graph.tensor(id).root()))
            || leading.iter().any(writes_input);
        !rest.is_empty() && !stays
    }

    /// Whether a copy, by its number, is of what one of the first `leading` splits computes.
    pub fn is_of(&self, leading: usize, number: usize) -> bool {
        let computes = |id: &TensorId| self.splits.iter().take(leading).any(|split| split.nodes.contains(id));
        matches!(&self.copies[number].source, Place::Node(id) if computes(id))
    }
}

/// Cuts `graph` along its assignment into splits of at most `max_nodes` nodes.
pub fn split(
    graph: &Graph,
    assignment: &Assignment,
    bound: &HashMap<TensorId, usize>,
    max_nodes: usize,
) -> Result<Splits, PlanError> {
    let mut runs: Vec<(usize, Vec<TensorId>)> = Vec::new();
    for id in graph.nodes().filter(|&id| graph.tensor(id).is_compute()) {
        let device = assignment
            .device(id)
            .ok_or_else(|| PlanError::Unsupported { node: graph.label(id), detail: "it was not assigned".into() })?;
        match runs.last_mut() {
            Some((d, nodes)) if *d == device && nodes.len() < max_nodes => nodes.push(id),
            _ => runs.push((device, vec![id])),
        }
    }
    let mut cutter =
        Cutter { graph, assignment, bound, out: Splits::default(), copied: HashMap::new(), versions: HashMap::new() };
    for (device, nodes) in runs {
        cutter.cut(device, nodes)?;
    }
    for root in graph.outputs().map(|id| graph.tensor(id).root()) {
        let used = cutter.out.inputs.iter().any(|(id, _)| *id == root);
        if graph.tensor(root).leaf() == Some(LeafKind::Input) && !used {
            // No node needs it, but it must be somewhere to be read.
            cutter.note_input(root, 0);
        }
    }
    for root in graph.ids() {
        let home = if graph.tensor(root).root() == root { cutter.home(root, cutter.first_with(root))? } else { None };
        cutter.out.homes.push(home);
    }
    Ok(cutter.out)
}

struct Cutter<'a> {
    graph: &'a Graph,
    assignment: &'a Assignment,
    bound: &'a HashMap<TensorId, usize>,
    out: Splits,
    /// Copies made, by tensor, device and version of the root.
    copied: HashMap<(TensorId, usize, u32), usize>,
    /// How often a root was written.
    versions: HashMap<TensorId, u32>,
}

/// A split's graph while it grows.
struct Part {
    device: usize,
    g: GraphBuilder,
    places: Vec<Option<Place>>,
    /// Roots on this device, by their id in the full graph.
    roots: HashMap<TensorId, TensorId>,
    /// Copies, by number.
    copies: HashMap<usize, TensorId>,
    needed: Vec<usize>,
    /// Roots that a node of this split writes.
    written: Vec<TensorId>,
}

impl Part {
    fn leaf(&mut self, kind: LeafKind, name: &str, layout: Layout, place: Place) -> Result<TensorId, PlanError> {
        let local = self.g.leaf_with_layout(kind, name, layout).map_err(PlanError::Graph)?;
        self.places.resize(self.g.len(), None);
        self.places[local.index()] = Some(place);
        Ok(local)
    }

    /// The tensor `t` of the full graph, whose root is `local` here.
    fn view(&mut self, local: TensorId, t: &Tensor, root: &Tensor) -> Result<TensorId, PlanError> {
        if t.layout() == root.layout() && t.offset() == 0 {
            return Ok(local);
        }
        let view = View { ne: t.layout().ne(), nb: t.layout().nb(), offset: t.offset() };
        let view = self.g.push(view, &[local]).map_err(PlanError::Graph)?;
        self.g.name(view, t.name());
        self.places.resize(self.g.len(), None);
        Ok(view)
    }
}

impl Cutter<'_> {
    fn cut(&mut self, device: usize, nodes: Vec<TensorId>) -> Result<(), PlanError> {
        let writes = |&id: &TensorId| self.graph.tensor(id).op().is_some_and(|op| op.writes().is_some());
        let written = nodes.iter().filter(|id| writes(id)).map(|&id| self.graph.tensor(id).root()).collect();
        let mut part = Part {
            device,
            g: GraphBuilder::new(),
            places: Vec::new(),
            roots: HashMap::new(),
            copies: HashMap::new(),
            needed: Vec::new(),
            written,
        };
        for &id in &nodes {
            let t = self.graph.tensor(id);
            let mut srcs = Vec::with_capacity(t.srcs().len());
            for src in t.srcs() {
                srcs.push(match src {
                    Some(src) => Some(self.source(&mut part, *src)?),
                    None => None,
                });
            }
            let Some(op) = t.op() else { continue };
            let local = part.g.push_opt(op.clone(), &srcs).map_err(PlanError::Graph)?;
            part.g.name(local, t.name());
            part.places.resize(part.g.len(), None);
            if t.root() == id {
                part.places[local.index()] = Some(Place::Node(id));
                part.roots.insert(id, local);
            } else if op.writes().is_some() {
                *self.versions.entry(t.root()).or_default() += 1;
            }
        }
        let graph = Arc::new(part.g.finish().map_err(PlanError::Graph)?);
        self.out.splits.push(Split { device, nodes, graph, places: part.places, copies: part.needed });
        Ok(())
    }

    /// The tensor `id` of the full graph inside a split.
    fn source(&mut self, part: &mut Part, id: TensorId) -> Result<TensorId, PlanError> {
        let t = self.graph.tensor(id);
        let root_id = t.root();
        let root = self.graph.tensor(root_id);
        let (home, place) =
            self.home(root_id, Some(part.device))?.ok_or_else(|| PlanError::Unbound(self.graph.label(root_id)))?;
        if let Place::Input(..) = place {
            self.note_input(root_id, home);
        }
        if home != part.device {
            return self.copied_in(part, id, home, place);
        }
        let local = match part.roots.get(&root_id) {
            Some(&local) => local,
            None => {
                let kind = match root.leaf() {
                    Some(LeafKind::Weight) => LeafKind::Weight,
                    _ if part.written.contains(&root_id) => LeafKind::State,
                    kind => kind.unwrap_or(LeafKind::Input),
                };
                let local = part.leaf(kind, &leaf_name(root.name(), root_id), *root.layout(), place)?;
                part.roots.insert(root_id, local);
                local
            }
        };
        part.view(local, t, root)
    }

    /// Where a root is, for a node of device `user` (an input that is not written is wherever it is used).
    fn home(&self, root: TensorId, user: Option<usize>) -> Result<Option<(usize, Place)>, PlanError> {
        let t = self.graph.tensor(root);
        let assigned = self.assignment.device(root);
        match t.leaf() {
            Some(LeafKind::Input) => Ok(assigned.or(user).map(|d| (d, Place::Input(root, d)))),
            Some(_) => match self.bound.get(&root) {
                Some(&d) => Ok(Some((d, Place::Bound(root)))),
                None => Err(PlanError::Unbound(t.name().to_owned())),
            },
            None => Ok(assigned.map(|d| (d, Place::Node(root)))),
        }
    }

    /// The first device that an input is written to.
    fn first_with(&self, input: TensorId) -> Option<usize> {
        self.out.inputs.iter().find(|(id, _)| *id == input).and_then(|(_, devices)| devices.first().copied())
    }

    /// A tensor of another device as a leaf of this split, with the copy that fills it.
    fn copied_in(&mut self, part: &mut Part, id: TensorId, from: usize, source: Place) -> Result<TensorId, PlanError> {
        let t = self.graph.tensor(id);
        let root = self.graph.tensor(t.root());
        let constant = root.leaf() == Some(LeafKind::Weight);
        if !constant && !t.layout().is_disjoint() {
            // A leaf that is written for every run must not overlap itself; the root never does.
            let local = self.copied_in(part, t.root(), from, source)?;
            return part.view(local, t, root);
        }
        let version = self.versions.get(&t.root()).copied().unwrap_or(0);
        let number = *self.copied.entry((id, part.device, version)).or_insert_with(|| {
            let (offset, bytes) = (t.offset(), t.layout().span());
            let number = self.out.copies.len();
            self.out.copies.push(PlannedCopy { tensor: id, from, to: part.device, source, offset, bytes, constant });
            if !constant {
                part.needed.push(number);
            }
            number
        });
        if let Some(&local) = part.copies.get(&number) {
            return Ok(local);
        }
        let kind = if constant { LeafKind::Weight } else { LeafKind::Input };
        let name = clip(&format!("copy {number} of {}", leaf_name(t.name(), id)));
        let local = part.leaf(kind, &name, *t.layout(), Place::Copy(number))?;
        part.copies.insert(number, local);
        Ok(local)
    }

    fn note_input(&mut self, input: TensorId, device: usize) {
        match self.out.inputs.iter_mut().find(|(id, _)| *id == input) {
            Some((_, devices)) if devices.contains(&device) => {}
            Some((_, devices)) => devices.push(device),
            None => self.out.inputs.push((input, vec![device])),
        }
    }
}

/// Leaves need names of their own; a node's result that becomes a leaf of a later split may have none, or one that others have
/// too. Long names are cut before the id, which tells them apart.
fn leaf_name(name: &str, id: TensorId) -> String {
    const ROOM_FOR_ID: usize = 12;
    if name.is_empty() {
        return format!("{id:?}");
    }
    let end = (0..=name.len().min(MAX_NAME - ROOM_FOR_ID)).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
    format!("{} {id:?}", &name[..end])
}
