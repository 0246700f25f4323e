//! Compiles plans and drives the queues.
//!
//! A run enqueues everything it can at once: inputs, splits, and copies that devices do among themselves. Only a copy between
//! devices that cannot reach each other waits in this process for its bytes.

use crate::assign::{DeviceView, Hints};
use crate::plan::{Plan, PlanError};
use crate::split::Place;
use bytes::Bytes;
use outboard_core::{
    Buffer, Device, Error, Executable, Graph, NodeSet, Pending, Placement, Queue, Result, Slice, TensorId, Ticket,
    Usage,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a scheduler waits.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Longest wait for one copy or result.
    pub deadline: Duration,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        // A prefill of a large model on a slow CPU takes minutes; peers that are gone are found much sooner by their client.
        SchedulerOptions { deadline: Duration::from_secs(600) }
    }
}

/// A list of devices with a queue each.
pub struct Scheduler {
    devices: Vec<Arc<dyn Device>>,
    queues: Vec<Arc<dyn Queue>>,
    reaches: Vec<Vec<bool>>,
    compute: Vec<Option<Arc<dyn Buffer>>>,
    options: SchedulerOptions,
    cancel: Arc<AtomicBool>,
}

/// A graph that is compiled on its devices.
#[derive(Debug)]
pub struct Program {
    plan: Plan,
    steps: Vec<Step>,
    inputs: HashMap<TensorId, Vec<(usize, Slice)>>,
    outputs: HashMap<TensorId, (usize, Slice)>,
    /// Where the result of each node is, for observers.
    nodes: HashMap<TensorId, (usize, Slice)>,
}

#[derive(Debug)]
struct Step {
    device: usize,
    copies: Vec<(usize, Slice, Slice)>,
    executable: Arc<dyn Executable>,
    last_node: Option<TensorId>,
}

impl Program {
    /// The plan it was made from.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The full graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.plan.graph
    }
}

/// What an observer wants after a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// End the run with [`Error::Cancelled`].
    Cancel,
}

/// Looks at nodes while a graph runs.
pub trait Observer {
    /// Whether the value of this node is wanted. Asked before it is fetched from its device.
    fn wants(&mut self, graph: &Graph, node: TensorId) -> bool;
    /// The bytes of a node's result, in the node's layout.
    fn node(&mut self, graph: &Graph, node: TensorId, value: &[u8]) -> Verdict;
}

impl Scheduler {
    /// A scheduler over these devices, in this order.
    pub fn new(devices: Vec<Arc<dyn Device>>, options: SchedulerOptions) -> Result<Scheduler> {
        if devices.is_empty() {
            return Err(Error::Request("there are no devices to run on".into()));
        }
        let queues = devices.iter().map(|d| d.queue()).collect::<Result<Vec<_>>>()?;
        let reach = |a: &Arc<dyn Device>, b: &Arc<dyn Device>| {
            b.peer().is_some() && a.peer().is_some_and(|peer| peer.reaches(b.as_ref()))
        };
        let reaches = devices.iter().map(|a| devices.iter().map(|b| reach(a, b)).collect()).collect();
        let compute = devices.iter().map(|_| None).collect();
        Ok(Scheduler { devices, queues, reaches, compute, options, cancel: Arc::default() })
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The queue of a device, for uploads and reads beside the graph.
    pub fn queue(&self, device: usize) -> Option<&Arc<dyn Queue>> {
        self.queues.get(device)
    }

    /// Set to stop a run at its next step.
    pub fn cancel_token(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }

    /// Plans a graph on the devices; nothing is allocated.
    pub fn plan(&self, graph: Arc<Graph>, hints: &Hints) -> Result<Plan> {
        self.plan_with(graph, hints, usize::MAX)
    }

    /// Plans a graph so that every node can be observed: splits of one node. Slow, for finding faults.
    pub fn plan_observed(&self, graph: Arc<Graph>, hints: &Hints) -> Result<Plan> {
        self.plan_with(graph, hints, 1)
    }

    fn plan_with(&self, graph: Arc<Graph>, hints: &Hints, max_nodes: usize) -> Result<Plan> {
        let view = |d: &Arc<dyn Device>| -> Result<DeviceView> {
            let supports: NodeSet = d.supports(&graph)?;
            let info = d.info();
            Ok(DeviceView { id: info.id.clone(), kind: info.kind, supports, alignment: info.alignment })
        };
        let views = self.devices.iter().map(view).collect::<Result<Vec<_>>>()?;
        Plan::new(graph, &views, hints, max_nodes).map_err(|e: PlanError| Error::Request(e.to_string()))
    }

    /// Makes sure that each device has memory for the results of any of these plans.
    pub fn reserve(&mut self, plans: &[&Plan]) -> Result<()> {
        for d in 0..self.devices.len() {
            let needed = plans.iter().map(|p| p.compute_bytes()[d]).max().unwrap_or(0);
            let have = self.compute[d].as_ref().map_or(0, |b| b.size());
            if needed > have {
                // The old buffer goes first, unless a program still uses it.
                self.compute[d] = None;
                self.compute[d] = Some(self.devices[d].alloc(needed, Usage::Compute)?);
            }
        }
        Ok(())
    }

    /// Compiles a plan. `bound` has the slice of every weight and state of its graph, on the device that the hints named.
    pub fn prepare(&mut self, plan: Plan, bound: &HashMap<TensorId, Slice>) -> Result<Program> {
        self.reserve(&[&plan])?;
        let mut constants: HashMap<usize, Slice> = HashMap::new();
        for (number, copy) in plan.splits.copies.iter().enumerate().filter(|(_, c)| c.constant) {
            let memory = self.devices[copy.to].alloc((copy.bytes as u64).max(1), Usage::Weights)?;
            let to = Slice::new(memory, 0, copy.bytes as u64)?;
            let from =
                self.slice(&plan, copy.source, bound, &constants)?.part(copy.offset as u64, copy.bytes as u64)?;
            self.transfer(copy.from, copy.to, &from, &to)?;
            constants.insert(number, to);
        }
        let mut steps = Vec::with_capacity(plan.splits.splits.len());
        for split in &plan.splits.splits {
            let device = &self.devices[split.device];
            let mut slices = Vec::with_capacity(split.places.len());
            for place in &split.places {
                slices.push(match place {
                    Some(place) => Some(self.slice(&plan, *place, bound, &constants)?),
                    None => None,
                });
            }
            let placement = Placement::new(&split.graph, device.as_ref(), slices)?;
            let executable = device.compile(split.graph.clone(), placement)?;
            let mut copies = Vec::with_capacity(split.copies.len());
            for &number in &split.copies {
                let copy = &plan.splits.copies[number];
                let source = self.slice(&plan, copy.source, bound, &constants)?;
                let from = source.part(copy.offset as u64, copy.bytes as u64)?;
                copies.push((copy.from, from, self.slice(&plan, Place::Copy(number), bound, &constants)?));
            }
            steps.push(Step { device: split.device, copies, executable, last_node: split.nodes.last().copied() });
        }
        let mut inputs = HashMap::new();
        for (id, devices) in &plan.splits.inputs {
            let slices: Result<Vec<_>> =
                devices.iter().map(|&d| Ok((d, self.slice(&plan, Place::Input(*id, d), bound, &constants)?))).collect();
            inputs.insert(*id, slices?);
        }
        let (mut outputs, mut nodes) = (HashMap::new(), HashMap::new());
        for id in plan.graph.ids() {
            let t = plan.graph.tensor(id);
            let root = t.root();
            let (device, place) = match (plan.assignment.device(root), plan.graph.tensor(root).leaf()) {
                (Some(device), _) => (device, Place::Node(root)),
                (None, Some(outboard_core::LeafKind::Input)) => {
                    match inputs.get(&root).and_then(|d: &Vec<_>| d.first()) {
                        Some((device, _)) => (*device, Place::Input(root, *device)),
                        None => continue,
                    }
                }
                (None, _) => match bound.get(&root) {
                    Some(slice) => match self.devices.iter().position(|d| d.uid() == slice.buffer().device()) {
                        Some(device) => (device, Place::Bound(root)),
                        None => continue,
                    },
                    None => continue,
                },
            };
            let slice = self.slice(&plan, place, bound, &constants)?;
            let slice = slice.part(t.offset() as u64, t.layout().span() as u64)?;
            if t.is_output() {
                outputs.insert(id, (device, slice.clone()));
            }
            if t.is_compute() {
                nodes.insert(id, (device, slice));
            }
        }
        Ok(Program { plan, steps, inputs, outputs, nodes })
    }

    fn slice(
        &self,
        plan: &Plan,
        place: Place,
        bound: &HashMap<TensorId, Slice>,
        constants: &HashMap<usize, Slice>,
    ) -> Result<Slice> {
        let missing = || Error::Misuse(format!("{place:?} has no memory"));
        match place {
            Place::Bound(id) => bound.get(&id).cloned().ok_or_else(missing),
            Place::Copy(number) if constants.contains_key(&number) => {
                constants.get(&number).cloned().ok_or_else(missing)
            }
            _ => {
                let a = plan.memory.places.get(&place).ok_or_else(missing)?;
                match &self.compute[a.device] {
                    Some(buffer) => Slice::new(buffer.clone(), a.offset, a.size),
                    // A device whose results are all empty has no buffer.
                    None => Slice::new(self.devices[a.device].alloc(1, Usage::Compute)?, 0, 0),
                }
            }
        }
    }

    /// Enqueues a copy between two devices by the shortest way there is.
    fn transfer(&self, from: usize, to: usize, src: &Slice, dst: &Slice) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        let (a, b) = (&self.devices[from], &self.devices[to]);
        if self.reaches[from][to]
            && let (Some(source), Some(target)) = (a.peer(), b.peer())
        {
            let mut ticket = [0; 32];
            getrandom::fill(&mut ticket).map_err(|e| Error::Misuse(format!("no random numbers: {e}")))?;
            source.offer(self.queues[from].as_ref(), Ticket(ticket), src, b.as_ref())?;
            target.accept(self.queues[to].as_ref(), Ticket(ticket), dst)?;
            return Ok(());
        }
        let data = self.queues[from].read(src)?.wait(self.options.deadline)?;
        self.queues[to].write(dst, data)
    }

    /// Enqueues one run. Results are there when [`Scheduler::read`] gives them.
    pub fn run(&self, program: &Program, inputs: &[(TensorId, Bytes)]) -> Result<()> {
        self.write_inputs(program, inputs)?;
        for step in &program.steps {
            self.step(step)?;
        }
        Ok(())
    }

    /// Runs a program of [`Scheduler::plan_observed`] and shows every wanted node to `observer`.
    pub fn run_observed(
        &self,
        program: &Program,
        inputs: &[(TensorId, Bytes)],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.write_inputs(program, inputs)?;
        for step in &program.steps {
            self.step(step)?;
            let Some(node) = step.last_node else { continue };
            if !observer.wants(program.graph(), node) {
                continue;
            }
            let Some((device, slice)) = program.nodes.get(&node) else { continue };
            let value = self.queues[*device].read(slice)?.wait(self.options.deadline)?;
            if observer.node(program.graph(), node, &value) == Verdict::Cancel {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    fn write_inputs(&self, program: &Program, inputs: &[(TensorId, Bytes)]) -> Result<()> {
        for (id, slices) in &program.inputs {
            let Some((_, data)) = inputs.iter().find(|(input, _)| input == id) else {
                return Err(Error::Misuse(format!("input {} is missing", program.graph().tensor(*id).name())));
            };
            for (device, slice) in slices {
                self.queues[*device].write(slice, data.clone())?;
            }
        }
        Ok(())
    }

    fn step(&self, step: &Step) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        for (from, src, dst) in &step.copies {
            self.transfer(*from, step.device, src, dst)?;
        }
        self.queues[step.device].execute(&step.executable)
    }

    /// The bytes of an output of the last run, in its layout.
    pub fn read(&self, program: &Program, output: TensorId) -> Result<Pending<Bytes>> {
        let missing = || Error::Misuse(format!("{} is not an output", program.graph().label(output)));
        let (device, slice) = program.outputs.get(&output).ok_or_else(missing)?;
        self.queues[*device].read(slice)
    }

    /// Waits until everything enqueued on every device is done.
    pub fn finish(&self) -> Result<()> {
        self.queues.iter().try_for_each(|q| q.finish(self.options.deadline))
    }
}
