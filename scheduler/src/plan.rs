//! A graph cut and placed, ready to be compiled. It prints itself.

use crate::assign::{Assignment, DeviceView, Hints, assign};
use crate::memory::{MemoryPlan, MemoryRules, TooLarge, plan_memory};
use crate::split::{Place, PlannedCopy, Splits, split};
use outboard_core::error::Bytes;
use outboard_core::op::Op;
use outboard_core::{Graph, GraphError, NodeSet, Tensor, WeightTail};
use std::fmt;
use std::sync::Arc;

/// Why a graph cannot be run on the devices.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A node has no device.
    #[error("{node}: {detail}")]
    Unsupported {
        /// The node.
        node: String,
        /// Why.
        detail: String,
    },
    /// A weight or state has no memory.
    #[error("tensor {0} is in no device's memory")]
    Unbound(String),
    /// A hint names a device that is not there.
    #[error("{tensor}: it should be on device {device}, but there are {devices} devices, counted from 0")]
    NoDevice {
        /// The tensor whose hint it is.
        tensor: String,
        /// The device's index.
        device: usize,
        /// How many devices there are.
        devices: usize,
    },
    /// The list of devices is empty.
    #[error("there are no devices to run on")]
    NoDevices,
    /// A tensor is larger than the largest allocation of its device.
    #[error("{tensor} is {} large, and {device} allocates {} at once at most", Bytes(*bytes), Bytes(*most))]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// The device's id.
        device: String,
        /// Its size.
        bytes: u64,
        /// The device's largest allocation.
        most: u64,
    },
    /// A split did not make a graph: a bug of the scheduler.
    #[error("a split is not a valid graph: {0}")]
    Graph(GraphError),
}

/// Everything that is known before memory is allocated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The full graph.
    pub graph: Arc<Graph>,
    /// Ids of the devices.
    pub devices: Vec<String>,
    /// Device of each node.
    pub assignment: Assignment,
    /// Runs of nodes and copies.
    pub splits: Splits,
    /// Where results lie.
    pub memory: MemoryPlan,
    /// What each device wants behind weights.
    pub weight_tails: Vec<WeightTail>,
    /// The nodes that each device supports.
    pub(crate) supports: Vec<NodeSet>,
}

impl Plan {
    /// Plans a graph; splits have at most `max_nodes` nodes (1 to observe every node).
    pub fn new(graph: Arc<Graph>, devices: &[DeviceView], hints: &Hints, max_nodes: usize) -> Result<Plan, PlanError> {
        let assignment = assign(&graph, devices, hints)?;
        let splits = split(&graph, &assignment, &hints.leaves, max_nodes)?;
        let rules: Vec<MemoryRules> = devices.iter().map(|d| d.memory).collect();
        let memory = plan_memory(&graph, &splits, &rules).map_err(|e| too_large(e, &graph, &splits, devices))?;
        let weight_tails = rules.iter().map(|rules| rules.weight_tail).collect();
        let supports = devices.iter().map(|d| d.supports.clone()).collect();
        let devices = devices.iter().map(|d| d.id.clone()).collect();
        Ok(Plan { graph, devices, assignment, splits, memory, weight_tails, supports })
    }

    /// Whether a graph has the same ops on the same tensors as this plan's, so that the two differ in sizes at most.
    pub(crate) fn is_built_like(&self, graph: &Graph) -> bool {
        let (own, others) = (self.graph.tensors(), graph.tensors());
        let is_alike = |(a, b): (&Tensor, &Tensor)| {
            a.op().map(Op::name) == b.op().map(Op::name) && a.srcs() == b.srcs() && a.dtype() == b.dtype()
        };
        own.len() == others.len() && own.iter().zip(others).all(is_alike)
    }

    /// Bytes that each device's intermediate results need.
    pub fn compute_bytes(&self) -> &[u64] {
        &self.memory.bytes
    }

    /// Bytes of weights of other devices that each device keeps copies of.
    pub fn weight_copy_bytes(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.devices.len()];
        self.splits.copies.iter().filter(|c| c.constant).for_each(|c| bytes[c.to] += self.constant_bytes(c));
        bytes
    }

    /// Bytes that the copy of a weight takes, with what its device wants behind it.
    pub fn constant_bytes(&self, copy: &PlannedCopy) -> u64 {
        let tail = self.weight_tails.get(copy.to).copied().unwrap_or_default();
        copy.bytes as u64 + tail.of(self.graph.tensor(copy.tensor).dtype())
    }
}

fn too_large(e: TooLarge, graph: &Graph, splits: &Splits, devices: &[DeviceView]) -> PlanError {
    let id = match e.place {
        Place::Bound(id) | Place::Input(id, _) | Place::Node(id) => id,
        Place::Copy(number) => splits.copies[number].tensor,
    };
    let device = &devices[e.device];
    let most = device.memory.max_alloc;
    PlanError::TooLarge { tensor: graph.label(id), device: device.id.clone(), bytes: e.bytes, most }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, how: &str, copy: &PlannedCopy| {
            let (what, bytes) = (self.graph.label(copy.tensor), Bytes(copy.bytes as u64));
            writeln!(f, "copy {how}{what}, {bytes}: {} -> {}", self.devices[copy.from], self.devices[copy.to])
        };
        self.splits.copies.iter().filter(|c| c.constant).try_for_each(|copy| line(f, "once ", copy))?;
        for (i, split) in self.splits.splits.iter().enumerate() {
            split.copies.iter().try_for_each(|&number| line(f, "", &self.splits.copies[number]))?;
            let name = |n: Option<&_>| n.map_or(String::new(), |&id| self.graph.label(id));
            let (first, last) = (name(split.nodes.first()), name(split.nodes.last()));
            let device = &self.devices[split.device];
            writeln!(f, "split {i} on {device}: {} nodes, {first} .. {last}", split.nodes.len())?;
        }
        for (device, &bytes) in self.devices.iter().zip(&self.memory.bytes) {
            writeln!(f, "{device}: {} for results", Bytes(bytes))?;
        }
        Ok(())
    }
}
