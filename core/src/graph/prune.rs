//! A graph without what nobody reads.

use super::{Graph, Kind, LeafKind, Tensor, TensorId};

impl Graph {
    /// The graph without the nodes that no output and nothing that is written depends on, and without the weights that only those
    /// read; inputs and state stay. With it, the ids that its tensors have in this graph, in order.
    pub fn prune(&self) -> (Graph, Vec<TensorId>) {
        let mut live: Vec<bool> = self.tensors.iter().map(Tensor::is_a_purpose).collect();
        // Backwards, as sources come first. The root of a view or of a write is a source of it, or of a source.
        for id in self.ids().rev() {
            if live[id.index()] {
                self.tensor(id).sources().for_each(|src| live[src.index()] = true);
            }
        }
        let kept: Vec<TensorId> = self.ids().filter(|id| live[id.index()]).collect();
        let moved = |id: TensorId| TensorId::from_index(kept.partition_point(|&k| k < id));
        let tensors = kept.iter().map(|&id| {
            let mut tensor = self.tensor(id).clone();
            tensor.root = moved(tensor.root);
            if let Kind::Node { srcs, .. } = &mut tensor.kind {
                srcs.iter_mut().flatten().for_each(|src| *src = moved(*src));
            }
            tensor
        });
        (Graph { tensors: tensors.collect() }, kept)
    }
}

impl Tensor {
    /// Whether it is kept even if no node reads it.
    fn is_a_purpose(&self) -> bool {
        let kept = match &self.kind {
            Kind::Leaf(kind) => *kind != LeafKind::Weight,
            // Whoever reads the memory later need not read it through this node.
            Kind::Node { op, .. } => op.writes().is_some(),
        };
        kept || self.output
    }
}

#[cfg(test)]
mod tests {
    use crate::op::{Binary, BinaryKind, Permute, SetRows};
    use crate::{DType, GraphBuilder};

    const ADD: Binary = Binary { kind: BinaryKind::Add };

    #[test]
    fn what_nobody_reads_goes_and_the_rest_is_as_before() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", DType::F32, &[4, 2]).unwrap();
        let unused = g.input("unused", DType::F32, &[4]).unwrap();
        let lost = g.weight("lost", DType::F32, &[4]).unwrap();
        let w = g.weight("w", DType::F32, &[4]).unwrap();
        let cache = g.state("cache", DType::F32, &[4, 8]).unwrap();
        let rows = g.input("rows", DType::I32, &[2]).unwrap();
        let dead = g.push(ADD, &[x, lost]).unwrap();
        let y = g.push(ADD, &[x, w]).unwrap();
        let also_dead = g.push(ADD, &[dead, y]).unwrap();
        let turned = g.push(Permute { axes: [0, 2, 1, 3] }, &[y]).unwrap();
        let rows_in = g.push(Permute { axes: [0, 2, 1, 3] }, &[turned]).unwrap();
        let written = g.push(SetRows, &[cache, rows_in, rows]).unwrap();
        let read = g.push(ADD, &[written, w]).unwrap();
        let whole = g.clone().finish().unwrap();

        // Without an output: what is written stays.
        let (pruned, kept) = whole.prune();
        assert_eq!(kept, [x, unused, w, cache, rows, y, turned, rows_in, written]);
        for (new, &old) in pruned.ids().zip(&kept) {
            let (new, old) = (pruned.tensor(new), whole.tensor(old));
            assert_eq!(
                (new.name(), new.layout(), new.op(), new.offset()),
                (old.name(), old.layout(), old.op(), old.offset())
            );
            assert_eq!(kept[new.root().index()], old.root());
            assert!(new.sources().map(|src| kept[src.index()]).eq(old.sources()));
        }
        // Once more changes nothing.
        assert_eq!(pruned.prune().0, pruned);

        // An output needs its sources; one that nothing writes is kept, too.
        g.output(read);
        let (_, kept) = g.clone().finish().unwrap().prune();
        assert_eq!(kept, [x, unused, w, cache, rows, y, turned, rows_in, written, read]);
        g.output(also_dead);
        assert_eq!(g.finish().unwrap().prune().0.tensors().len(), whole.tensors().len());
    }
}
