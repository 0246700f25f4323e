//! What a queue gives its commands to: a stream of the library, and calls that are done when they return.

use crate::functions::{AbortCallback, Object};
use crate::lock;
use crate::log;
use crate::memory::{Heap, buffer, copy};
use crate::program::Program;
use bytes::Bytes;
use outboard_core::local::{Outcome, Span, Stream};
use outboard_core::{Error, Executable, Result, Slice};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

/// `GGML_STATUS_ABORTED`.
const ABORTED: i32 = 1;
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
        if let Some(compute) = open.upgrade() {
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
        let event = || unsafe { (heap.library().functions.ggml_backend_event_new)(device.handle()) };
        let events = (0..AHEAD).map(|_| event()).take_while(|event| !event.is_null()).collect();
        Ok(Compute { heap: heap.clone(), backend, events, counts_nodes, watch, running: Mutex::default() })
    }

    /// Begins a run, when the one before has ended.
    fn begin(&self, cancel: &Arc<AtomicBool>) -> Run<'_> {
        let alone = lock(&self.running);
        *lock(&self.watch.cancel) = cancel.clone();
        Run { compute: self, _alone: alone, pieces: 0, under_way: VecDeque::new() }
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
    _alone: MutexGuard<'a, ()>,
    /// Pieces that were enqueued.
    pieces: usize,
    /// Nodes of each that is not known to have ended.
    under_way: VecDeque<u64>,
}

impl Run<'_> {
    /// Gives the device a piece, of so many nodes of ours. It may not have ended when this returns.
    fn enqueue(&mut self, graph: Object, nodes: u64) -> std::result::Result<(), i32> {
        let Compute { heap, backend, events, .. } = self.compute;
        let f = &heap.library().functions;
        let event = match events.len() {
            0 => None,
            n => Some((events[self.pieces % n], self.under_way.len() == n)),
        };
        let _order = heap.lock();
        // SAFETY: a graph whose tensors have their places in memory of this device, run by one thread at a time, and kept until it has ended.
        let status = unsafe {
            match event {
                None => (f.ggml_backend_graph_compute)(*backend, graph),
                Some((event, is_waited_for)) => {
                    if is_waited_for {
                        (f.ggml_backend_event_synchronize)(event);
                        self.compute.note(self.under_way.pop_front().unwrap_or_default());
                    }
                    let status = (f.ggml_backend_graph_compute_async)(*backend, graph);
                    (f.ggml_backend_event_record)(event, *backend);
                    status
                }
            }
        };
        self.pieces += 1;
        match event {
            Some(_) => self.under_way.push_back(nodes),
            None => self.compute.note(nodes),
        }
        if status == 0 { Ok(()) } else { Err(status) }
    }

    /// Waits for what was enqueued.
    fn finish(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let _order = self.compute.heap.lock();
        // SAFETY: a stream of the library.
        unsafe { (self.compute.heap.library().functions.ggml_backend_synchronize)(self.compute.backend) };
        self.under_way.drain(..).for_each(|nodes| self.compute.note(nodes));
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.finish();
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

    fn run(&mut self, program: &Program) -> Result<Span> {
        let mut parts = program.lock();
        let engine = &self.engine;
        let compute = match self.compute.take() {
            Some(open) => open,
            None => engine.compute()?,
        };
        let compute = self.compute.insert(compute);
        let start = Instant::now();
        let version = program.version(&mut parts, &self.cancel)?;
        let mut run = compute.begin(&self.cancel);
        for piece in &version.pieces {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if piece.looks_at_values() {
                run.finish();
            }
            match program.prepare(version, piece, &engine.id, &self.cancel)? {
                Some(graph) => run.enqueue(graph, piece.count).map_err(|status| engine.failed(status))?,
                None => compute.note(piece.count),
            }
        }
        run.finish();
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
