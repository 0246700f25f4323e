//! What a queue gives its commands to: a stream of the library, and calls that are done when they return.

use crate::functions::{AbortCallback, Object};
use crate::lock;
use crate::log;
use crate::memory::{Heap, buffer, copy};
use crate::program::{Program, Version};
use bytes::Bytes;
use outboard_core::local::{Outcome, Span, Stream};
use outboard_core::{Error, Executable, Result, Slice};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

/// `GGML_STATUS_ABORTED` and `GGML_STATUS_FAILED`.
const ABORTED: i32 = 1;
const FAILED: i32 = -1;
/// Pieces of a run that are under way at once.
const AHEAD: usize = 2;

/// What computes on a device, for all of its queues: ggml keeps working memory for each stream of its own, of which nobody pays for any.
pub(crate) struct Engine {
    pub(crate) heap: Arc<Heap>,
    /// The device's id.
    id: Arc<str>,
    /// Nodes that the device has computed.
    steps: Arc<AtomicU64>,
    /// Open as long as a queue has it.
    open: Mutex<Weak<Compute>>,
}

impl Engine {
    pub(crate) fn new(heap: Arc<Heap>, id: &str) -> Engine {
        Engine { heap, id: id.into(), steps: Arc::default(), open: Mutex::default() }
    }

    /// Nodes that the device has computed.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    fn compute(&self) -> Result<Arc<Compute>> {
        let mut open = lock(&self.open);
        if let Some(compute) = open.upgrade()
            && !compute.is_broken()
        {
            return Ok(compute);
        }
        let compute = Arc::new(Compute::open(&self.heap, &self.id, self.steps.clone())?);
        *open = Arc::downgrade(&compute);
        Ok(compute)
    }

    fn failed(&self, status: i32) -> Error {
        if status == ABORTED {
            return Error::Cancelled;
        }
        let detail = format!("ggml cannot compute a graph (status {status}){}", log::last_words());
        Error::Device { device: self.id.to_string(), op: None, detail }
    }
}

/// A stream of the library.
struct Compute {
    heap: Arc<Heap>,
    backend: Object,
    /// Of the pieces of a run that are under way at once; none where the backend has no events, so that each piece is waited for.
    events: Vec<Object>,
    /// It calls back behind every node, and the callback counts them.
    counts_nodes: bool,
    /// What its abort callback has.
    watch: Arc<Watch>,
    /// Whoever runs a graph on it has it.
    running: Mutex<()>,
    /// A stream that has failed once may fail always: whoever comes next takes another.
    broken: AtomicBool,
}

/// What a backend that asks after every node is given to ask.
struct Watch {
    /// Of the run that there is now.
    cancel: Mutex<Arc<AtomicBool>>,
    steps: Arc<AtomicU64>,
}

// SAFETY: a stream of the library may be used from any thread, by one at a time: whoever has `running`.
unsafe impl Send for Compute {}
// SAFETY: as above.
unsafe impl Sync for Compute {}

/// Notes that a node was computed, and says whether the graph is not wanted any more.
unsafe extern "C" fn is_cancelled(watch: *mut c_void) -> bool {
    // SAFETY: what was given with the callback, which is kept as long as the backend.
    let watch = unsafe { &*watch.cast::<Watch>() };
    watch.steps.fetch_add(1, Ordering::Relaxed);
    lock(&watch.cancel).load(Ordering::Relaxed)
}

impl Compute {
    fn open(heap: &Arc<Heap>, id: &str, steps: Arc<AtomicU64>) -> Result<Compute> {
        let _order = heap.lock();
        // SAFETY: a device of this library; no parameters.
        let backend =
            unsafe { (heap.library().functions.ggml_backend_dev_init)(heap.device.handle(), std::ptr::null()) };
        if backend.is_null() {
            let detail = format!("ggml cannot open it{}", log::last_words());
            return Err(Error::Device { device: id.to_owned(), op: None, detail });
        }
        let (device, watch) = (&heap.device, Arc::new(Watch { cancel: Mutex::default(), steps }));
        let threads = i32::try_from(heap.threads).unwrap_or(i32::MAX);
        // SAFETY: ggml-backend.h says what the functions of these names are; what is watched lives as long as the stream.
        let counts_nodes = unsafe {
            let set_threads = device.extra(c"ggml_backend_set_n_threads");
            if !set_threads.is_null() {
                let set: unsafe extern "C" fn(Object, i32) = std::mem::transmute(set_threads);
                set(backend, threads);
            }
            let set_abort = device.extra(c"ggml_backend_set_abort_callback");
            if !set_abort.is_null() {
                let set: unsafe extern "C" fn(Object, AbortCallback, *mut c_void) = std::mem::transmute(set_abort);
                set(backend, is_cancelled, Arc::as_ptr(&watch).cast_mut().cast());
            }
            !set_abort.is_null()
        };
        // SAFETY: a device of this library; what has no events gives none.
        let event = |_| unsafe { (heap.library().functions.ggml_backend_event_new)(device.handle()) };
        let ahead = if device.takes_pieces_ahead() { AHEAD } else { 0 };
        let events = (0..ahead).map(event).take_while(|event| !event.is_null()).collect();
        let (running, broken) = (Mutex::default(), AtomicBool::new(false));
        Ok(Compute { heap: heap.clone(), backend, events, counts_nodes, watch, running, broken })
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Begins a run of graphs, when the one before has ended.
    fn begin<'a>(&'a self, graphs: &'a Version, cancel: &Arc<AtomicBool>) -> Run<'a> {
        let alone = lock(&self.running);
        *lock(&self.watch.cancel) = cancel.clone();
        Run { compute: self, _graphs: graphs, _alone: alone, pieces: 0, under_way: VecDeque::new() }
    }

    /// Notes that nodes were computed, unless the backend does so itself.
    fn note(&self, nodes: u64) {
        if !self.counts_nodes {
            self.watch.steps.fetch_add(nodes, Ordering::Relaxed);
        }
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        let _order = self.heap.lock();
        let f = &self.heap.library().functions;
        // SAFETY: made in `open`, freed once; nothing of it runs.
        unsafe {
            self.events.iter().for_each(|&event| (f.ggml_backend_event_free)(event));
            (f.ggml_backend_free)(self.backend);
        }
    }
}

/// A graph that runs, piece by piece: some of them are enqueued ahead, few enough that it can be stopped soon.
struct Run<'a> {
    compute: &'a Compute,
    /// What it runs is there until it has ended.
    _graphs: &'a Version,
    _alone: MutexGuard<'a, ()>,
    /// Pieces that were enqueued.
    pieces: usize,
    /// Nodes of each that is not known to have ended.
    under_way: VecDeque<u64>,
}

/// What a call gives back, or a failure if the library has told of one meanwhile: waits have no status, and Metal's calls for a run that has failed say that it
/// has not.
fn watched(call: impl FnOnce() -> i32) -> std::result::Result<(), i32> {
    let before = log::errors();
    match call() {
        0 if log::errors() > before => Err(FAILED),
        0 => Ok(()),
        status => Err(status),
    }
}

impl Run<'_> {
    /// Gives the device a piece, of so many nodes of ours. It may not have ended when this returns.
    fn enqueue(&mut self, graph: Object, nodes: u64) -> std::result::Result<(), i32> {
        let Compute { heap, backend, events, .. } = self.compute;
        let f = &heap.library().functions;
        if events.is_empty() {
            let _order = heap.lock();
            // SAFETY: a graph whose tensors have their places in memory of this device, run by one thread at a time.
            let status = watched(|| unsafe { (f.ggml_backend_graph_compute)(*backend, graph) });
            self.compute.note(nodes);
            return status;
        }
        if self.under_way.len() == events.len() {
            self.wait_for_oldest()?;
        }
        let event = events[self.pieces % events.len()];
        self.pieces += 1;
        self.under_way.push_back(nodes);
        let _order = heap.lock();
        // SAFETY: as above; the graph is kept until it has ended, and nobody waits for the event.
        watched(|| unsafe {
            let status = (f.ggml_backend_graph_compute_async)(*backend, graph);
            (f.ggml_backend_event_record)(event, *backend);
            status
        })
    }

    /// Waits for the oldest piece that is under way. Others may use the device meanwhile.
    fn wait_for_oldest(&mut self) -> std::result::Result<(), i32> {
        let Compute { heap, events, .. } = self.compute;
        let oldest = self.pieces - self.under_way.len();
        let Some(nodes) = self.under_way.pop_front() else { return Ok(()) };
        let wait = heap.library().functions.ggml_backend_event_synchronize;
        let waited = watched(|| {
            // SAFETY: an event of this stream that was recorded.
            unsafe { wait(events[oldest % events.len()]) };
            0
        });
        self.compute.note(nodes);
        waited
    }

    /// Waits for what was enqueued: for each event, because Vulkan's have something of the driver's until somebody has waited for them.
    fn finish(&mut self) -> std::result::Result<(), i32> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let mut waited = Ok(());
        while !self.under_way.is_empty() {
            waited = waited.and(self.wait_for_oldest());
        }
        let _order = self.compute.heap.lock();
        let synchronize = self.compute.heap.library().functions.ggml_backend_synchronize;
        waited.and(watched(|| {
            // SAFETY: a stream of the library.
            unsafe { synchronize(self.compute.backend) };
            0
        }))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // Whoever gave it up has another error to tell.
        let _ = self.finish();
    }
}

pub(crate) struct GgmlStream {
    engine: Arc<Engine>,
    cancel: Arc<AtomicBool>,
    /// Once it has run a graph.
    compute: Option<Arc<Compute>>,
}

impl GgmlStream {
    pub(crate) fn new(engine: Arc<Engine>, cancel: Arc<AtomicBool>) -> GgmlStream {
        GgmlStream { engine, cancel, compute: None }
    }

    /// The stream of the library, which all queues of the device have.
    fn compute(&mut self) -> Result<Arc<Compute>> {
        let compute = match self.compute.take() {
            Some(open) if !open.is_broken() => open,
            _ => self.engine.compute()?,
        };
        Ok(self.compute.insert(compute).clone())
    }

    fn run(&mut self, program: &Program) -> Result<Span> {
        let mut parts = program.lock();
        let compute = self.compute()?;
        let start = Instant::now();
        let version = program.version(&mut parts, &self.cancel)?;
        let failed = |status| {
            compute.broken.fetch_or(status != ABORTED, Ordering::Relaxed);
            self.engine.failed(status)
        };
        let mut run = compute.begin(version, &self.cancel);
        for piece in &version.pieces {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if piece.looks_at_values() {
                run.finish().map_err(failed)?;
            }
            match program.prepare(version, piece, &self.engine.id, &self.cancel)? {
                Some(graph) => run.enqueue(graph, piece.count).map_err(failed)?,
                None => compute.note(piece.count),
            }
        }
        run.finish().map_err(failed)?;
        Ok(Span { start, end: Instant::now() })
    }
}

impl Stream for GgmlStream {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        buffer(dst)?.write(dst.offset(), &data).map(Outcome::Now)
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        buffer(src)?.read(src.offset(), src.len() as usize).map(Outcome::Now)
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        if !(src.shares_buffer(dst) && src.offset() == dst.offset()) {
            copy([buffer(src)?, buffer(dst)?], [src.offset(), dst.offset()], src.len())?;
        }
        Ok(Outcome::Now(()))
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        buffer(dst)?.fill(dst.offset(), dst.len(), value).map(Outcome::Now)
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let wrong = || Error::Misuse("a graph that was compiled for another kind of device".into());
        let program = executable.as_any().downcast_ref::<Program>().ok_or_else(wrong)?;
        self.run(program).map(Outcome::Now)
    }

    fn reaches(&self, _: &Slice) -> bool {
        false
    }
}
