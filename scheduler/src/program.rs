//! Graphs that are compiled on their devices, with the memory that they use there.

use crate::memory::buffer_sizes;
use crate::plan::Plan;
use crate::run::Scheduler;
use crate::split::{Place, Split};
use outboard_core::{Error, Executable, Graph, Placement, Result, Slice, TensorId, Usage, at_once, try_at_once};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A graph that is compiled on its devices.
#[derive(Debug)]
pub struct Program {
    pub(crate) plan: Plan,
    pub(crate) steps: Vec<Step>,
    /// Copies of weights, done before the first run.
    pub(crate) constants: Vec<Transfer>,
    pub(crate) has_constants: AtomicBool,
    pub(crate) inputs: Vec<(TensorId, Vec<(usize, Slice)>)>,
    pub(crate) outputs: HashMap<TensorId, (usize, Slice)>,
    /// Where the result of each node is, for observers.
    pub(crate) nodes: HashMap<TensorId, (usize, Slice)>,
    /// How many steps are enqueued when a run begins ([`Splits::leading`](crate::split::Splits::leading)).
    pub(crate) leading: usize,
}

/// A split that is compiled, and the copies that it needs.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) device: usize,
    pub(crate) copies: Vec<Transfer>,
    pub(crate) executable: Arc<dyn Executable>,
    pub(crate) last_node: Option<TensorId>,
    /// Inputs that it reads, with their devices: those of its copies may be elsewhere.
    pub(crate) inputs: Vec<(TensorId, usize)>,
}

/// A copy between two devices.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) src: Slice,
    pub(crate) dst: Slice,
    /// Whether it is of what a leading step computes.
    pub(crate) early: bool,
}

impl Program {
    /// Copies weights between devices anew with the next run: it is not known whether the last copies have arrived.
    pub fn copy_weights_again(&self) {
        self.has_constants.store(self.constants.is_empty(), Ordering::Relaxed);
    }

    /// Whether a run may [begin](Scheduler::begin) while one of another program has begun and not ended: no device has anything to do
    /// for the beginning of this one that comes before what that one has not enqueued there. (Where the other one has begun as often as this one
    /// begins, its rest goes behind this one's beginning.)
    pub fn may_begin_before_rest_of(&self, other: &Program) -> bool {
        let (begun, rest) = other.steps.split_at(other.leading.min(other.steps.len()));
        let leading = self.steps.get(..self.leading).unwrap_or_default();
        let count = |steps: &[Step], device| steps.iter().filter(|step| step.device == device).count();
        let is_behind = |device| count(rest, device) == 0 || count(leading, device) <= count(begun, device);
        leading.iter().all(|step| is_behind(step.device))
    }

    /// Whether a beginning needs an input on a device.
    pub(crate) fn begins_with(&self, input: TensorId, device: usize) -> bool {
        self.steps.iter().take(self.leading).any(|step| step.inputs.contains(&(input, device)))
    }

    /// Whether the beginning is all that needs an input on a device.
    pub(crate) fn is_done_with(&self, input: TensorId, device: usize) -> bool {
        let is_needed = self.steps.iter().skip(self.leading).any(|step| step.inputs.contains(&(input, device)));
        let is_read = || self.graph().outputs().any(|id| self.graph().tensor(id).root() == input);
        self.begins_with(input, device) && !is_needed && !is_read()
    }

    /// The plan it was made from.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The full graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.plan.graph
    }
}

impl Scheduler {
    /// Makes sure that each device has memory for the results of any of these plans.
    pub fn reserve(&mut self, plans: &[&Plan]) -> Result<()> {
        let mut larger = Vec::new();
        for (d, compute) in self.compute.iter_mut().enumerate() {
            let needed = plans.iter().filter_map(|p| p.compute_bytes().get(d)).copied().max().unwrap_or(0);
            if needed > compute.iter().map(|b| b.size()).sum() {
                // The old buffers go first, unless a program still uses them: then it may go on.
                let is_used = compute.iter().any(|buffer| Arc::strong_count(buffer) > 1);
                let mut old = std::mem::take(compute);
                if !is_used {
                    old.clear();
                }
                let most = plans.iter().filter_map(|p| p.memory.buffers.get(d)).copied().min().unwrap_or(u64::MAX);
                larger.push((d, buffer_sizes(needed, most), old));
            }
        }
        let buffers = at_once(&larger, |(d, sizes, _)| {
            sizes.iter().map(|&size| self.devices[*d].alloc(size, Usage::Compute)).collect::<Result<Vec<_>>>()
        });
        let mut result = Ok(());
        for ((d, _, old), buffers) in larger.into_iter().zip(buffers) {
            // What others have got is kept, whatever one says.
            self.compute[d] = match buffers {
                Ok(buffers) => buffers,
                Err(e) => {
                    result = result.and(Err(e));
                    old
                }
            };
        }
        result
    }

    /// Compiles a plan. `bound` has the slice of every weight and state of its graph, on the device that the hints named; their
    /// contents may follow until the first run. Results of all programs share memory: those of one are there until another one
    /// runs.
    pub fn prepare(&mut self, plan: Plan, bound: &HashMap<TensorId, Slice>) -> Result<Program> {
        if !self.devices.iter().map(|d| &d.info().id).eq(&plan.devices) {
            return Err(Error::Misuse(format!("a plan for other devices: {}", plan.devices.join(", "))));
        }
        self.check_bound(&plan, bound)?;
        self.reserve(&[&plan])?;
        let mut memory = Memory::new(self, &plan, bound);
        let constants = memory.copy_weights()?;
        let steps = try_at_once(&plan.splits.splits, |split| memory.step(split))?;
        let inputs = memory.inputs()?;
        let Results { outputs, nodes } = memory.results()?;
        let (leading, has_constants) = (memory.leading, AtomicBool::new(constants.is_empty()));
        Ok(Program { plan, steps, constants, has_constants, inputs, outputs, nodes, leading })
    }

    /// Every weight and state has memory of its size on its device.
    fn check_bound(&self, plan: &Plan, bound: &HashMap<TensorId, Slice>) -> Result<()> {
        for (id, _) in plan.graph.leaves() {
            let Some((device, Place::Bound(_))) = plan.splits.homes[id.index()] else { continue };
            let (name, size) = (plan.graph.label(id), plan.graph.tensor(id).layout().span() as u64);
            let wrong = |why: String| Err(Error::Misuse(format!("{name} on {}: {why}", plan.devices[device])));
            match bound.get(&id) {
                None if size == 0 => {}
                None => return wrong("it was given no memory".into()),
                Some(slice) if slice.len() < size => {
                    return wrong(format!("it was given {} bytes of memory, {size} are needed", slice.len()));
                }
                Some(slice) if slice.buffer().device() != self.devices[device].uid() => {
                    return wrong("it was given memory of another device".into());
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The memory of a program while it is made.
struct Memory<'a> {
    scheduler: &'a Scheduler,
    plan: &'a Plan,
    bound: &'a HashMap<TensorId, Slice>,
    /// Targets of copies of weights, by their number.
    constants: HashMap<usize, Slice>,
    leading: usize,
}

/// A device's memory.
type OnDevice = (usize, Slice);

/// Where results of a program lie.
struct Results {
    outputs: HashMap<TensorId, OnDevice>,
    nodes: HashMap<TensorId, OnDevice>,
}

impl<'a> Memory<'a> {
    fn new(scheduler: &'a Scheduler, plan: &'a Plan, bound: &'a HashMap<TensorId, Slice>) -> Memory<'a> {
        Memory { scheduler, plan, bound, constants: HashMap::new(), leading: plan.splits.leading(&plan.graph) }
    }

    /// Allocates memory for copies of weights of other devices, and gives the transfers that fill it.
    fn copy_weights(&mut self) -> Result<Vec<Transfer>> {
        let copies: Vec<_> = self.plan.splits.copies.iter().enumerate().filter(|(_, copy)| copy.constant).collect();
        let devices = &self.scheduler.devices;
        let buffers = try_at_once(&copies, |(_, copy)| {
            devices[copy.to].alloc(self.plan.constant_bytes(copy).max(1), Usage::Weights)
        })?;
        for ((number, copy), buffer) in copies.iter().zip(buffers) {
            self.constants.insert(*number, Slice::new(buffer, 0, copy.bytes as u64)?);
        }
        copies.into_iter().map(|(number, _)| self.transfer(number)).collect()
    }

    /// Compiles a split on its device.
    fn step(&self, split: &Split) -> Result<Step> {
        let device = &self.scheduler.devices[split.device];
        let slices = split.places.iter().map(|place| place.map(|place| self.slice(place)).transpose());
        let placement = Placement::new(&split.graph, device.as_ref(), slices.collect::<Result<_>>()?)?;
        let executable = device.compile(split.graph.clone(), placement)?;
        let copies = split.copies.iter().map(|&number| self.transfer(number)).collect::<Result<_>>()?;
        let sources = split.copies.iter().map(|&number| &self.plan.splits.copies[number].source);
        let input = |place: &Place| match *place {
            Place::Input(id, device) => Some((id, device)),
            _ => None,
        };
        let inputs = split.places.iter().flatten().chain(sources).filter_map(input).collect();
        Ok(Step { device: split.device, copies, executable, last_node: split.nodes.last().copied(), inputs })
    }

    /// Where each input is written to.
    fn inputs(&self) -> Result<Vec<(TensorId, Vec<OnDevice>)>> {
        let slices = |id: TensorId, devices: &[usize]| -> Result<Vec<OnDevice>> {
            devices.iter().map(|&d| Ok((d, self.slice(Place::Input(id, d))?))).collect()
        };
        self.plan.splits.inputs.iter().map(|(id, devices)| Ok((*id, slices(*id, devices)?))).collect()
    }

    fn results(&self) -> Result<Results> {
        let mut results = Results { outputs: HashMap::new(), nodes: HashMap::new() };
        let graph = &self.plan.graph;
        for id in graph.ids().filter(|&id| graph.tensor(id).is_output() || graph.tensor(id).is_compute()) {
            let t = graph.tensor(id);
            let Some((device, place)) = self.plan.splits.homes[t.root().index()] else { continue };
            let slice = self.slice(place)?.part(t.offset() as u64, t.layout().span() as u64)?;
            if t.is_output() {
                results.outputs.insert(id, (device, slice.clone()));
            }
            if t.is_compute() {
                results.nodes.insert(id, (device, slice));
            }
        }
        Ok(results)
    }

    fn slice(&self, place: Place) -> Result<Slice> {
        let missing = || Error::Misuse(format!("{place:?} has no memory"));
        if let Place::Bound(id) = place {
            return match self.bound.get(&id) {
                Some(slice) => Ok(slice.clone()),
                None => self.empty(self.plan.splits.homes[id.index()].ok_or_else(missing)?.0),
            };
        }
        if let Place::Copy(number) = place
            && let Some(slice) = self.constants.get(&number)
        {
            return Ok(slice.clone());
        }
        let a = self.plan.memory.places.get(&place).ok_or_else(missing)?;
        if a.size == 0 {
            return self.empty(a.device);
        }
        let (number, offset) = self.plan.memory.in_buffer(a);
        let buffer = self.scheduler.compute[a.device].get(number).ok_or_else(missing)?;
        Slice::new(buffer.clone(), offset, a.size)
    }

    /// A slice for an empty tensor of a device that has no memory for this program.
    fn empty(&self, device: usize) -> Result<Slice> {
        Slice::new(self.scheduler.devices[device].alloc(1, Usage::Compute)?, 0, 0)
    }

    fn transfer(&self, number: usize) -> Result<Transfer> {
        let copy = &self.plan.splits.copies[number];
        let src = self.slice(copy.source)?.part(copy.offset as u64, copy.bytes as u64)?;
        let (dst, early) = (self.slice(Place::Copy(number))?, self.plan.splits.is_of(self.leading, number));
        Ok(Transfer { from: copy.from, to: copy.to, src, dst, early })
    }
}
