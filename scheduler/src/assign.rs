//! Which node runs on which device.
//!
//! In the manner of ggml's scheduler: nodes go where the memory is that they write or whose weights they read; what is left is
//! taken by neighbours, first on processors with memory of their own, so that runs of nodes stay together; the rest goes
//! where most of its inputs are. A CPU is the last resort for what others do not support.
//!
//! Memory is written where it is, never through a copy: a result and the nodes that write into it are one unit, and so are
//! the nodes that write into one input.

use crate::memory::MemoryRules;
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
    /// How its memory is allocated.
    pub memory: MemoryRules,
}

/// What is given before nodes are assigned; devices by their index.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Where weights and state lie. Every one of them must be here. An input may be, if the graph writes it.
    pub leaves: HashMap<TensorId, usize>,
    /// Where nodes have to run. Pins of leaves and views mean nothing: they are where they are used.
    pub pins: HashMap<TensorId, usize>,
    /// Where nodes should run that no pin, weight or written memory ties to a device.
    pub prefer: HashMap<TensorId, usize>,
}

/// A device for each node that computes, and for each input that nodes write; `None` for other leaves and for views, which are
/// where they are used.
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
    check_hints(graph, devices, hints)?;
    let nodes: Vec<TensorId> = graph.nodes().filter(|&id| graph.tensor(id).is_compute()).collect();
    let mut units: HashMap<TensorId, Vec<TensorId>> = HashMap::new();
    for &id in &nodes {
        let root = graph.tensor(id).root();
        if graph.tensor(root).leaf() != Some(LeafKind::State) {
            units.entry(root).or_default().push(id);
        }
    }
    let mut a = Assigner { graph, devices, hints, units, chosen: vec![None; graph.tensors().len()] };
    for &id in &nodes {
        if a.device(id).is_none()
            && let Some(device) = a.given(id)?
        {
            a.choose(id, device);
        }
    }
    let is_cpu = |d: usize| devices[d].kind == DeviceKind::Cpu;
    a.expand(nodes.iter(), &|d| !is_cpu(d));
    a.expand(nodes.iter().rev(), &|d| !is_cpu(d));
    a.expand(nodes.iter(), &|_| true);
    a.expand(nodes.iter().rev(), &|_| true);
    for &id in &nodes {
        if a.device(id).is_none() {
            let device = a.by_inputs(id)?;
            a.choose(id, device);
        }
    }
    Ok(Assignment(a.chosen))
}

fn check_hints(graph: &Graph, devices: &[DeviceView], hints: &Hints) -> Result<(), PlanError> {
    if devices.is_empty() {
        return Err(PlanError::NoDevices);
    }
    for (id, kind) in graph.leaves() {
        if kind != LeafKind::Input && !hints.leaves.contains_key(&id) {
            return Err(PlanError::Unbound(graph.tensor(id).name().to_owned()));
        }
    }
    let all = [&hints.leaves, &hints.pins, &hints.prefer];
    match all.into_iter().flatten().filter(|(_, device)| **device >= devices.len()).min() {
        Some((&id, &device)) => Err(PlanError::NoDevice {
            tensor: graph.get(id).map_or_else(|| format!("{id:?}"), |_| graph.label(id)),
            device,
            devices: devices.len(),
        }),
        None => Ok(()),
    }
}

struct Assigner<'a> {
    graph: &'a Graph,
    devices: &'a [DeviceView],
    hints: &'a Hints,
    /// Nodes that must be on one device, by the root of all of them, which is one of them unless it is an input.
    units: HashMap<TensorId, Vec<TensorId>>,
    chosen: Vec<Option<usize>>,
}

impl Assigner<'_> {
    fn device(&self, id: TensorId) -> Option<usize> {
        self.chosen[id.index()]
    }

    /// The nodes that go where `id` goes, itself included.
    fn unit<'s>(&'s self, id: &'s TensorId) -> &'s [TensorId] {
        self.units.get(&self.graph.tensor(*id).root()).map_or(std::slice::from_ref(id), Vec::as_slice)
    }

    fn supports(&self, device: usize, id: TensorId) -> bool {
        self.unsupported(device, id).is_none()
    }

    /// A node of the unit of `id` that the device cannot compute.
    fn unsupported(&self, device: usize, id: TensorId) -> Option<TensorId> {
        self.unit(&id).iter().copied().find(|&id| !self.devices[device].supports.contains(id))
    }

    fn choose(&mut self, id: TensorId, device: usize) {
        for id in self.unit(&id).to_vec() {
            self.chosen[id.index()] = Some(device);
        }
        let root = self.graph.tensor(id).root();
        if self.graph.tensor(root).leaf() == Some(LeafKind::Input) {
            self.chosen[root.index()] = Some(device);
        }
    }

    /// Where the memory of a tensor is, as far as it is known.
    fn home(&self, id: TensorId) -> Option<usize> {
        let root = self.graph.tensor(id).root();
        self.hints.leaves.get(&root).copied().or(self.device(root))
    }

    /// The device that memory or the user demand.
    fn given(&self, id: TensorId) -> Result<Option<usize>, PlanError> {
        let root = self.graph.tensor(id).root();
        let written = self.graph.tensor(root).leaf().and_then(|_| self.hints.leaves.get(&root).copied());
        let mut demand = written.map(|device| (device, format!("it writes {}", self.graph.label(root))));
        for &node in self.unit(&id) {
            let Some(&device) = self.hints.pins.get(&node) else { continue };
            match &demand {
                Some((other, why)) if *other != device => {
                    let (here, there) = (&self.devices[device].id, &self.devices[*other].id);
                    let detail = format!("it is pinned to {here}, but {why}, which is on {there}");
                    return Err(PlanError::Unsupported { node: self.graph.label(node), detail });
                }
                _ => demand = Some((device, format!("it shares memory with {}", self.graph.label(node)))),
            }
        }
        if let Some((device, _)) = demand {
            let Some(node) = self.unsupported(device, id) else { return Ok(Some(device)) };
            let here = &self.devices[device].id;
            let why = if written.is_some() { "writes memory of" } else { "is pinned to" };
            let detail = format!("it {why} {here}, which does not support it");
            return Err(PlanError::Unsupported { node: self.graph.label(node), detail });
        }
        let t = self.graph.tensor(id);
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
            match self.device(id) {
                Some(device) => current = wanted(device).then_some(device),
                None => {
                    if let Some(device) = current
                        && self.supports(device, id)
                    {
                        self.choose(id, device);
                    }
                }
            }
        }
    }

    /// The device that has most of a node's inputs among those that support it; on a tie one that is not a CPU.
    fn by_inputs(&self, id: TensorId) -> Result<usize, PlanError> {
        let t = self.graph.tensor(id);
        let rank = |&d: &usize| {
            let inputs = t.sources().filter(|&s| self.home(s) == Some(d)).count();
            (inputs, self.devices[d].kind != DeviceKind::Cpu, std::cmp::Reverse(d))
        };
        let able = (0..self.devices.len()).filter(|&d| self.supports(d, id));
        able.max_by_key(rank).ok_or_else(|| {
            let names = self.devices.iter().map(|d| d.id.as_str()).collect::<Vec<_>>().join(", ");
            let unit = self.unit(&id);
            let nowhere = |node: &&TensorId| !self.devices.iter().any(|d| d.supports.contains(**node));
            match unit.iter().find(nowhere) {
                Some(&node) => PlanError::Unsupported {
                    node: self.graph.label(node),
                    detail: format!("no device supports it ({names}); add a CPU device"),
                },
                None => {
                    let others: Vec<_> = unit.iter().filter(|&&n| n != id).map(|&n| self.graph.label(n)).collect();
                    PlanError::Unsupported {
                        node: self.graph.label(id),
                        detail: format!(
                            "no device supports both it and {}, which use the same memory ({names}); add a CPU device",
                            others.join(", ")
                        ),
                    }
                }
            }
        })
    }
}
