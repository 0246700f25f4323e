//! Devices that fail when a test says so, a small model on them, and what keeps its runs going.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use crate::small;
use outboard_core::Host;
use outboard_core::device::Bytes;
use outboard_core::device::TraceHook;
use outboard_core::op::{Penalties, Sampler};
use outboard_core::{
    Buffer, Device, DeviceInfo, Error, Event, Executable, Graph, MemoryInfo, NodeSet, Pending, Placement, Queue,
    Result, Slice, Usage,
};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use outboard_llm::tokenizer::Tokenizer;
use outboard_llm::{
    Failover, GenerateOptions, Generation, LoadOptions, LogProbs, Model, PlacedModel, Recovery, Sequence, generate,
};
use outboard_reference::reference_device;
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens to a device.
#[derive(Default)]
pub(crate) struct Fate {
    /// Graphs that it still runs before its server is lost.
    pub(crate) runs: AtomicI64,
    /// Graphs that it still runs before one of them fails.
    pub(crate) until_broken: AtomicI64,
    /// Its next command fails, whatever that is.
    pub(crate) breaks: AtomicBool,
    /// It gets no further, and says so when it is to be taken up again.
    pub(crate) hangs: AtomicBool,
    /// When taken up again, it has lost what it held.
    pub(crate) forgets: AtomicBool,
    /// It can be opened again in this process.
    pub(crate) reopens: AtomicBool,
    /// It is lost again at once.
    pub(crate) never_runs: AtomicBool,
    /// It is lost at its next command, whatever that is.
    pub(crate) is_cut: AtomicBool,
    /// Added to a number that is asked for alone.
    pub(crate) lies: AtomicI32,
    /// Its answers take this long, in milliseconds.
    pub(crate) delay: AtomicUsize,
    pub(crate) resumed: AtomicUsize,
    /// How often it was asked what it supports.
    pub(crate) asked: AtomicUsize,
    /// It does not compile the next graph.
    pub(crate) refuses: AtomicBool,
    /// Bytes that were written to it.
    pub(crate) written: AtomicU64,
}

/// A device of a server that may be lost. What goes to other devices goes through this process.
struct Remote {
    inner: Arc<dyn Device>,
    fate: Arc<Fate>,
}

struct RemoteQueue {
    inner: Arc<dyn Queue>,
    fate: Arc<Fate>,
    poison: Mutex<Option<Error>>,
    id: String,
}

impl Fate {
    /// Nothing happens.
    pub(crate) fn good() -> Fate {
        Fate { runs: AtomicI64::new(i64::MAX), until_broken: AtomicI64::new(i64::MAX), ..Fate::default() }
    }
}

pub(crate) fn lost(id: &str) -> Error {
    Error::Peer { endpoint: id.into(), detail: "the connection was lost".into() }
}

fn broken(id: &str) -> Error {
    Error::Device { device: id.into(), op: None, detail: "a wrong value".into() }
}

impl RemoteQueue {
    fn check(&self) -> Result<()> {
        if self.fate.is_cut.swap(false, Ordering::SeqCst) {
            self.poison(lost(&self.id));
        }
        if self.fate.breaks.swap(false, Ordering::SeqCst) {
            self.poison(broken(&self.id));
        }
        self.poison.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn poison(&self, error: Error) {
        self.poison.lock().unwrap().get_or_insert(error);
    }
}

impl Queue for RemoteQueue {
    fn uid(&self) -> u64 {
        self.inner.uid()
    }
    fn write(&self, dst: &Slice, data: Bytes) -> Result<()> {
        self.check()?;
        self.fate.written.fetch_add(dst.len(), Ordering::SeqCst);
        self.inner.write(dst, data)
    }
    fn read(&self, src: &Slice) -> Result<Pending<Bytes>> {
        self.check()?;
        let pending = self.inner.read(src)?;
        let lie = self.fate.lies.load(Ordering::SeqCst);
        if lie != 0 && src.len() == 4 {
            let true_ones = pending.wait(Duration::from_secs(10))?;
            let numbers = true_ones.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).wrapping_add(lie));
            let (to, lied) = Pending::new(self.id.as_str());
            to.complete(Ok(numbers.flat_map(i32::to_le_bytes).collect::<Vec<u8>>().into()));
            return Ok(lied);
        }
        let delay = self.fate.delay.load(Ordering::SeqCst) as u64;
        if delay == 0 {
            return Ok(pending);
        }
        let (to, later) = Pending::new(self.id.as_str());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(delay));
            to.complete(pending.wait(Duration::from_secs(10)));
        });
        Ok(later)
    }
    fn execute(&self, executable: &Arc<dyn Executable>) -> Result<()> {
        self.check()?;
        if self.fate.runs.fetch_sub(1, Ordering::SeqCst) == 0 || self.fate.never_runs.load(Ordering::SeqCst) {
            self.poison(lost(&self.id));
        }
        if self.fate.until_broken.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.poison(broken(&self.id));
        }
        self.check()?;
        self.inner.execute(executable)
    }
    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()> {
        self.check()?;
        self.inner.copy(src, dst)
    }
    fn fill(&self, dst: &Slice, value: u8) -> Result<()> {
        self.check()?;
        self.inner.fill(dst, value)
    }
    fn wait(&self, event: Event) -> Result<()> {
        self.inner.wait(event)
    }
    fn signal(&self) -> Result<Event> {
        self.inner.signal()
    }
    fn write_later(&self, dst: &Slice, data: Pending<Vec<Bytes>>) -> Result<()> {
        self.check()?;
        self.inner.write_later(dst, data)
    }
    fn failure(&self) -> Option<Error> {
        self.check().err()
    }
    fn marker(&self) -> Result<Pending<()>> {
        self.check()?;
        self.inner.marker()
    }
    fn set_trace(&self, hook: TraceHook) -> Result<()> {
        self.inner.set_trace(hook)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Device for Remote {
    fn uid(&self) -> u64 {
        self.inner.uid()
    }
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn memory(&self) -> Result<MemoryInfo> {
        self.inner.memory()
    }
    fn supports(&self, graph: &Graph) -> Result<NodeSet> {
        self.fate.asked.fetch_add(1, Ordering::SeqCst);
        self.inner.supports(graph)
    }
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        self.inner.alloc(size, usage)
    }
    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        if self.fate.refuses.swap(false, Ordering::SeqCst) {
            return Err(Error::Request(format!("{} does not support these sizes", self.info().id)));
        }
        self.inner.compile(graph, placement)
    }
    fn queue(&self) -> Result<Arc<dyn Queue>> {
        let (inner, fate) = (self.inner.queue()?, self.fate.clone());
        Ok(Arc::new(RemoteQueue { inner, fate, poison: Mutex::default(), id: self.info().id.clone() }))
    }
    fn resume(&self) -> Result<()> {
        self.fate.resumed.fetch_add(1, Ordering::SeqCst);
        if self.fate.hangs.load(Ordering::SeqCst) {
            let what = format!("{} to get any further", self.info().id);
            return Err(Error::Timeout { what, after: Duration::from_secs(1) });
        }
        if self.fate.forgets.load(Ordering::SeqCst) && self.fate.runs.load(Ordering::SeqCst) < 0 {
            Err(lost(&self.info().id))
        } else {
            Ok(())
        }
    }
    fn reopened(&self) -> Option<Arc<dyn Device>> {
        let again = || {
            let inner = reference_device(self.inner.host().unwrap(), &self.info().id, &MemoryBudget::new(None));
            Arc::new(Remote { inner, fate: Arc::new(Fate::good()) }) as Arc<dyn Device>
        };
        let is_lost = self.fate.runs.load(Ordering::SeqCst) < 0 || self.fate.hangs.load(Ordering::SeqCst);
        (is_lost && self.fate.reopens.load(Ordering::SeqCst)).then(again)
    }
    fn host(&self) -> Option<&Arc<Host>> {
        self.inner.host().filter(|_| self.fate.reopens.load(Ordering::SeqCst))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes that were written to a device.
pub(crate) fn written(device: &Arc<dyn Device>) -> u64 {
    let remote: &Remote = device.as_any().downcast_ref().unwrap();
    remote.fate.written.load(Ordering::SeqCst)
}

/// The sequence of a model that has one.
pub(crate) fn only(model: &mut PlacedModel) -> Sequence {
    let open = model.sequences().next();
    open.unwrap_or_else(|| model.open().unwrap())
}

pub(crate) struct World {
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) host: Arc<Host>,
}

impl World {
    pub(crate) fn new() -> World {
        World { model: small::model("llama-dense"), tokenizer: small::tokenizer(), host: Host::new() }
    }

    pub(crate) fn device(&self, name: &str, memory: Option<u64>) -> (Arc<dyn Device>, Arc<Fate>) {
        // One of them is a card, whose memory the host cannot address, and computes the same.
        let card = DetachedOptions { memory: memory.unwrap_or(1 << 30), ..DetachedOptions::default() };
        let inner: Arc<dyn Device> = match name {
            "B" => detached_device(&self.host, name, card),
            // These round otherwise what they compute alone.
            "CPU0" | "CPU1" => cpu_device(&self.host, name, CpuOptions::with_threads(1), &MemoryBudget::new(memory)),
            _ => reference_device(&self.host, name, &MemoryBudget::new(memory)),
        };
        let fate = Arc::new(Fate::good());
        (Arc::new(Remote { inner, fate: fate.clone() }), fate)
    }

    /// Two devices, of which the one with this number runs so many graphs before it is lost.
    pub(crate) fn pair(&self, unlucky: usize, runs: i64) -> (Vec<Arc<dyn Device>>, Arc<Fate>) {
        let (devices, fates) = self.devices(["A", "B"]);
        fates[unlucky].runs.store(runs, Ordering::SeqCst);
        (devices, fates[unlucky].clone())
    }

    pub(crate) fn devices(&self, names: [&str; 2]) -> (Vec<Arc<dyn Device>>, Vec<Arc<Fate>>) {
        names.map(|name| self.device(name, None)).into_iter().unzip()
    }

    pub(crate) fn engine(&self, devices: Vec<Arc<dyn Device>>) -> PlacedModel {
        let options = LoadOptions { n_ctx: 64, n_ubatch: 4, split: vec![1.0; devices.len()], ..LoadOptions::default() };
        PlacedModel::load(self.model.clone(), devices, &options, &|_, _| {}).unwrap()
    }

    pub(crate) fn run(
        &self,
        engine: &mut PlacedModel,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> outboard_llm::Result<Generation> {
        let seq = only(engine);
        generate(engine, seq, &self.tokenizer, prompt, options, &mut |_| ControlFlow::Continue(()))
    }
}

/// Keeps what it is told, and gives what it has.
#[derive(Clone, Default)]
pub(crate) struct Helper {
    pub(crate) told: Arc<Mutex<Vec<Recovery>>>,
    pub(crate) spare: Arc<Mutex<Vec<Arc<dyn Device>>>>,
    /// How long it has a run wait for devices, in milliseconds.
    pub(crate) patience: Arc<AtomicUsize>,
    /// How often it was asked for devices.
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Failover for Helper {
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>> {
        assert!(!lost.is_empty());
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::mem::take(&mut *self.spare.lock().unwrap())
    }
    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::SeqCst) as u64)
    }
    fn recovered(&mut self, recovery: &Recovery) {
        println!("{recovery}");
        self.told.lock().unwrap().push(recovery.clone());
    }
}

pub(crate) const PROMPT: [u32; 11] = [1, 5, 9, 100, 3, 77, 5, 9, 20, 60, 2];

/// Random draws, which depend on what was used before.
pub(crate) fn sampled() -> GenerateOptions {
    GenerateOptions {
        n_predict: Some(12),
        sampler: Sampler { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 42 },
        penalties: Some(Penalties { last_n: 16, repeat: 1.3, frequency: 0.2, presence: 0.1 }),
        ignore_eos: true,
        stop: Vec::new(),
        log_probs: LogProbs::Chosen,
        ..GenerateOptions::default()
    }
}

pub(crate) fn greedy() -> GenerateOptions {
    let sampler = Sampler { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
    GenerateOptions { sampler, penalties: None, ..sampled() }
}
