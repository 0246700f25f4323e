//! Devices of the emulator, and a small graph on one of them.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]

use bytes::Bytes;
use outboard_core::device::{Client, MemoryAccount, MemoryShare, fresh_uid};
use outboard_core::local::LocalDevice;
use outboard_core::op::GetRows;
use outboard_core::{
    DType, Device, DeviceInfo, Executable, Graph, GraphBuilder, Host, Placement, Queue, Result, Slice, TensorId, Usage,
};
use outboard_cuda::{OpenOptions, cuda_device, find};
use outboard_cuda_emulator::{Config, Emulator, Live};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for anything.
pub const LONG: Duration = Duration::from_secs(60);
/// Bytes of memory of a card.
pub const MEMORY: u64 = 512 << 20;

/// The emulator with two cards of this compute capability; the first who asks decides.
pub fn emulator_of(capability: u32) -> Emulator {
    static READY: OnceLock<Emulator> = OnceLock::new();
    *READY.get_or_init(|| {
        let emulator = Emulator::load().unwrap();
        emulator.configure(&Config { devices: 2, capability, memory: MEMORY, ..Config::default() });
        assert!(find().len() >= 2, "the emulator's cards");
        emulator
    })
}

/// Compute capability of the cards, if nothing else is said by `OUTBOARD_CUDA_CAPABILITY`.
pub fn capability() -> u32 {
    std::env::var("OUTBOARD_CUDA_CAPABILITY").ok().map_or(80, |text| text.parse().unwrap())
}

pub fn emulator() -> Emulator {
    emulator_of(capability())
}

/// The first card.
pub fn device(patience: Duration) -> Arc<LocalDevice> {
    emulator();
    cuda_device(&Host::new(), &find()[0], "CUDA0", &OpenOptions { patience }).unwrap()
}

/// The first two devices, on one host: two cards, or two parts of one where the environment divides them.
pub fn pair(patience: Duration) -> [Arc<LocalDevice>; 2] {
    emulator();
    let host = Host::new();
    [0, 1].map(|i| cuda_device(&host, &find()[i], &format!("CUDA{i}"), &OpenOptions { patience }).unwrap())
}

/// Functions of the committed PTX for cards of this compute capability.
pub fn functions(capability: u32) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let suits = |text: &String| (60..=capability).any(|c| text.contains(&format!(".target sm_{c}\n")));
    let name = |line: &str| Some(line.strip_prefix(".visible .entry ")?.trim_end_matches('(').to_owned());
    files.filter(suits).flat_map(|text| text.lines().filter_map(name).collect::<Vec<_>>()).collect()
}

/// Whether a function computes several nodes, which no case of one op has: tests/steps.rs has them.
pub fn is_of_several(function: &str) -> bool {
    function == "rope_cache" || ["_many", "_gated", "_normed"].iter().any(|end| function.ends_with(end))
}

pub fn slice(device: &dyn Device, size: u64) -> Slice {
    Slice::whole(device.alloc(size, Usage::Any).unwrap())
}

/// A graph that can be run, with a slice for each root.
pub type Compiled = (Arc<dyn Executable>, Vec<Option<Slice>>);

pub fn compile(device: &dyn Device, graph: Graph) -> Result<Compiled> {
    let graph = Arc::new(graph);
    let mut places = Vec::new();
    for id in graph.ids() {
        let t = graph.tensor(id);
        let whole = || Ok::<_, outboard_core::Error>(Slice::whole(device.alloc(t.layout().span() as u64, Usage::Any)?));
        places.push(if t.root() == id { Some(whole()?) } else { None });
    }
    let placement = Placement::new(&graph, device, places.clone())?;
    Ok((device.compile(graph.clone(), placement)?, places))
}

/// One row of a table of four.
pub fn lookup(g: &mut GraphBuilder) -> [TensorId; 3] {
    let (table, rows) = (g.input("table", DType::F32, &[64, 4]).unwrap(), g.input("rows", DType::I32, &[1]).unwrap());
    let picked = g.push(GetRows, &[table, rows]).unwrap();
    g.name(picked, "picked");
    g.output(picked);
    [table, rows, picked]
}

pub fn read(queue: &dyn Queue, slice: &Slice) -> Bytes {
    queue.read(slice).unwrap().wait(LONG).unwrap()
}

/// Whoever injects faults is alone: they, what is counted and what is left are the whole process's.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    emulator().clear_faults();
    nothing_is_left();
    guard
}

/// Everything was given back to the driver.
pub fn nothing_is_left() {
    wait_for(|| emulator().live() == Live::default(), || format!("{:?}", emulator().live()));
}

/// Waits until something is so.
pub fn wait_for(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{}", what());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An account that pays for everything.
#[derive(Debug)]
struct Rich;

impl MemoryAccount for Rich {
    fn take(&self, _: u64, _: &DeviceInfo, _: u64) -> Result<MemoryShare> {
        Ok(Box::new(()))
    }
}

/// Another client of a device.
pub fn client(device: &dyn Device) -> Arc<dyn Device> {
    device.for_client(Client { turns: fresh_uid(), room: fresh_uid(), account: Arc::new(Rich) }).unwrap()
}

/// A client with a graph that looks a row up.
pub struct Work {
    pub device: Arc<dyn Device>,
    pub queue: Arc<dyn Queue>,
    pub executable: Arc<dyn Executable>,
    table: Slice,
    rows: Slice,
    pub picked: Slice,
}

impl Work {
    pub fn new(device: Arc<dyn Device>) -> Result<Work> {
        let mut g = GraphBuilder::new();
        let [table, rows, picked] = lookup(&mut g).map(TensorId::index);
        let (executable, places) = compile(device.as_ref(), g.finish().unwrap())?;
        let at = |i: usize| places[i].clone().unwrap();
        let queue = device.queue()?;
        Ok(Work { queue, executable, table: at(table), rows: at(rows), picked: at(picked), device })
    }

    /// Looks a row up that is all of one byte.
    pub fn run(&self) -> Result<Bytes> {
        self.queue.fill(&self.table, 0x3f)?;
        self.queue.write(&self.rows, Bytes::copy_from_slice(&3i32.to_le_bytes()))?;
        self.queue.execute(&self.executable)?;
        let read = self.queue.read(&self.picked)?.wait(LONG)?;
        self.queue.finish(LONG)?;
        Ok(read)
    }

    pub fn computes(&self) {
        let picked = self.run().unwrap();
        assert!(picked.len() == 256 && picked.iter().all(|&byte| byte == 0x3f), "{picked:x?}");
    }
}
