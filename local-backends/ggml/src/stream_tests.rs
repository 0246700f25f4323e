//! Streams of a library whose events and faults are ours: none of ggml's backends that can be had without a card has either. Functions of its backend for
//! processors are replaced, and its device has the name of a card's.

use crate::devices::devices;
use crate::functions::Object;
use crate::library::Library;
use crate::{VARIABLE, ggml_device, lock, log, places};
use outboard_core::local::LocalDevice;
use outboard_core::op::{GetRows, Scale};
use outboard_core::{
    DType, Device, Error, Executable, Graph, GraphBuilder, Host, Placement, Queue, Result, Slice, TensorId, Usage,
};
use outboard_host::MemoryBudget;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(30);

/// One test at a time: what the functions do is kept beside them.
static ALONE: Mutex<()> = Mutex::new(());
/// Events that were recorded, and waited for.
static RECORDED: AtomicU64 = AtomicU64::new(0);
static WAITED: AtomicU64 = AtomicU64::new(0);
/// Whether the next graph fails, and the stream with it for ever.
static FAILS: AtomicBool = AtomicBool::new(false);
static FAILED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Whether a wait tells of an error.
static TELLS: AtomicBool = AtomicBool::new(false);

type Compute = unsafe extern "C" fn(Object, Object) -> c_int;
static OWN: OnceLock<Compute> = OnceLock::new();

unsafe extern "C" fn event_new(_: Object) -> Object {
    std::ptr::dangling_mut::<u64>().cast()
}

unsafe extern "C" fn event_free(_: Object) {}

unsafe extern "C" fn event_record(_: Object, _: Object) {
    RECORDED.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn event_synchronize(_: Object) {
    WAITED.fetch_add(1, Ordering::Relaxed);
    if TELLS.swap(false, Ordering::Relaxed) {
        // SAFETY: a text that ends with 0; 4 is the level of errors.
        unsafe { log::keep(4, c"a command buffer failed".as_ptr(), std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn compute(stream: Object, graph: Object) -> c_int {
    if FAILS.swap(false, Ordering::Relaxed) {
        lock(&FAILED).push(stream as usize);
    }
    if lock(&FAILED).contains(&(stream as usize)) {
        return -1;
    }
    // SAFETY: as the caller promises.
    unsafe { OWN.get().unwrap()(stream, graph) }
}

/// The device, for one test. `None`, with a line, without ggml.
fn card() -> Option<(Arc<LocalDevice>, MutexGuard<'static, ()>)> {
    let Some(folder) = places::told() else {
        println!("skipped: {VARIABLE} does not name ggml's libraries");
        return None;
    };
    let alone = lock(&ALONE);
    lock(&FAILED).clear();
    let mut library = Library::open(&folder, Some("cpu")).unwrap();
    let f = &mut library.functions;
    OWN.get_or_init(|| f.ggml_backend_graph_compute);
    f.ggml_backend_event_new = event_new;
    f.ggml_backend_event_free = event_free;
    f.ggml_backend_event_record = event_record;
    f.ggml_backend_event_synchronize = event_synchronize;
    f.ggml_backend_graph_compute_async = compute;
    let mut cpu = devices(&Arc::new(library)).into_iter().find(|device| device.name == "CPU").unwrap();
    cpu.name = "CUDA0".into();
    Some((ggml_device(&Host::new(), &cpu, "CUDA0", 1, &MemoryBudget::new(Some(1 << 30))), alone))
}

/// Rows that are looked up in what was computed: two pieces, because the host looks at their numbers between them.
fn graph() -> Graph {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[32, 4]).unwrap();
    let rows = g.input("rows", DType::I32, &[2]).unwrap();
    let scaled = g.push(Scale { scale: 2.0, bias: 0.0 }, &[x]).unwrap();
    let picked = g.push(GetRows, &[scaled, rows]).unwrap();
    g.output(picked);
    g.finish().unwrap()
}

fn compile(device: &dyn Device) -> Arc<dyn Executable> {
    let graph = Arc::new(graph());
    let place = |id: TensorId| {
        let size = graph.tensor(id).layout().span() as u64;
        Some(Slice::whole(device.alloc(size, Usage::Any).unwrap()))
    };
    let placement = Placement::new(&graph, device, graph.ids().map(place).collect()).unwrap();
    device.compile(graph, placement).unwrap()
}

fn run(queue: &dyn Queue, executable: &Arc<dyn Executable>) -> Result<()> {
    queue.execute(executable)?;
    queue.finish(WAIT)
}

#[test]
fn every_event_is_waited_for() {
    let Some((device, _alone)) = card() else { return };
    let (queue, executable) = (device.queue().unwrap(), compile(device.as_ref()));
    let before = [&RECORDED, &WAITED].map(|count| count.load(Ordering::Relaxed));
    (0..5).for_each(|_| run(queue.as_ref(), &executable).unwrap());
    let [recorded, waited] = [&RECORDED, &WAITED].map(|count| count.load(Ordering::Relaxed));
    assert!(recorded - before[0] >= 5, "{recorded} events");
    assert_eq!(recorded - before[0], waited - before[1]);
}

#[test]
fn a_stream_that_has_failed_is_given_up_by_all() {
    let Some((device, _alone)) = card() else { return };
    let executable = compile(device.as_ref());
    let [one, other] = [(); 2].map(|()| device.queue().unwrap());
    run(one.as_ref(), &executable).unwrap();
    run(other.as_ref(), &executable).unwrap();
    FAILS.store(true, Ordering::Relaxed);
    let error = run(one.as_ref(), &executable).unwrap_err();
    assert!(matches!(&error, Error::Device { device, .. } if device == "CUDA0"), "{error}");
    // The stream that failed would fail again. A queue is over with its error; others, and new ones, go on.
    run(other.as_ref(), &executable).unwrap();
    run(device.queue().unwrap().as_ref(), &executable).unwrap();
}

#[test]
fn what_is_told_during_a_wait_is_an_error() {
    let Some((device, _alone)) = card() else { return };
    let (queue, executable) = (device.queue().unwrap(), compile(device.as_ref()));
    run(queue.as_ref(), &executable).unwrap();
    TELLS.store(true, Ordering::Relaxed);
    let error = run(queue.as_ref(), &executable).unwrap_err().to_string();
    assert!(error.contains("a command buffer failed"), "{error}");
}
