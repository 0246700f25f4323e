//! A helper that runs: its socket, the calls that wait for answers, and its end.

use crate::calls::{Calls, HelperClient, InFlight, Reply, Waiting};
use crate::launch::Launch;
use crate::lock;
use crate::message::{self, Answer, Call, Done, Frame, Hello, Paid, Request, Response};
use crate::shared::{Lane, Lanes};
use bytes::Bytes;
use outboard_core::local::{Funds, Payment};
use outboard_core::{Error, Pending, Result};
use outboard_proto::error::shown;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Lines of its standard error that are kept, and bytes of one.
const LINES: usize = 6;
const LINE: usize = 300;
/// How often a wait looks whether it is still wanted. Answers wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// When a helper that has not said yet what it has is worth a line.
const SLOW_START: Duration = Duration::from_secs(5);
/// For the last lines of a helper that has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A helper. It is ended when this is dropped.
pub(crate) struct Process {
    inner: Arc<Inner>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

struct Inner {
    /// The device's id.
    name: String,
    hang: Duration,
    socket: UnixStream,
    lanes: Lanes,
    /// The helper has the memory of the lanes, too.
    shares_memory: AtomicBool,
    /// Whoever writes a frame has it.
    writing: Mutex<()>,
    child: Mutex<Child>,
    last: Mutex<VecDeque<String>>,
    calls: Mutex<Calls>,
    next: AtomicU64,
    progress: AtomicU64,
    free: AtomicU64,
    /// When it was heard last.
    heard: Mutex<Instant>,
    /// Why this process has ended it.
    killed: Mutex<Option<Killed>>,
    /// It has said what it has, and is needed: its end is news.
    is_needed: AtomicBool,
}

/// Why a helper was ended.
enum Killed {
    /// It was asked for something, and has said nothing for so long.
    Silence(Duration),
    /// Something else.
    Fault(String),
}

impl Process {
    /// Starts a helper, and gives the devices that it has. Errors are [`Error::Peer`] of this name.
    pub(crate) fn start(launch: &Launch, name: &str) -> Result<(Arc<Process>, Hello)> {
        let failed = |what: &str| {
            let (endpoint, what) = (name.to_owned(), what.to_owned());
            move |e: io::Error| Error::Peer { endpoint, detail: format!("its process cannot be {what}: {e}") }
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed("connected"))?;
        let reader = ours.try_clone().map_err(failed("connected"))?;
        ours.set_write_timeout(Some(launch.hang)).map_err(failed("connected"))?;
        let lanes = Lanes::offer(&ours).map_err(failed("connected"))?;
        let mut command = Command::new(&launch.program);
        command.args(&launch.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        // What is typed to end this process is not meant for it: it ends with this one.
        command.process_group(0);
        let mut child = command.spawn().map_err(failed("started"))?;
        // The other end is the helper's alone.
        drop(command);
        let stderr = child.stderr.take();
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            hang: launch.hang,
            socket: ours,
            lanes,
            shares_memory: AtomicBool::new(false),
            writing: Mutex::default(),
            child: Mutex::new(child),
            last: Mutex::default(),
            calls: Mutex::default(),
            next: AtomicU64::new(1),
            progress: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX),
            heard: Mutex::new(Instant::now()),
            killed: Mutex::default(),
            is_needed: AtomicBool::new(false),
        });
        let process = Arc::new(Process { inner: inner.clone() });
        let (listener, last_lines) = sync_channel(1);
        let lines = inner.clone();
        let thread = |name: &str| Builder::new().name(format!("{} {name}", inner.name));
        let spawned: io::Result<JoinHandle<()>> = thread("said").spawn(move || {
            stderr.into_iter().for_each(|stderr| lines.keep_lines(BufReader::new(stderr)));
            let _ = listener.send(());
        });
        spawned.map_err(failed("heard"))?;
        let (hello, greeted) = sync_channel(1);
        let reading = inner.clone();
        let read = move || {
            let why = reading.read_all(BufReader::with_capacity(64 << 10, reader), &hello);
            drop(hello);
            reading.end(why, &last_lines);
        };
        thread("answers").spawn(read).map_err(failed("heard"))?;
        let greeting = inner.greeting(&greeted, launch.start)?;
        inner.is_needed.store(true, Ordering::Relaxed);
        Ok((process, greeting))
    }

    /// The error of everything that lived in it, if it has ended.
    pub(crate) fn check(&self) -> Result<()> {
        lock(&self.inner.calls).ended.clone().map_or(Ok(()), Err)
    }

    /// Asks for something; the answer comes later.
    pub(crate) fn call(&self, request: Request, bytes: Bytes, in_flight: InFlight) -> Pending<Reply> {
        self.inner.call(request, &bytes, in_flight)
    }

    /// Asks for something and waits for the answer.
    pub(crate) fn ask(&self, request: Request) -> Result<Reply> {
        self.wait(self.call(request, Bytes::new(), InFlight::default()), None)
    }

    /// Asks for something that takes memory, so many bytes at least, and gives what was paid for it.
    pub(crate) fn ask_paid(
        &self,
        request: Request,
        payer: &Funds,
        client: &Arc<HelperClient>,
        least: u64,
    ) -> Result<Vec<Payment>> {
        let in_flight = InFlight { payer: Some(payer.clone()), client: Some(client.clone()), ..InFlight::default() };
        let Reply { payments, paid, .. } = self.wait(self.call(request, Bytes::new(), in_flight), None)?;
        if paid < least {
            return Err(Error::Misuse(format!(
                "{}: its process has paid for {paid} of {least} bytes",
                self.inner.name
            )));
        }
        Ok(payments)
    }

    /// Gives something back. It is paid for until the helper has it no more.
    pub(crate) fn give_back(&self, request: Request, payments: Vec<Payment>) {
        drop(self.call(request, Bytes::new(), InFlight { _keeps: vec![Arc::new(payments)], ..InFlight::default() }));
    }

    /// Says something that has no answer. What follows from it is found out by what is asked next.
    pub(crate) fn tell(&self, request: Request) {
        self.inner.write(&Call { id: 0, request: Some(request) }, &[]);
    }

    /// Waits for an answer until it is not wanted any more. A helper that says nothing for too long is ended, so that this ends.
    pub(crate) fn wait(&self, mut pending: Pending<Reply>, cancel: Option<&AtomicBool>) -> Result<Reply> {
        let start = Instant::now();
        loop {
            let is_wanted = !cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
            let time = if is_wanted { LOOK_AGAIN } else { Duration::ZERO };
            match pending.wait_more(time) {
                Some(reply) => return reply,
                None if !is_wanted => return Err(Error::Cancelled),
                None => self.look(start),
            }
        }
    }

    /// To be called now and then by whoever has waited since `start`: ends a helper that says nothing for too long, and finds out that one has ended
    /// whose socket others have.
    pub(crate) fn look(&self, start: Instant) {
        self.inner.end_if_silent(start);
        self.inner.look_whether_it_lives();
    }

    /// Changes while the device works.
    pub(crate) fn progress(&self) -> u64 {
        self.inner.progress.load(Ordering::Relaxed)
    }

    /// Bytes that its driver says are free.
    pub(crate) fn free(&self) -> u64 {
        self.inner.free.load(Ordering::Relaxed)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.inner.is_needed.store(false, Ordering::Relaxed);
        let _ = self.inner.socket.shutdown(Shutdown::Both);
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Killed::Silence(time) => write!(f, "it has said nothing for {:.0} s", time.as_secs_f64()),
            Killed::Fault(why) => f.write_str(why),
        }
    }
}

impl Inner {
    /// What it says first, within this time.
    fn greeting(&self, greeted: &Receiver<Result<Hello>>, most: Duration) -> Result<Hello> {
        let start = Instant::now();
        let mut is_slow = false;
        loop {
            match greeted.recv_timeout(LOOK_AGAIN) {
                Ok(greeting) => return greeting,
                Err(RecvTimeoutError::Disconnected) => return Err(self.until_ended()),
                Err(RecvTimeoutError::Timeout) => self.look_whether_it_lives(),
            }
            let took = start.elapsed();
            if took > most {
                self.kill(Killed::Fault(format!("in {:.0} s it has not said what it has", most.as_secs_f64())));
                return Err(self.until_ended());
            }
            if took > SLOW_START && !is_slow {
                is_slow = true;
                let [took, most] = [took, most].map(|time| time.as_secs());
                tracing::warn!("{}: its driver has not said for {took} s what it has; it is given {most} s", self.name);
            }
        }
    }

    fn call(&self, request: Request, bytes: &[u8], in_flight: InFlight) -> Pending<Reply> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (to, pending) = Pending::new(self.name.as_str());
        {
            let mut calls = lock(&self.calls);
            if let Some(ended) = calls.ended.clone() {
                drop(calls);
                to.complete(Err(ended));
                return pending;
            }
            calls.waiting.insert(id, Waiting { to, in_flight, payments: Vec::new(), paid: 0 });
        }
        self.write(&Call { id, request: Some(request) }, bytes);
        pending
    }

    /// Writes a frame. One that cannot be written whole ends the helper.
    fn write(&self, call: &Call, bytes: &[u8]) {
        let lane = if self.shares_memory.load(Ordering::Relaxed) { &self.lanes.out } else { &Lane::NONE };
        let written = Frame::new(lane, call, bytes).and_then(|frame| {
            let _whole = lock(&self.writing);
            frame.write(&mut &self.socket)
        });
        if let Err(e) = written {
            // That it has ended is known; that it does not read any more, or that a frame is too long, is not.
            if e.kind() != io::ErrorKind::BrokenPipe && e.kind() != io::ErrorKind::ConnectionReset {
                self.kill(Killed::Fault(format!("it does not take what it is given ({e})")));
            }
        }
    }

    /// Takes answers until there is no helper any more. Gives what else is known of why.
    fn read_all(&self, mut from: BufReader<UnixStream>, hello: &SyncSender<Result<Hello>>) -> Option<String> {
        loop {
            let (answer, bytes) = match message::read::<Answer>(&mut from, &self.lanes.back) {
                Ok(Some(frame)) => frame,
                Ok(None) => return None,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    return Some(format!("it said what cannot be understood ({e})"));
                }
                // Cut off in the middle of a frame, or before it had read what it was told: it has ended as well.
                Err(_) => return None,
            };
            // That something else takes memory of the card, or gives it back, is no sign of life.
            let is_news = match &answer.response {
                Some(Response::State(state)) => state.progress != self.progress.load(Ordering::Relaxed),
                _ => true,
            };
            if is_news {
                *lock(&self.heard) = Instant::now();
            }
            match answer.response {
                Some(Response::Hello(mut greeting)) => {
                    self.shares_memory.store(greeting.shares_memory, Ordering::Relaxed);
                    let refused = greeting.refused.take().map(message::error);
                    let _ = hello.try_send(refused.map_or(Ok(greeting), Err));
                }
                Some(Response::Done(done)) => self.answer(answer.id, Ok((done, bytes))),
                Some(Response::Failed(error)) => self.answer(answer.id, Err(message::error(error))),
                Some(Response::Pay(bytes)) => self.pay(answer.id, bytes),
                Some(Response::State(state)) => {
                    self.progress.store(state.progress, Ordering::Relaxed);
                    self.free.store(state.free, Ordering::Relaxed);
                }
                None => return Some("it said what this release does not know".into()),
            }
        }
    }

    fn answer(&self, id: u64, result: Result<(Done, Bytes)>) {
        let Some(Waiting { to, in_flight, payments, paid }) = lock(&self.calls).waiting.remove(&id) else { return };
        to.complete(result.map(|(done, bytes)| Reply { done, bytes, payments, paid, at: Instant::now() }));
        drop(in_flight);
    }

    /// Pays for what a call takes.
    fn pay(&self, id: u64, bytes: u64) {
        let mut calls = lock(&self.calls);
        let unknown = || Error::Misuse("memory for nobody".into());
        let paid = calls.waiting.get_mut(&id).ok_or_else(unknown).and_then(|waiting| {
            let payer = waiting.in_flight.payer.as_ref().ok_or_else(unknown)?;
            waiting.payments.push(payer.pay(bytes)?);
            waiting.paid = waiting.paid.saturating_add(bytes);
            Ok(())
        });
        drop(calls);
        let refused = paid.err().map(|error| outboard_proto::error::to_wire(&error));
        self.write(&Call { id, request: Some(Request::Paid(Paid { refused })) }, &[]);
    }

    /// Ends a helper that has been asked for something since `start` and has said nothing for too long.
    fn end_if_silent(&self, start: Instant) {
        let silent = start.elapsed().min(lock(&self.heard).elapsed());
        if silent > self.hang {
            self.kill(Killed::Silence(silent));
        }
    }

    /// Whoever it has started may keep its socket open, so that its end does not show there.
    fn look_whether_it_lives(&self) {
        if let Ok(Some(_)) = lock(&self.child).try_wait() {
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    fn kill(&self, why: Killed) {
        lock(&self.killed).get_or_insert(why);
        // It may have ended already.
        let _ = lock(&self.child).kill();
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// The helper has ended, or cannot be understood: everybody who waits is told.
    fn end(&self, why: Option<String>, last_lines: &Receiver<()>) {
        // One that still runs cannot be talked to any more.
        let _ = lock(&self.child).kill();
        let status = self.ended_within(LAST_LINES).filter(|_| why.is_none());
        let _ = last_lines.recv_timeout(LAST_LINES);
        let killed = lock(&self.killed).take();
        let silence = if let Some(Killed::Silence(time)) = killed { Some(time) } else { None };
        let why = killed.map(|killed| killed.to_string()).or(why);
        let detail = self.last_words(why, status);
        // Whoever has started one that says nothing, or needs it no more, knows.
        if self.is_needed.load(Ordering::Relaxed) {
            tracing::warn!("{}: {detail}", self.name);
        } else {
            tracing::debug!("{}: {detail}", self.name);
        }
        let error = Error::Peer { endpoint: self.name.clone(), detail };
        let waiting = {
            let mut calls = lock(&self.calls);
            calls.ended = Some(error.clone());
            std::mem::take(&mut calls.waiting)
        };
        if let Some(silence) = silence {
            let clients = waiting.values().filter_map(|waiting| waiting.in_flight.client.as_ref());
            clients.for_each(|client| client.has_hung(silence));
        }
        // Before anybody is told: what they had is paid for no longer.
        let (answers, kept): (Vec<_>, Vec<_>) =
            waiting.into_values().map(|w| (w.to, (w.in_flight, w.payments))).unzip();
        drop(kept);
        answers.into_iter().for_each(|to| to.complete(Err(error.clone())));
        // A driver may keep a process that was killed: nobody but this thread waits for that.
        while self.ended_within(LAST_LINES).is_none() {}
    }

    /// How it has ended, if it does so in this time.
    fn ended_within(&self, time: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + time;
        loop {
            match lock(&self.child).try_wait() {
                Ok(None) if Instant::now() < end => {}
                Ok(status) => return status,
                // It is waited for by nobody else.
                Err(_) => return Some(ExitStatus::default()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn last_words(&self, why: Option<String>, status: Option<ExitStatus>) -> String {
        let how = match (why, status) {
            (Some(why), _) => format!("its process was ended: {why}"),
            (None, Some(status)) => format!("its process has ended ({status})"),
            (None, None) => "its process has ended".into(),
        };
        let lines: Vec<String> = lock(&self.last).drain(..).collect();
        let words = if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) };
        format!("{how}, and what it held is lost{words}")
    }

    /// The error of its end, which comes.
    fn until_ended(&self) -> Error {
        // Its status and its last lines are waited for as long.
        let end = Instant::now() + 3 * LAST_LINES;
        loop {
            if let Some(error) = lock(&self.calls).ended.clone() {
                return error;
            }
            if Instant::now() > end {
                return Error::Peer { endpoint: self.name.clone(), detail: "its process has ended".into() };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn keep_lines(&self, mut from: impl BufRead) {
        let mut line = Vec::new();
        loop {
            line.clear();
            // A line without an end is cut.
            let read = io::Read::take(&mut from, 64 << 10).read_until(b'\n', &mut line);
            if !read.is_ok_and(|n| n > 0) {
                return;
            }
            let text = shown(String::from_utf8_lossy(&line).trim(), LINE);
            if text.is_empty() {
                continue;
            }
            tracing::debug!("{}: {text}", self.name);
            let mut last = lock(&self.last);
            if last.len() == LINES {
                last.pop_front();
            }
            last.push_back(text);
        }
    }
}
