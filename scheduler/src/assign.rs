//! Which node runs on which device.
//!
//! In the manner of ggml's scheduler: nodes go where the memory is that they write or whose weights they read; what is left is
//! taken by neighbours, first on processors with memory of their own, so that runs of nodes stay together; the rest goes
//! where most of its inputs are. A CPU is the last resort for what others do not support.

use crate::plan::PlanError;
use outboard_core::{DeviceKind, Graph, LeafKind, NodeSet, TensorId};
use std::collections::HashMap;

/// What the assignment has to know of a device.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// For messages.
    pub id: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Which nodes it can compute.
    pub supports: NodeSet,
    /// Alignment of tensors in its buffers.
    pub alignment: usize,
}

/// What is given before nodes are assigned; devices by their index.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Where weights and state lie. Every one of them must be here.
    pub leaves: HashMap<TensorId, usize>,
    /// Where the user wants nodes to run.
    pub pins: HashMap<TensorId, usize>,
    /// Where nodes should run that no pin, weight or written memory ties to a device: the device of their layer.
    pub prefer: HashMap<TensorId, usize>,
}

/// A device for each node that computes; `None` for leaves and views, which are where they are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment(Vec<Option<usize>>);

impl Assignment {
    /// The device of a node.
    pub fn device(&self, id: TensorId) -> Option<usize> {
        self.0.get(id.index()).copied().flatten()
    }
}

/// Assigns every node of a graph.
pub fn assign(graph: &Graph, devices: &[DeviceView], hints: &Hints) -> Result<Assignment, PlanError> {
    let mut a = Assigner { graph, devices, hints, chosen: vec![None; graph.tensors().len()] };
    for (id, kind) in graph.leaves() {
        let device = hints.leaves.get(&id);
        if kind != LeafKind::Input && device.is_none() {
            return Err(PlanError::Unbound(graph.tensor(id).name().to_owned()));
        }
        if device.is_some_and(|&d| d >= devices.len()) {
            return Err(PlanError::NoDevice(device.copied().unwrap_or_default()));
        }
    }
    let nodes: Vec<TensorId> = graph.nodes().filter(|&id| graph.tensor(id).is_compute()).collect();
    for &id in &nodes {
        a.chosen[id.index()] = a.given(id)?;
    }
    let is_cpu = |d: usize| devices[d].kind == DeviceKind::Cpu;
    a.expand(nodes.iter(), &|d| !is_cpu(d));
    a.expand(nodes.iter().rev(), &|d| !is_cpu(d));
    a.expand(nodes.iter(), &|_| true);
    a.expand(nodes.iter().rev(), &|_| true);
    for &id in &nodes {
        if a.chosen[id.index()].is_none() {
            a.chosen[id.index()] = Some(a.by_inputs(id)?);
        }
    }
    Ok(Assignment(a.chosen))
}

struct Assigner<'a> {
    graph: &'a Graph,
    devices: &'a [DeviceView],
    hints: &'a Hints,
    chosen: Vec<Option<usize>>,
}

impl Assigner<'_> {
    fn supports(&self, device: usize, id: TensorId) -> bool {
        self.devices.get(device).is_some_and(|d| d.supports.contains(id))
    }

    /// Where the memory of a tensor is, as far as it is known.
    fn home(&self, id: TensorId) -> Option<usize> {
        let root = self.graph.tensor(id).root();
        self.hints.leaves.get(&root).copied().or(self.chosen[root.index()])
    }

    /// The device that memory or the user demand.
    fn given(&self, id: TensorId) -> Result<Option<usize>, PlanError> {
        let t = self.graph.tensor(id);
        if t.op().is_some_and(|op| op.writes().is_some()) {
            // Written memory is where it is; a write into a node's result goes where that node goes.
            let Some(device) = self.home(id) else { return Ok(None) };
            return match self.supports(device, id) {
                true => Ok(Some(device)),
                false => Err(PlanError::Unsupported {
                    node: self.graph.label(id),
                    detail: format!("it writes memory of {}, which does not support it", self.devices[device].id),
                }),
            };
        }
        if let Some(&device) = self.hints.pins.get(&id)
            && self.supports(device, id)
        {
            return Ok(Some(device));
        }
        let weights =
            t.sources().filter(|&s| self.graph.tensor(self.graph.tensor(s).root()).leaf() == Some(LeafKind::Weight));
        let largest = weights.max_by_key(|&s| self.graph.tensor(s).layout().span());
        let by_weight = largest.and_then(|s| self.home(s)).filter(|&d| self.supports(d, id));
        let preferred = self.hints.prefer.get(&id).copied().filter(|&d| self.supports(d, id));
        Ok(by_weight.or(preferred))
    }

    /// Gives nodes that have no device that of the node before them, as long as it supports them.
    fn expand<'n>(&mut self, nodes: impl Iterator<Item = &'n TensorId>, wanted: &dyn Fn(usize) -> bool) {
        let mut current = None;
        for &id in nodes {
            match self.chosen[id.index()] {
                Some(device) => current = wanted(device).then_some(device),
                None => {
                    let writes = self.graph.tensor(id).op().is_some_and(|op| op.writes().is_some());
                    if let Some(device) = current
                        && !writes
                        && self.supports(device, id)
                    {
                        self.chosen[id.index()] = Some(device);
                    }
                }
            }
        }
    }

    /// The device that has most of a node's inputs among those that support it; on a tie one that is not a CPU.
    fn by_inputs(&self, id: TensorId) -> Result<usize, PlanError> {
        let t = self.graph.tensor(id);
        if t.op().is_some_and(|op| op.writes().is_some())
            && let Some(device) = self.home(id)
            && self.supports(device, id)
        {
            return Ok(device);
        }
        let rank = |&d: &usize| {
            let inputs = t.sources().filter(|&s| self.home(s) == Some(d)).count();
            (inputs, self.devices[d].kind != DeviceKind::Cpu, std::cmp::Reverse(d))
        };
        let able = (0..self.devices.len()).filter(|&d| self.supports(d, id));
        able.max_by_key(rank).ok_or_else(|| PlanError::Unsupported {
            node: self.graph.label(id),
            detail: format!(
                "no device supports it ({}); add a CPU device",
                self.devices.iter().map(|d| d.id.as_str()).collect::<Vec<_>>().join(", ")
            ),
        })
    }
}
