//! Compiles plans and drives the queues.
//!
//! A run enqueues everything it can at once: inputs, splits, and copies that devices do among themselves. Only a copy between
//! devices that cannot reach each other waits in this process for its bytes.
//!
//! No events are needed beside the transfers: all memory of a device is touched by its one queue only, in the order of the
//! plan, and a transfer makes the queue that takes the bytes wait for the one that has them. So the next run may be enqueued
//! while this one is under way: what it overwrites has been read by then.

use crate::assign::{DeviceView, Hints};
use crate::memory::{MemoryRules, buffer_sizes};
use crate::plan::{Plan, PlanError};
use crate::split::{Place, Split};
use bytes::Bytes;
use outboard_core::{
    Buffer, Device, Error, Executable, Graph, NodeSet, Patience, Pending, Placement, Queue, Result, Slice, TensorId,
    Ticket, Usage, at_once, progress, try_at_once,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Transfers among devices, and their bytes, that are enqueued before everything enqueued is waited for. Bytes that are handed
/// over before the other side takes them wait in a server's memory, which has limits of its own above these.
const MAX_TRANSFERS_AHEAD: usize = 256;
const MAX_BYTES_AHEAD: u64 = 256 << 20;

/// How soon a wait in this process notices that it was cancelled.
const TICK: Duration = Duration::from_millis(100);

/// Is told of waits for a device, by its id, and how long they are by now: several times a second.
pub type OnWait = dyn Fn(&str, Duration) + Send + Sync;

/// How a scheduler waits.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Longest wait for a copy or a result while no device gets any further.
    pub deadline: Duration,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        // A node of a large graph on a slow device may take minutes. Servers that are gone, or get no further, are found out much sooner by
        // their client.
        SchedulerOptions { deadline: Duration::from_secs(600) }
    }
}

/// A list of devices with a queue each.
pub struct Scheduler {
    devices: Vec<Arc<dyn Device>>,
    queues: Vec<Arc<dyn Queue>>,
    reaches: Vec<Vec<bool>>,
    /// Memory for results, by device; in several buffers where the largest one of the device is too small.
    compute: Vec<Vec<Arc<dyn Buffer>>>,
    options: SchedulerOptions,
    cancel: Arc<AtomicBool>,
    on_wait: Option<Arc<OnWait>>,
    /// Held while a run is enqueued: commands of two runs must not mix.
    ahead: Mutex<Ahead>,
}

/// What devices hand each other and nobody has seen done.
#[derive(Debug, Default)]
struct Ahead {
    transfers: usize,
    bytes: u64,
    /// The last run, and what each one that is under way hands over.
    run: u64,
    runs: VecDeque<(u64, usize, u64)>,
}

impl Ahead {
    fn begin_run(&mut self) {
        self.run += 1;
        // Runs that hand nothing over need no place in the books.
        if self.runs.back().is_some_and(|r| r.1 == 0) {
            self.runs.pop_back();
        }
        self.runs.push_back((self.run, 0, 0));
    }

    fn add(&mut self, bytes: u64) {
        self.transfers += 1;
        self.bytes += bytes;
        if let Some(run) = self.runs.back_mut() {
            run.1 += 1;
            run.2 += bytes;
        }
    }

    /// Everything before `run` is done.
    fn settle(&mut self, run: u64) {
        while let Some(&(_, transfers, bytes)) = self.runs.front().filter(|r| r.0 < run) {
            self.transfers -= transfers;
            self.bytes -= bytes;
            self.runs.pop_front();
        }
    }

    /// Everything is done.
    fn settle_all(&mut self) {
        *self = Ahead { run: self.run, ..Ahead::default() };
    }
}

/// Takes devices up again, all at once, when all their queues were dropped; gives for each that was lost its error.
pub fn resume_all(devices: &[Arc<dyn Device>]) -> Vec<Option<Error>> {
    at_once(devices, |d| d.resume().err())
}

/// A graph that is compiled on its devices.
#[derive(Debug)]
pub struct Program {
    plan: Plan,
    steps: Vec<Step>,
    /// Copies of weights, done before the first run.
    constants: Vec<Transfer>,
    has_constants: AtomicBool,
    inputs: Vec<(TensorId, Vec<(usize, Slice)>)>,
    outputs: HashMap<TensorId, (usize, Slice)>,
    /// Where the result of each node is, for observers.
    nodes: HashMap<TensorId, (usize, Slice)>,
    /// How many steps are enqueued when a run begins ([`Splits::leading`](crate::split::Splits::leading)).
    leading: usize,
}

#[derive(Debug)]
struct Step {
    device: usize,
    copies: Vec<Transfer>,
    executable: Arc<dyn Executable>,
    last_node: Option<TensorId>,
}

#[derive(Debug)]
struct Transfer {
    from: usize,
    to: usize,
    src: Slice,
    dst: Slice,
    /// Whether it is of what a leading step computes.
    early: bool,
}

/// A transfer whose bytes are on their way, and not yet taken.
enum InTransit {
    /// There are none.
    Nothing,
    /// They come from the other device itself.
    Offered(Ticket),
    /// They come through this process.
    Read(Pending<Bytes>),
}

/// A run that has begun ([`Scheduler::begin`]) and is to be ended: if it is dropped, what was handed over stays where it is until the queues
/// are closed.
#[must_use]
pub struct Begun {
    run: u64,
    graph: Arc<Graph>,
    inputs: Vec<(TensorId, Bytes)>,
    /// What the [early](Transfer::early) transfers have handed over, in their order.
    handed: VecDeque<InTransit>,
}

impl Program {
    /// Copies weights between devices anew with the next run: it is not known whether the last copies have arrived.
    pub fn copy_weights_again(&self) {
        self.has_constants.store(self.constants.is_empty(), Ordering::Relaxed);
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
        let compute = vec![Vec::new(); devices.len()];
        let mut scheduler = Scheduler {
            devices,
            queues: Vec::new(),
            reaches: Vec::new(),
            compute,
            options,
            cancel: Arc::default(),
            on_wait: None,
            ahead: Mutex::default(),
        };
        scheduler.open()?;
        Ok(scheduler)
    }

    /// Opens the queues, and asks which devices reach each other.
    fn open(&mut self) -> Result<()> {
        let devices = &self.devices;
        self.queues = devices.iter().map(|d| d.queue()).collect::<Result<Vec<_>>>()?;
        let reach = |a: &Arc<dyn Device>, b: &Arc<dyn Device>| {
            b.peer().is_some() && a.peer().is_some_and(|peer| peer.reaches(b.as_ref()))
        };
        self.reaches = devices.iter().map(|a| devices.iter().map(|b| reach(a, b)).collect()).collect();
        Ok(())
    }

    /// Takes the place of another scheduler: its cancel token stops this one, and who was told of its waits is told of this one's.
    pub fn replacing(mut self, other: &Scheduler) -> Scheduler {
        (self.cancel, self.on_wait) = (other.cancel.clone(), other.on_wait.clone());
        self
    }

    /// Has `on_wait` told of waits in this process for bytes that go from one device to another.
    pub fn on_wait(&mut self, on_wait: Arc<OnWait>) {
        self.on_wait = Some(on_wait);
    }

    /// After a device has failed with [`Error::Peer`]: gives up everything that was enqueued and takes the devices up again, all at
    /// once. What lies on them stays. Gives for each device that was lost its error; if there is one, nothing runs on this scheduler
    /// any more, and its memory for results is freed.
    pub fn resume(&mut self) -> Result<Vec<Option<Error>>> {
        // Local queues end what they are at; remote ones are waited for by their servers.
        self.queues.clear();
        *self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner) = Ahead::default();
        let lost = resume_all(&self.devices);
        if lost.iter().all(Option::is_none) {
            self.open()?
        } else {
            self.compute.fill(Vec::new())
        }
        Ok(lost)
    }

    /// How far each device is with what it was given until now, in the order of the devices: a device that waits for another one
    /// is as far as that.
    pub fn probe(&self) -> Vec<(String, Pending<()>)> {
        let queues = self.devices.iter().zip(&self.queues);
        queues.filter_map(|(device, queue)| Some((device.info().id.clone(), queue.marker().ok()?))).collect()
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The queue of a device, for uploads and reads beside the graph.
    pub fn queue(&self, device: usize) -> Option<&Arc<dyn Queue>> {
        self.queues.get(device)
    }

    /// Set to stop a run at its next step; runs fail with [`Error::Cancelled`] until it is cleared.
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
            let memory = MemoryRules { alignment: info.alignment, max_alloc: info.max_alloc };
            Ok(DeviceView { id: info.id.clone(), kind: info.kind, supports, memory })
        };
        let views = try_at_once(&self.devices, view)?;
        Plan::new(graph, &views, hints, max_nodes).map_err(|e: PlanError| Error::Request(e.to_string()))
    }

    /// Makes sure that each device has memory for the results of any of these plans.
    pub fn reserve(&mut self, plans: &[&Plan]) -> Result<()> {
        let mut larger = Vec::new();
        for (d, compute) in self.compute.iter_mut().enumerate() {
            let needed = plans.iter().filter_map(|p| p.compute_bytes().get(d)).copied().max().unwrap_or(0);
            if needed > compute.iter().map(|b| b.size()).sum() {
                // The old buffers go first, unless a program still uses them.
                compute.clear();
                let most = plans.iter().filter_map(|p| p.memory.buffers.get(d)).copied().min().unwrap_or(u64::MAX);
                larger.push((d, buffer_sizes(needed, most)));
            }
        }
        let buffers = at_once(&larger, |(d, sizes)| {
            sizes.iter().map(|&size| self.devices[*d].alloc(size, Usage::Compute)).collect::<Result<Vec<_>>>()
        });
        let mut result = Ok(());
        for ((d, _), buffers) in larger.into_iter().zip(buffers) {
            // What others have got is kept, whatever one says.
            match buffers {
                Ok(buffers) => self.compute[d] = buffers,
                Err(e) => result = result.and(Err(e)),
            }
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
        let leading = plan.splits.leading(&plan.graph);
        let mut memory = Memory { scheduler: self, plan: &plan, bound, constants: HashMap::new(), leading };
        let mut constants = Vec::new();
        let copies: Vec<_> = plan.splits.copies.iter().enumerate().filter(|(_, c)| c.constant).collect();
        let buffers =
            try_at_once(&copies, |(_, copy)| self.devices[copy.to].alloc((copy.bytes as u64).max(1), Usage::Weights))?;
        for ((number, copy), buffer) in copies.into_iter().zip(buffers) {
            memory.constants.insert(number, Slice::new(buffer, 0, copy.bytes as u64)?);
            constants.push(memory.transfer(number)?);
        }
        let step = |split: &Split| -> Result<Step> {
            let device = &self.devices[split.device];
            let slices = split.places.iter().map(|place| place.map(|place| memory.slice(place)).transpose());
            let placement = Placement::new(&split.graph, device.as_ref(), slices.collect::<Result<_>>()?)?;
            let executable = device.compile(split.graph.clone(), placement)?;
            let copies = split.copies.iter().map(|&number| memory.transfer(number)).collect::<Result<_>>()?;
            Ok(Step { device: split.device, copies, executable, last_node: split.nodes.last().copied() })
        };
        let steps = try_at_once(&plan.splits.splits, step)?;
        let mut inputs = Vec::with_capacity(plan.splits.inputs.len());
        for (id, devices) in &plan.splits.inputs {
            let slices = devices.iter().map(|&d| Ok((d, memory.slice(Place::Input(*id, d))?)));
            inputs.push((*id, slices.collect::<Result<_>>()?));
        }
        let (mut outputs, mut nodes) = (HashMap::new(), HashMap::new());
        for id in plan.graph.ids() {
            let t = plan.graph.tensor(id);
            let Some((device, place)) = plan.splits.homes[t.root().index()] else { continue };
            if !t.is_output() && !t.is_compute() {
                continue;
            }
            let slice = memory.slice(place)?.part(t.offset() as u64, t.layout().span() as u64)?;
            if t.is_output() {
                outputs.insert(id, (device, slice.clone()));
            }
            if t.is_compute() {
                nodes.insert(id, (device, slice));
            }
        }
        let has_constants = AtomicBool::new(constants.is_empty());
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

    /// Enqueues a copy between two devices by the shortest way there is.
    fn transfer(&self, ahead: &mut Ahead, transfer: &Transfer) -> Result<()> {
        let handed = self.hand_over(ahead, transfer)?;
        self.take(transfer, handed)
    }

    /// Has a device send what another one will [take](Scheduler::take).
    fn hand_over(&self, ahead: &mut Ahead, transfer: &Transfer) -> Result<InTransit> {
        let &Transfer { from, to, ref src, .. } = transfer;
        if src.is_empty() {
            return Ok(InTransit::Nothing);
        }
        if self.reaches[from][to]
            && let Some(source) = self.devices[from].peer()
        {
            if ahead.transfers >= MAX_TRANSFERS_AHEAD || ahead.bytes >= MAX_BYTES_AHEAD {
                self.finish()?;
                ahead.settle_all();
            }
            ahead.add(src.len());
            let mut ticket = [0; 32];
            getrandom::fill(&mut ticket).map_err(|e| Error::Misuse(format!("no random numbers: {e}")))?;
            source.offer(self.on(from)?, Ticket(ticket), src, self.devices[to].as_ref())?;
            return Ok(InTransit::Offered(Ticket(ticket)));
        }
        Ok(InTransit::Read(self.on(from)?.read(src)?))
    }

    /// The other side of [`Scheduler::hand_over`], enqueued behind it: a queue that accepts what is never offered would wait for nothing.
    fn take(&self, transfer: &Transfer, handed: InTransit) -> Result<()> {
        let &Transfer { from, to, ref dst, .. } = transfer;
        match handed {
            InTransit::Nothing => Ok(()),
            InTransit::Offered(ticket) => match self.devices[to].peer() {
                Some(target) => target.accept(self.on(to)?, ticket, dst).map(drop),
                None => Err(Error::Misuse(format!("{} takes nothing from others", self.devices[to].info().id))),
            },
            InTransit::Read(bytes) => {
                let data = self.relayed(from, bytes)?;
                self.on(to)?.write(dst, data)
            }
        }
    }

    /// Waits for bytes that pass through this process, unless the run is cancelled.
    fn relayed(&self, from: usize, mut pending: Pending<Bytes>) -> Result<Bytes> {
        let start = Instant::now();
        let mut patience = self.patience();
        loop {
            if let Some(result) = pending.wait_more(TICK) {
                return result;
            }
            let (after, id) = (start.elapsed(), &self.devices[from].info().id);
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if let Some(after) = patience.over(Instant::now(), self.progress()) {
                return Err(Error::Timeout { what: format!("{id} to get any further"), after });
            }
            if let Some(on_wait) = &self.on_wait {
                on_wait(id, after);
            }
        }
    }

    /// Enqueues one run and gives its number. Results are there when [`Scheduler::read`] gives them. Runs of several threads are
    /// enqueued one after another.
    pub fn run(&self, program: &Program, inputs: &[(TensorId, Bytes)]) -> Result<u64> {
        let mut ahead = self.start(program, inputs)?;
        self.write(program, inputs, |_| true)?;
        program.steps.iter().try_for_each(|step| self.step(&mut ahead, step))?;
        Ok(ahead.run)
    }

    /// Enqueues the beginning of a run: [leading](crate::split::Splits::leading) splits, if there are any, and what they hand to others.
    /// Further runs may begin before this one is [ended](Scheduler::end), which is to be done in their order. State that the beginning
    /// writes is seen by the rest as the last run that has begun left it.
    pub fn begin(&self, program: &Program, inputs: Vec<(TensorId, Bytes)>) -> Result<Begun> {
        let mut ahead = self.start(program, &inputs)?;
        let mut begun = Begun { run: ahead.run, graph: program.graph().clone(), inputs, handed: VecDeque::new() };
        let (leading, rest) = program.steps.split_at(program.leading);
        let uses = |step: &Step, device| step.device == device || step.copies.iter().any(|copy| copy.from == device);
        self.write(program, &begun.inputs, |device| leading.iter().any(|step| uses(step, device)))?;
        leading.iter().try_for_each(|step| self.step(&mut ahead, step))?;
        for copy in rest.iter().flat_map(|step| &step.copies).filter(|copy| copy.early) {
            begun.handed.push_back(self.hand_over(&mut ahead, copy)?);
        }
        Ok(begun)
    }

    /// Enqueues the rest of a run and gives its number, as [`Scheduler::run`] does. If it was cancelled, what was handed over is taken all
    /// the same, so that nothing of it stays.
    pub fn end(&self, program: &Program, begun: Begun) -> Result<u64> {
        let Begun { run, graph, inputs, mut handed } = begun;
        if !Arc::ptr_eq(&graph, program.graph()) {
            return Err(Error::Misuse("the rest of a run is to be that of another program".into()));
        }
        let mut ahead = self.lock();
        // The beginnings of other runs have had theirs in the same places.
        self.write(program, &inputs, |_| true)?;
        let mut result = Ok(());
        for step in program.steps.iter().skip(program.leading) {
            result = result.and_then(|()| self.check_cancelled());
            for copy in &step.copies {
                match if copy.early { handed.pop_front() } else { None } {
                    Some(handed) => self.take(copy, handed)?,
                    None if result.is_err() => {}
                    None => self.transfer(&mut ahead, copy)?,
                }
            }
            result = result.and_then(|()| self.on(step.device)?.execute(&step.executable));
        }
        result.map(|()| run)
    }

    /// Says that a result of this run has been read, so that all runs before it are done. Who enqueues many runs ahead says so
    /// now and then; otherwise the scheduler waits for all devices whenever they have much to hand each other.
    pub fn settle(&self, run: u64) {
        self.lock().settle(run);
    }

    /// Runs a program of [`Scheduler::plan_observed`] and shows every wanted node to `observer`, which must not run graphs of
    /// this scheduler itself. (Of a plan with longer splits only the last node of each is shown.)
    pub fn run_observed(
        &self,
        program: &Program,
        inputs: &[(TensorId, Bytes)],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let mut ahead = self.start(program, inputs)?;
        self.write(program, inputs, |_| true)?;
        for step in &program.steps {
            self.step(&mut ahead, step)?;
            let Some(node) = step.last_node else { continue };
            if !observer.wants(program.graph(), node) {
                continue;
            }
            let Some((device, slice)) = program.nodes.get(&node) else { continue };
            let value = self.relayed(*device, self.on(*device)?.read(slice)?)?;
            if observer.node(program.graph(), node, &value) == Verdict::Cancel {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Looks at the inputs, and enqueues copies of weights if it is the first run.
    fn start(&self, program: &Program, inputs: &[(TensorId, Bytes)]) -> Result<MutexGuard<'_, Ahead>> {
        for (id, _) in &program.inputs {
            let t = program.graph().tensor(*id);
            let Some((_, data)) = inputs.iter().find(|(input, _)| input == id) else {
                return Err(Error::Misuse(format!("input {} is missing", t.name())));
            };
            if data.len() != t.layout().span() {
                let (got, needed) = (data.len(), t.layout().span());
                return Err(Error::Misuse(format!("input {}: {got} bytes for {needed}", t.name())));
            }
        }
        let mut ahead = self.lock();
        ahead.begin_run();
        if !program.has_constants.load(Ordering::Relaxed) {
            program.constants.iter().try_for_each(|copy| self.transfer(&mut ahead, copy))?;
            program.has_constants.store(true, Ordering::Relaxed);
        }
        Ok(ahead)
    }

    /// Enqueues the inputs of some devices.
    fn write(&self, program: &Program, inputs: &[(TensorId, Bytes)], wanted: impl Fn(usize) -> bool) -> Result<()> {
        for (id, slices) in &program.inputs {
            let Some((_, data)) = inputs.iter().find(|(input, _)| input == id) else { continue };
            for (device, slice) in slices.iter().filter(|(device, _)| wanted(*device)) {
                self.on(*device)?.write(slice, data.clone())?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of a device; there is none on a scheduler that has lost devices.
    fn on(&self, device: usize) -> Result<&dyn Queue> {
        let queue = self.queues.get(device);
        queue.map(|q| q.as_ref()).ok_or_else(|| Error::Misuse("a run on devices that were lost".into()))
    }

    fn step(&self, ahead: &mut Ahead, step: &Step) -> Result<()> {
        self.check_cancelled()?;
        step.copies.iter().try_for_each(|copy| self.transfer(ahead, copy))?;
        self.on(step.device)?.execute(&step.executable)
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// The bytes of an output of the last run, in its layout.
    pub fn read(&self, program: &Program, output: TensorId) -> Result<Pending<Bytes>> {
        let missing = || Error::Misuse(format!("{} is not an output", program.graph().label(output)));
        let (device, slice) = program.outputs.get(&output).ok_or_else(missing)?;
        self.on(*device)?.read(slice)
    }

    /// Waits until everything enqueued on every device is done.
    pub fn finish(&self) -> Result<()> {
        self.queues.iter().try_for_each(|q| self.finish_queue(q.as_ref()))
    }

    /// Waits until everything enqueued on a queue is done.
    pub fn finish_queue(&self, queue: &dyn Queue) -> Result<()> {
        progress::finish(queue, self.options.deadline, || self.progress())
    }

    /// A number that changes while any device gets further, as far as they say.
    pub fn progress(&self) -> u64 {
        let queue = |q: &Arc<dyn Queue>| q.progress().map_or(0, |p| p.commands());
        let device = |d: &Arc<dyn Device>| d.progress().unwrap_or(0);
        let queues = self.queues.iter().map(queue).fold(0, u64::wrapping_add);
        self.devices.iter().map(device).fold(queues, u64::wrapping_add)
    }

    /// A deadline from now on, which counts from when a device last got further.
    pub fn patience(&self) -> Patience {
        Patience::new(self.options.deadline, Instant::now(), self.progress())
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

impl Memory<'_> {
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
