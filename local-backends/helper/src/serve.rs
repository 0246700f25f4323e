//! The helper's side: does what it is asked for on a device of its own, until the other side goes away.
//!
//! The thread that reads never waits: commands go to queues, which answer from their own threads, what may take long (memory,
//! compilation) to a thread that does one after the other, and answers to a thread that writes. So the other side can always write, whatever
//! it has to read.

use crate::launch::{Offer, Offers};
use crate::lock;
use crate::message::{
    self, Alloc, Answer, Call, Compile, Done, Frame, Hello, Offered, OpenStream, Paid, Request, Response, State, given,
};
use crate::shared::{Lane, Lanes};
use bytes::Bytes;
use outboard_core::device::{Client, Completer, MemoryAccount, MemoryShare, fresh_uid};
use outboard_core::{
    Buffer, Device, DeviceInfo, Error, Executable, MemoryInfo, Pending, Placement, Queue, Result, Slice,
};
use outboard_proto::device::{self, usage_from_name};
use outboard_proto::v1;
use outboard_proto::{error::to_wire, graph};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, getppid, kill_process};
use rustix::time::Timespec;
use std::collections::HashMap;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often the other side is told how the device is, if that changes.
const TELL: Duration = Duration::from_millis(100);
/// For the other side to pay: it looks at counters.
const PAYS: Duration = Duration::from_secs(60);

/// How often it is looked whether there still is another side.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// For what ends by itself when the other side has gone away.
const ENDS: Duration = Duration::from_secs(5);

/// From now on this process ends when the other side goes away, whatever its driver is at. To be called before one is opened: its initialisers may
/// hang, too.
///
/// # Errors
/// Standard input is none, or there is no thread for it.
pub fn end_with_the_other_side() -> io::Result<()> {
    let (socket, parent) = (io::stdin().as_fd().try_clone_to_owned()?, getppid());
    let watch = move || {
        // Linux tells that the other end has gone without being asked for it; where a system does not, this process has another parent then.
        let mut ends = [PollFd::new(&socket, PollFlags::empty())];
        while !poll(&mut ends, Some(&LOOK)).is_ok_and(|gone| gone > 0) && getppid() == parent {}
        std::thread::sleep(ENDS);
        // Not through the handlers of libraries, which may hang.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    Builder::new().name("other side".into()).spawn(watch).map(drop)
}

/// Serves the process that has started this one, over standard input: says what there is, and does what it is asked for on `device`, if there is
/// one, until the other side goes away. Does not return before.
///
/// # Errors
/// Standard input is no socket, or the other side cannot be understood.
pub fn serve(offers: Result<Offers>, device: Option<Arc<dyn Device>>) -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let lanes = Lanes::accept(&socket)?;
    let out = Out::start(socket.try_clone()?, lanes.out.clone())?;
    let shares_memory = lanes.is_there();
    let hello = match offers {
        Ok(Offers { devices, notes }) => {
            Hello { devices: devices.iter().map(offered).collect(), notes, ..Hello::default() }
        }
        Err(why) => Hello { refused: Some(to_wire(&why)), ..Hello::default() },
    };
    out.say(0, Response::Hello(Hello { shares_memory, ..hello }), Bytes::new());
    let mut from = BufReader::with_capacity(64 << 10, socket);
    let Some(device) = device else {
        // It was asked what there is, and nothing else.
        return message::read::<Call>(&mut from, &lanes.back).map(drop);
    };
    let helper = Helper::start(device, out)?;
    while let Some((call, bytes)) = message::read::<Call>(&mut from, &lanes.back)? {
        helper.take(call, bytes);
    }
    Ok(())
}

fn offered(offer: &Offer) -> Offered {
    let info = &offer.info;
    let memory = MemoryInfo { total: info.memory_total, free: info.memory_total };
    Offered { device: Some(device::to_wire(info, memory, Vec::new(), None)), software: offer.is_software }
}

/// The way to the other side, for any thread.
#[derive(Clone, Debug)]
struct Out(Sender<(Answer, Bytes)>);

impl Out {
    fn start(mut socket: UnixStream, lane: Lane) -> io::Result<Out> {
        let (sender, answers) = channel::<(Answer, Bytes)>();
        let write = move || {
            for (answer, bytes) in answers {
                // That the other side has gone, whoever reads finds out.
                if Frame::new(&lane, &answer, &bytes).and_then(|frame| frame.write(&mut socket)).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("answers".into()).spawn(write)?;
        Ok(Out(sender))
    }

    /// Gives an answer.
    fn say(&self, id: u64, response: Response, bytes: Bytes) {
        let _ = self.0.send((Answer { id, response: Some(response) }, bytes));
    }
}

struct Helper {
    out: Out,
    device: Arc<dyn Device>,
    /// The device as each client has it.
    contexts: Mutex<HashMap<u64, Arc<dyn Device>>>,
    buffers: Mutex<HashMap<u64, Arc<dyn Buffer>>>,
    executables: Mutex<HashMap<u64, Arc<dyn Executable>>>,
    streams: Mutex<HashMap<u64, Commands>>,
    account: Arc<Payer>,
    jobs: Sender<Job>,
}

/// What may take long.
enum Job {
    Do(u64, Request),
    /// What nobody refers to any more goes, and that is answered if somebody has asked.
    Drop(u64, Box<dyn Send>),
}

/// A stream.
enum Commands {
    Open {
        queue: Arc<dyn Queue>,
        /// How long its last graph took, in nanoseconds.
        took: Arc<AtomicU64>,
    },
    Ending(JoinHandle<()>),
}

/// Has memory paid for by the other side, for the call that the thread of jobs is at.
#[derive(Debug)]
struct Payer {
    out: Out,
    now: Mutex<Option<(u64, Option<Completer<()>>)>>,
}

impl Payer {
    /// Memory of what follows is that of this call.
    fn set(&self, call: Option<u64>) {
        *lock(&self.now) = call.map(|id| (id, None));
    }

    fn paid(&self, call: u64, refused: Option<v1::Error>) {
        let waiting = match &mut *lock(&self.now) {
            Some((id, waiting)) if *id == call => waiting.take(),
            _ => None,
        };
        if let Some(waiting) = waiting {
            waiting.complete(refused.map_or(Ok(()), |why| Err(message::error(why))));
        }
    }
}

impl MemoryAccount for Payer {
    fn take(&self, _: u64, _: &DeviceInfo, bytes: u64) -> Result<MemoryShare> {
        let (to, pending) = Pending::new("memory");
        let id = match &mut *lock(&self.now) {
            Some((id, waiting)) => {
                *waiting = Some(to);
                *id
            }
            None => return Ok(Box::new(())),
        };
        self.out.say(id, Response::Pay(bytes), Bytes::new());
        pending.wait(PAYS)?;
        Ok(Box::new(()))
    }
}

impl Helper {
    fn start(device: Arc<dyn Device>, out: Out) -> io::Result<Arc<Helper>> {
        let (jobs, todo) = channel();
        let helper = Arc::new(Helper {
            account: Arc::new(Payer { out: out.clone(), now: Mutex::default() }),
            out,
            device,
            contexts: Mutex::default(),
            buffers: Mutex::default(),
            executables: Mutex::default(),
            streams: Mutex::default(),
            jobs,
        });
        let worker = helper.clone();
        Builder::new().name("jobs".into()).spawn(move || worker.work(todo))?;
        let teller = helper.clone();
        Builder::new().name("state".into()).spawn(move || teller.tell_state())?;
        Ok(helper)
    }

    /// Tells how the device is, whenever that has changed.
    fn tell_state(&self) {
        let mut last = State::default();
        loop {
            let progress = self.device.progress().unwrap_or_default();
            let free = self.device.memory().map_or(last.free, |memory| memory.free);
            let state = State { progress, free };
            if state != last {
                self.out.say(0, Response::State(state.clone()), Bytes::new());
                last = state;
            }
            std::thread::sleep(TELL);
        }
    }

    fn post(&self, job: Job) {
        // The thread of jobs lives as long as this process.
        let _ = self.jobs.send(job);
    }

    /// Takes a call, without waiting for anything.
    fn take(self: &Arc<Self>, Call { id, request }: Call, bytes: Bytes) {
        let Some(request) = request else {
            return self.refuse(id, Error::Request("a call that this release does not know".into()));
        };
        let done = match request {
            Request::Supports(_) | Request::Alloc(_) | Request::Compile(_) => {
                return self.post(Job::Do(id, request));
            }
            Request::Open(context) => self.open(context),
            Request::Close(context) => {
                self.drop_later(id, lock(&self.contexts).remove(&context));
                Ok(())
            }
            Request::Free(buffer) => {
                self.drop_later(id, lock(&self.buffers).remove(&buffer));
                Ok(())
            }
            Request::Forget(executable) => {
                self.drop_later(id, lock(&self.executables).remove(&executable));
                Ok(())
            }
            Request::Stream(OpenStream { context, stream }) => self.open_stream(context, stream),
            Request::Cancel(stream) => self.cancel(stream),
            Request::End(stream) => self.end(id, stream),
            Request::Paid(Paid { refused }) => {
                self.account.paid(id, refused);
                Ok(())
            }
            Request::Write(part) => self.command(id, part.stream, |queue| queue.write(&self.slice(part.slice)?, bytes)),
            Request::Fill(fill) => {
                self.command(id, fill.stream, |queue| queue.fill(&self.slice(fill.slice)?, fill.value as u8))
            }
            Request::Copy(copy) => {
                self.command(id, copy.stream, |queue| queue.copy(&self.slice(copy.from)?, &self.slice(copy.to)?))
            }
            Request::Execute(run) => self.command(id, run.stream, |queue| {
                let executable = lock(&self.executables).get(&run.executable).cloned();
                queue.execute(&executable.ok_or_else(|| unknown("graph", run.executable))?)
            }),
            Request::Read(part) => self.read(id, part.stream, part.slice),
        };
        if let Err(error) = done {
            self.refuse(id, error);
        }
    }

    fn refuse(&self, id: u64, error: Error) {
        match id {
            // Nobody waits for an answer.
            0 => tracing::debug!("{error}"),
            _ => self.out.say(id, failed(error), Bytes::new()),
        }
    }

    fn drop_later<T: Send + 'static>(&self, id: u64, gone: Option<T>) {
        self.post(Job::Drop(id, Box::new(gone)));
    }

    fn open(&self, context: u64) -> Result<()> {
        let client = Client { turns: fresh_uid(), room: fresh_uid(), account: self.account.clone() };
        let device = self.device.for_client(client)?;
        lock(&self.contexts).insert(context, device);
        Ok(())
    }

    fn context(&self, id: u64) -> Result<Arc<dyn Device>> {
        lock(&self.contexts).get(&id).cloned().ok_or_else(|| unknown("context", id))
    }

    fn open_stream(&self, context: u64, stream: u64) -> Result<()> {
        let queue = self.context(context)?.queue()?;
        let took = Arc::new(AtomicU64::new(0));
        let last = took.clone();
        queue.set_trace(Box::new(move |event| {
            if event.what == "execute" {
                let nanos = event.end.saturating_duration_since(event.start).as_nanos();
                last.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        }))?;
        lock(&self.streams).insert(stream, Commands::Open { queue, took });
        Ok(())
    }

    /// The queue of a stream, and where its last time is.
    fn queue(&self, stream: u64) -> Result<(Arc<dyn Queue>, Arc<AtomicU64>)> {
        match lock(&self.streams).get(&stream) {
            Some(Commands::Open { queue, took }) => Ok((queue.clone(), took.clone())),
            Some(Commands::Ending(_)) => Err(Error::Cancelled),
            None => Err(unknown("stream", stream)),
        }
    }

    /// Enqueues a command that is answered when it is done.
    fn command(&self, id: u64, stream: u64, enqueue: impl FnOnce(&dyn Queue) -> Result<()>) -> Result<()> {
        let (queue, took) = self.queue(stream)?;
        enqueue(queue.as_ref())?;
        let out = self.out.clone();
        queue.marker()?.then(move |done| {
            let nanos = took.load(Ordering::Relaxed);
            let response = done.map_or_else(failed, |()| Response::Done(Done { nanos, ..Done::default() }));
            out.say(id, response, Bytes::new());
        });
        Ok(())
    }

    fn read(&self, id: u64, stream: u64, slice: Option<v1::Slice>) -> Result<()> {
        let (queue, _) = self.queue(stream)?;
        let out = self.out.clone();
        queue.read(&self.slice(slice)?)?.then(move |read| match read {
            Ok(bytes) => out.say(id, Response::Done(Done::default()), bytes),
            Err(error) => out.say(id, failed(error), Bytes::new()),
        });
        Ok(())
    }

    /// Ends a stream on a thread of its own: what runs may take some time to stop.
    fn cancel(&self, stream: u64) -> Result<()> {
        let mut streams = lock(&self.streams);
        if !matches!(streams.get(&stream), Some(Commands::Open { .. })) {
            return Ok(());
        }
        let open = streams.remove(&stream);
        let ending = Builder::new().name("ending".into()).spawn(move || drop(open));
        let ending = ending.map_err(|e| Error::Request(format!("no thread: {e}")))?;
        streams.insert(stream, Commands::Ending(ending));
        Ok(())
    }

    fn end(&self, id: u64, stream: u64) -> Result<()> {
        self.cancel(stream)?;
        let ending = match lock(&self.streams).remove(&stream) {
            Some(Commands::Ending(ending)) => ending,
            _ => return Err(unknown("stream", stream)),
        };
        let out = self.out.clone();
        let answer = move || {
            let _ = ending.join();
            out.say(id, Response::Done(Done::default()), Bytes::new());
        };
        let spawned = Builder::new().name("ended".into()).spawn(answer);
        spawned.map(drop).map_err(|e| Error::Request(format!("no thread: {e}")))
    }

    fn slice(&self, slice: Option<v1::Slice>) -> Result<Slice> {
        let v1::Slice { buffer, offset, len } = given(slice)?;
        let found = lock(&self.buffers).get(&buffer).cloned();
        Slice::new(found.ok_or_else(|| unknown("buffer", buffer))?, offset, len)
    }

    /// The thread of what may take long.
    fn work(&self, todo: Receiver<Job>) {
        for job in todo {
            match job {
                Job::Drop(id, gone) => {
                    drop(gone);
                    if id != 0 {
                        self.out.say(id, Response::Done(Done::default()), Bytes::new());
                    }
                }
                Job::Do(id, request) => {
                    let done = self.job(id, request);
                    self.out.say(id, done.map_or_else(failed, Response::Done), Bytes::new());
                }
            }
        }
    }

    fn job(&self, id: u64, request: Request) -> Result<Done> {
        match request {
            Request::Supports(graph) => {
                let supported = self.device.supports(&graph::decode(&graph)?)?.flags().to_vec();
                Ok(Done { supported, ..Done::default() })
            }
            Request::Alloc(Alloc { context, buffer, size, usage }) => {
                let context = self.context(context)?;
                let made = self.paid_by(id, || context.alloc(size, usage_from_name(&usage)))?;
                lock(&self.buffers).insert(buffer, made);
                Ok(Done::default())
            }
            Request::Compile(compile) => self.paid_by(id, || self.compile(compile)).map(|()| Done::default()),
            _ => Err(Error::Misuse("no job".into())),
        }
    }

    /// Memory that is taken here is that of a call.
    fn paid_by<T>(&self, call: u64, take: impl FnOnce() -> Result<T>) -> Result<T> {
        self.account.set(Some(call));
        let taken = take();
        self.account.set(None);
        taken
    }

    fn compile(&self, Compile { context, executable, graph, places }: Compile) -> Result<()> {
        let device = self.context(context)?;
        let graph = Arc::new(graph::decode(&graph)?);
        let place = |place: v1::Slice| if place.buffer == 0 { Ok(None) } else { self.slice(Some(place)).map(Some) };
        let places = places.into_iter().map(place).collect::<Result<_>>()?;
        let placement = Placement::new(&graph, device.as_ref(), places)?;
        let compiled = device.compile(graph, placement)?;
        lock(&self.executables).insert(executable, compiled);
        Ok(())
    }
}

fn failed(error: Error) -> Response {
    Response::Failed(to_wire(&error))
}

fn unknown(what: &str, id: u64) -> Error {
    Error::Request(format!("there is no {what} {id} in the helper"))
}
