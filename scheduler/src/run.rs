//! Opens the queues of devices and drives them.
//!
//! A run enqueues everything it can at once: inputs, splits, and copies that devices do among themselves. Only a copy between
//! devices that cannot reach each other waits in this process for its bytes.
//!
//! No events are needed beside the transfers: all memory of a device is touched by its one queue only, in the order of the
//! plan, and a transfer makes the queue that takes the bytes wait for the one that has them. So the next run may be enqueued
//! while this one is under way: what it overwrites has been read by then.

use crate::assign::{DeviceView, Hints};
use crate::memory::MemoryRules;
use crate::plan::{Plan, PlanError};
use crate::program::{Program, Step, Transfer};
use crate::transfers::{InTransit, OpenTransfers};
use bytes::Bytes;
use outboard_core::{
    Buffer, Device, Error, Graph, NodeSet, Patience, Pending, Queue, Result, TensorId, Ticket, at_once, progress,
    try_at_once,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    pub(crate) devices: Vec<Arc<dyn Device>>,
    queues: Vec<Arc<dyn Queue>>,
    reaches: Vec<Vec<bool>>,
    /// Memory for results, by device; in several buffers where the largest one of the device is too small.
    pub(crate) compute: Vec<Vec<Arc<dyn Buffer>>>,
    options: SchedulerOptions,
    cancel: Arc<AtomicBool>,
    on_wait: Option<Arc<OnWait>>,
    /// Held while a run is enqueued: commands of two runs must not mix.
    transfers: Mutex<OpenTransfers>,
}

/// Takes devices up again, all at once, when all their queues were dropped; gives for each that was lost its error.
pub fn resume_all(devices: &[Arc<dyn Device>]) -> Vec<Option<Error>> {
    at_once(devices, |d| d.resume().err())
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

/// What a plan has to know of a device that supports these nodes.
fn view(device: &Arc<dyn Device>, supports: NodeSet) -> DeviceView {
    let info = device.info();
    DeviceView { id: info.id.clone(), kind: info.kind, supports, memory: MemoryRules::of(info) }
}

fn plan_over(graph: Arc<Graph>, devices: &[DeviceView], hints: &Hints, max_nodes: usize) -> Result<Plan> {
    Plan::new(graph, devices, hints, max_nodes).map_err(|e: PlanError| Error::Request(e.to_string()))
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
            transfers: Mutex::default(),
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

    /// Gives up everything that was enqueued, and has no queues until [`Scheduler::resume`]. What lies on the devices stays.
    pub fn close(&mut self) {
        // Local queues end what they are at; remote ones are waited for by their servers.
        self.queues.clear();
        *self.transfers.get_mut().unwrap_or_else(PoisonError::into_inner) = OpenTransfers::default();
    }

    /// After a device has failed, or a queue was poisoned: gives up everything that was enqueued and takes the devices up again, all at
    /// once. What lies on them stays. Gives for each device that was lost its error; if there is one, nothing runs on this scheduler
    /// any more, and its memory for results is freed.
    pub fn resume(&mut self) -> Result<Vec<Option<Error>>> {
        self.close();
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

    /// Plans a graph with the same ops as another plan's, of other sizes, without a round trip: devices are taken to support the same nodes of it. `None` if the
    /// ops differ. Where it depends on sizes what a device supports, it refuses to [compile](Scheduler::prepare) the plan with [`Error::Request`].
    pub fn plan_like(&self, graph: Arc<Graph>, hints: &Hints, other: &Plan) -> Option<Result<Plan>> {
        let are_same = self.devices.iter().map(|device| &device.info().id).eq(&other.devices);
        if !are_same || !other.is_built_like(&graph) {
            return None;
        }
        let views = self.devices.iter().zip(&other.supports).map(|(device, supports)| view(device, supports.clone()));
        Some(plan_over(graph, &views.collect::<Vec<_>>(), hints, usize::MAX))
    }

    fn plan_with(&self, graph: Arc<Graph>, hints: &Hints, max_nodes: usize) -> Result<Plan> {
        let views = try_at_once(&self.devices, |device| Ok::<_, Error>(view(device, device.supports(&graph)?)))?;
        plan_over(graph, &views, hints, max_nodes)
    }

    /// Enqueues a copy between two devices by the shortest way there is.
    fn transfer(&self, open: &mut OpenTransfers, transfer: &Transfer) -> Result<()> {
        let handed = self.hand_over(open, transfer)?;
        self.take(transfer, handed)
    }

    /// Has a device send what another one will [take](Scheduler::take).
    fn hand_over(&self, open: &mut OpenTransfers, transfer: &Transfer) -> Result<InTransit> {
        let &Transfer { from, to, ref src, .. } = transfer;
        if src.is_empty() {
            return Ok(InTransit::Nothing);
        }
        if self.reaches[from][to]
            && let Some(source) = self.devices[from].peer()
        {
            if open.is_full(src.len()) {
                self.finish()?;
                open.settle_all();
            }
            open.add(src.len());
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
            if let Some(error) = self.failure() {
                return Err(error);
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
        let (run, mut open) = self.start(program, inputs)?;
        self.write(program, inputs, |_, _| true)?;
        program.steps.iter().try_for_each(|step| self.step(&mut open, step))?;
        Ok(run)
    }

    /// Enqueues the beginning of a run: [leading](crate::split::Splits::leading) splits, if there are any, and what they hand to others.
    /// Where devices do not reach each other, it waits for what they hand over.
    ///
    /// Further runs may begin before this one is [ended](Scheduler::end), which is to be done in their order. State that the beginning
    /// writes is seen by the rest as the last run that has begun left it.
    pub fn begin(&self, program: &Program, inputs: Vec<(TensorId, Bytes)>) -> Result<Begun> {
        let (run, mut open) = self.start(program, &inputs)?;
        let mut begun = Begun { run, graph: program.graph().clone(), inputs, handed: VecDeque::new() };
        let (leading, rest) = program.steps.split_at(program.leading);
        self.write(program, &begun.inputs, |input, device| program.begins_with(input, device))?;
        leading.iter().try_for_each(|step| self.step(&mut open, step))?;
        for copy in rest.iter().flat_map(|step| &step.copies).filter(|copy| copy.early) {
            begun.handed.push_back(self.hand_over(&mut open, copy)?);
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
        let mut open = self.lock();
        let rest = program.steps.get(program.leading..).unwrap_or_default();
        // The beginnings of other runs have had theirs in the same places.
        self.write(program, &inputs, |input, device| !program.is_done_with(input, device))?;
        let ended = rest.iter().try_for_each(|step| self.end_step(&mut open, step, &mut handed));
        if ended.is_err() {
            self.take_rest(rest, handed)?;
        }
        ended.map(|()| run)
    }

    /// A step whose early copies were handed over when the run began.
    fn end_step(&self, open: &mut OpenTransfers, step: &Step, handed: &mut VecDeque<InTransit>) -> Result<()> {
        self.check_cancelled()?;
        for copy in &step.copies {
            match if copy.early { handed.pop_front() } else { None } {
                Some(handed) => self.take(copy, handed)?,
                None => self.transfer(open, copy)?,
            }
        }
        self.on(step.device)?.execute(&step.executable)
    }

    /// Takes what was handed over and is not taken yet, of a run that has failed.
    fn take_rest(&self, steps: &[Step], handed: VecDeque<InTransit>) -> Result<()> {
        let early: Vec<_> = steps.iter().flat_map(|step| &step.copies).filter(|copy| copy.early).collect();
        let taken = early.len().saturating_sub(handed.len());
        early.into_iter().skip(taken).zip(handed).try_for_each(|(copy, handed)| self.take(copy, handed))
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
        let (_, mut open) = self.start(program, inputs)?;
        self.write(program, inputs, |_, _| true)?;
        for step in &program.steps {
            self.step(&mut open, step)?;
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
    fn start(&self, program: &Program, inputs: &[(TensorId, Bytes)]) -> Result<(u64, MutexGuard<'_, OpenTransfers>)> {
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
        let mut open = self.lock();
        let run = open.begin_run();
        if !program.has_constants.load(Ordering::Relaxed) {
            program.constants.iter().try_for_each(|copy| self.transfer(&mut open, copy))?;
            program.has_constants.store(true, Ordering::Relaxed);
        }
        Ok((run, open))
    }

    /// Enqueues inputs, those that are wanted on a device.
    fn write(
        &self,
        program: &Program,
        inputs: &[(TensorId, Bytes)],
        wanted: impl Fn(TensorId, usize) -> bool,
    ) -> Result<()> {
        for (id, slices) in &program.inputs {
            let Some((_, data)) = inputs.iter().find(|(input, _)| input == id) else { continue };
            for (device, slice) in slices.iter().filter(|(device, _)| wanted(*id, *device)) {
                self.on(*device)?.write(slice, data.clone())?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, OpenTransfers> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of a device; there is none on a scheduler that has lost devices.
    fn on(&self, device: usize) -> Result<&dyn Queue> {
        let queue = self.queues.get(device);
        queue.map(|q| q.as_ref()).ok_or_else(|| Error::Misuse("a run on devices that were lost".into()))
    }

    fn step(&self, open: &mut OpenTransfers, step: &Step) -> Result<()> {
        self.check_cancelled()?;
        step.copies.iter().try_for_each(|copy| self.transfer(open, copy))?;
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

    /// The error of a queue that has failed. A wait for another one ends with it: that one may wait for what will not come.
    pub fn failure(&self) -> Option<Error> {
        self.queues.iter().find_map(|queue| queue.failure())
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
