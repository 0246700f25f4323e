//! A node of a graph as a graph of its own, in the same memory.

use super::places::Places;
use outboard_core::{Graph, GraphBuilder, GraphError, Kind, LeafKind, Op, TensorId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The graph of one node, and where its roots lie.
pub(super) struct Alone {
    pub(super) graph: Graph,
    pub(super) places: Vec<Option<Range<usize>>>,
}

/// That node; what it needs of other nodes are leaves.
pub(super) fn alone(graph: &Graph, places: &Places, id: TensorId) -> Result<Alone, GraphError> {
    let mut maker = Maker { graph, places, g: GraphBuilder::new(), made: BTreeMap::new(), of: Vec::new() };
    let tensor = graph.tensor(id);
    if let Kind::Node { op, srcs } = tensor.kind() {
        let srcs =
            srcs.iter().map(|src| src.map(|src| maker.source(src)).transpose()).collect::<Result<Vec<_>, _>>()?;
        let made = maker.push(op, &srcs, id)?;
        maker.g.output(made);
    }
    Ok(Alone { places: maker.of, graph: maker.g.finish()? })
}

struct Maker<'a> {
    graph: &'a Graph,
    places: &'a Places,
    g: GraphBuilder,
    made: BTreeMap<TensorId, TensorId>,
    of: Vec<Option<Range<usize>>>,
}

impl Maker<'_> {
    fn push(&mut self, op: &Op, srcs: &[Option<TensorId>], id: TensorId) -> Result<TensorId, GraphError> {
        let made = self.g.push_opt(op.clone(), srcs)?;
        let is_root = self.graph.tensor(id).root() == id;
        self.of.push(self.places.of[id.index()].clone().filter(|_| is_root));
        Ok(made)
    }

    fn source(&mut self, id: TensorId) -> Result<TensorId, GraphError> {
        if let Some(&made) = self.made.get(&id) {
            return Ok(made);
        }
        let tensor = self.graph.tensor(id);
        let made = match tensor.kind() {
            Kind::Node { op, srcs } if op.is_view() => {
                let srcs = srcs
                    .iter()
                    .map(|src| src.map(|src| self.source(src)).transpose())
                    .collect::<Result<Vec<_>, _>>()?;
                self.push(op, &srcs, id)?
            }
            // It is what it has written into.
            Kind::Node { op, srcs } if op.writes().is_some() => {
                let into = op.writes().and_then(|i| srcs.get(i).copied().flatten());
                self.source(into.unwrap_or(tensor.root()))?
            }
            kind => {
                let kind = if let Kind::Leaf(kind) = kind { *kind } else { LeafKind::State };
                let made = self.g.leaf_with_layout(kind, &format!("of {}", id.index()), *tensor.layout())?;
                self.of.push(self.places.of[id.index()].clone());
                made
            }
        };
        self.made.insert(id, made);
        Ok(made)
    }
}
