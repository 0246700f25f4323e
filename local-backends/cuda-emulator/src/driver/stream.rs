//! Streams: a thread each, which does commands in order while the caller goes on. Events are points on them, graphs are commands that
//! were captured instead of done.
use super::context::Context;
use super::copy::{self, End, Fill};
use super::launch::{self, Kernel};
use super::{Answer, Code, driver, lock, log};
use crate::exec::Random;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a wait looks whether its context has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A function of the program with its argument, which it vouches for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostCall {
    pub(super) call: extern "C" fn(*mut c_void),
    pub(super) data: usize,
}

/// What a stream does.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Kernel(Arc<Kernel>),
    Fill(Fill),
    Copy {
        to: End,
        from: End,
        bytes: u64,
    },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    /// Until another stream has done so many commands.
    After(Arc<Stream>, u64),
    Free(u64),
    Host(HostCall),
    Graph(Arc<Graph>),
}

/// A command of a graph, and those that must be done before it, by their places.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) command: Command,
    pub(super) behind: Vec<usize>,
}

/// Commands; once with a handle as it was made, once as instantiated. Those that were captured follow one another.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) handle: usize,
    pub(super) context: usize,
    pub(super) executable: bool,
    pub(super) nodes: Mutex<Vec<Node>>,
}

impl Graph {
    /// Its commands in an order, drawn by a seed, in which each is behind those that it must be behind.
    fn commands(&self, seed: u64) -> Vec<Command> {
        let nodes = lock(&self.nodes);
        let mut random = Random(seed);
        let mut waits: Vec<usize> = nodes.iter().map(|node| node.behind.len()).collect();
        let mut ready: Vec<usize> = (0..nodes.len()).filter(|&i| waits[i] == 0).collect();
        let mut after = vec![Vec::new(); nodes.len()];
        for (i, node) in nodes.iter().enumerate() {
            node.behind.iter().for_each(|&before| after[before].push(i));
        }
        let mut commands = Vec::with_capacity(nodes.len());
        while !ready.is_empty() {
            let next = ready.swap_remove((random.next() % ready.len() as u64) as usize);
            commands.push(nodes[next].command.clone());
            for &i in &after[next] {
                waits[i] -= 1;
                if waits[i] == 0 {
                    ready.push(i);
                }
            }
        }
        commands
    }
}

/// A capture under way; streams that wait for its events join it.
#[derive(Debug)]
pub(super) struct Capture {
    commands: Mutex<Vec<Command>>,
    invalid: Mutex<bool>,
    origin: usize,
}

#[derive(Debug, Default)]
struct EventState {
    /// How often it was recorded, and how often that came to pass.
    recorded: u64,
    completed: u64,
    at: Option<Instant>,
    capture: Option<Arc<Capture>>,
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) handle: usize,
    pub(super) context: usize,
    pub(super) timed: bool,
    state: Mutex<EventState>,
    changed: Condvar,
}

impl Event {
    pub(super) fn new(handle: usize, context: usize, timed: bool) -> Self {
        Self { handle, context, timed, state: Mutex::default(), changed: Condvar::new() }
    }

    fn complete(&self, version: u64) {
        let mut state = lock(&self.state);
        if version > state.completed {
            state.completed = version;
            state.at = Some(Instant::now());
        }
        self.changed.notify_all();
    }

    pub(super) fn is_complete(&self) -> bool {
        let state = lock(&self.state);
        state.completed >= state.recorded
    }

    /// When it came to pass; an error if it has not, or was never recorded.
    pub(super) fn time(&self) -> Answer<Instant> {
        let state = lock(&self.state);
        if state.completed < state.recorded {
            return Err(Code::NOT_READY);
        }
        state.at.ok_or(Code::INVALID_HANDLE)
    }

    /// Waits for what was recorded last.
    pub(super) fn wait(&self, context: &Context) -> Answer {
        let version = lock(&self.state).recorded;
        self.wait_for(version, || context.check().is_err());
        context.check()
    }

    fn wait_for(&self, version: u64, is_over: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        while state.completed < version && !is_over() {
            state = sleep(&self.changed, state);
        }
    }
}

fn sleep<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait_timeout(guard, LOOK).unwrap_or_else(PoisonError::into_inner).0
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Command>,
    submitted: u64,
    completed: u64,
    ending: bool,
    capture: Option<Arc<Capture>>,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) handle: usize,
    pub(super) context: Arc<Context>,
    /// It waits for the stream without a handle, and that one for it.
    blocking: bool,
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Stream {
    /// Another stream. Those with a handle are put into the table by who asks.
    pub(super) fn start(handle: usize, context: &Arc<Context>, blocking: bool) -> Answer<Arc<Self>> {
        let stream = Arc::new(Self::new(handle, context, blocking));
        stream.spawn()?;
        Ok(stream)
    }

    pub(super) fn new(handle: usize, context: &Arc<Context>, blocking: bool) -> Self {
        Self {
            handle,
            context: context.clone(),
            blocking,
            state: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::new(None),
        }
    }

    /// Starts its thread.
    pub(super) fn spawn(self: &Arc<Self>) -> Answer {
        let stream = self.clone();
        let thread = std::thread::Builder::new().name("cuda-stream".into()).spawn(move || stream.work());
        *lock(&self.thread) = Some(thread.map_err(|_| Code::OUT_OF_MEMORY)?);
        Ok(())
    }

    /// Lets it finish what it has; `wait` until its thread is over.
    pub(super) fn end(&self, wait: bool) {
        lock(&self.state).ending = true;
        self.changed.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|t| wait && t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn work(self: Arc<Self>) {
        loop {
            let mut state = lock(&self.state);
            while state.queue.is_empty() && !state.ending {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(command) = state.queue.pop_front() else { return };
            drop(state);
            if catch_unwind(AssertUnwindSafe(|| self.perform(&command))).is_err() {
                log("a command panicked: a fault of the emulator");
                self.context.fail(Code::UNKNOWN);
            }
            lock(&self.state).completed += 1;
            self.changed.notify_all();
        }
    }

    /// Does a command; after a fault only what others wait for.
    fn perform(&self, command: &Command) {
        let context = &self.context;
        let over = || context.check().is_err();
        match command {
            Command::Record(event, version) => event.complete(*version),
            Command::Free(address) => _ = driver().memory.free(*address, false),
            _ if over() => {}
            Command::Wait(event, version) => event.wait_for(*version, over),
            Command::After(stream, until) => stream.wait_until(*until, over),
            Command::Host(host) => (host.call)(host.data as *mut c_void),
            Command::Graph(graph) => graph.commands(launch::next_seed()).iter().for_each(|c| self.perform(c)),
            Command::Kernel(kernel) => self.keep(launch::perform(kernel, context)),
            Command::Fill(fill) => self.keep(copy::fill(fill)),
            Command::Copy { to, from, bytes } => self.keep(copy::copy(to, from, *bytes)),
        }
    }

    fn keep(&self, answer: Answer) {
        if let Err(code) = answer {
            self.context.fail(code);
        }
    }

    fn wait_until(&self, until: u64, is_over: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        while state.completed < until && !is_over() {
            state = sleep(&self.changed, state);
        }
    }

    /// Gives it a command, or adds it to the capture.
    pub(super) fn submit(self: &Arc<Self>, command: Command) -> Answer<u64> {
        if let Some(capture) = &lock(&self.state).capture {
            if *lock(&capture.invalid) {
                return Err(Code::STREAM_CAPTURE_INVALIDATED);
            }
            lock(&capture.commands).push(command);
            return Ok(0);
        }
        for before in self.implied() {
            self.enqueue(before);
        }
        Ok(self.enqueue(command))
    }

    fn enqueue(&self, command: Command) -> u64 {
        let mut state = lock(&self.state);
        state.queue.push_back(command);
        state.submitted += 1;
        self.changed.notify_all();
        state.submitted
    }

    /// What the stream without a handle and the others wait for of each other (CUDA, "legacy default stream").
    fn implied(self: &Arc<Self>) -> Vec<Command> {
        let pending = |stream: &Arc<Self>| {
            let state = lock(&stream.state);
            (state.completed < state.submitted).then(|| Command::After(stream.clone(), state.submitted))
        };
        if self.handle != 0 {
            let null = if self.blocking { self.context.existing_null() } else { None };
            return null.iter().filter_map(pending).collect();
        }
        let others = driver().streams.all();
        let others = others.iter().filter(|s| s.blocking && s.context.handle == self.context.handle);
        others.filter_map(pending).collect()
    }

    /// Waits until all is done that it was given.
    pub(super) fn synchronize(&self) -> Answer {
        self.not_capturing()?;
        let until = lock(&self.state).submitted;
        self.finish(until)
    }

    /// Waits until so many commands are done.
    pub(super) fn finish(&self, until: u64) -> Answer {
        self.wait_until(until, || self.context.check().is_err());
        self.context.check()
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.blocking
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.completed >= state.submitted
    }

    /// Records an event.
    pub(super) fn record(self: &Arc<Self>, event: &Arc<Event>) -> Answer {
        let capture = lock(&self.state).capture.clone();
        let mut state = lock(&event.state);
        state.capture.clone_from(&capture);
        if capture.is_some() {
            return Ok(());
        }
        state.recorded += 1;
        let version = state.recorded;
        drop(state);
        self.submit(Command::Record(event.clone(), version)).map(drop)
    }

    /// Waits for an event, and joins the capture that it was recorded in.
    pub(super) fn wait_event(self: &Arc<Self>, event: &Arc<Event>) -> Answer {
        let (version, capture) = {
            let state = lock(&event.state);
            (state.recorded, state.capture.clone())
        };
        match capture {
            Some(capture) => {
                lock(&self.state).capture = Some(capture);
                Ok(())
            }
            None => self.submit(Command::Wait(event.clone(), version)).map(drop),
        }
    }

    pub(super) fn is_capturing(&self) -> Option<bool> {
        lock(&self.state).capture.as_ref().map(|c| !*lock(&c.invalid))
    }

    /// An error if it captures; what was captured is worth nothing then.
    pub(super) fn not_capturing(&self) -> Answer {
        match &lock(&self.state).capture {
            None => Ok(()),
            Some(capture) => {
                *lock(&capture.invalid) = true;
                Err(Code::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    pub(super) fn begin_capture(&self) -> Answer {
        let mut state = lock(&self.state);
        if self.handle == 0 || state.capture.is_some() {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let capture = Capture { commands: Mutex::default(), invalid: Mutex::new(false), origin: self.handle };
        state.capture = Some(Arc::new(capture));
        Ok(())
    }

    /// Ends the capture that began here, of every stream that joined it.
    pub(super) fn end_capture(&self) -> Answer<Vec<Command>> {
        let capture = lock(&self.state).capture.clone().ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != self.handle {
            return Err(Code::ILLEGAL_STATE);
        }
        for stream in driver().streams.all() {
            let mut state = lock(&stream.state);
            if state.capture.as_ref().is_some_and(|c| Arc::ptr_eq(c, &capture)) {
                state.capture = None;
            }
        }
        if *lock(&capture.invalid) {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        Ok(std::mem::take(&mut lock(&capture.commands)))
    }
}
