//! A stream of commands on the card: a thread that does them in order, each some time after it was given. What was given behind a graph
//! that fails is done all the same, as on a card that has its commands already.

use crate::card::Card;
use crate::clock::Ticks;
use crate::memory::{CardExecutable, Tail, inner};
use bytes::Bytes;
use outboard_core::local::{Outcome, Span, Stream};
use outboard_core::{Error, Executable, Pending, Queue, Result, Slice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a wait looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

type Work = Box<dyn FnOnce(&mut Engine) + Send>;

/// The host's side.
pub(crate) struct CardStream {
    card: Arc<Card>,
    id: Arc<str>,
    work: Option<Sender<(Instant, Work)>>,
    thread: Option<JoinHandle<()>>,
}

/// The card's side.
struct Engine {
    card: Arc<Card>,
    /// The card's id, for errors.
    id: Arc<str>,
    cancel: Arc<AtomicBool>,
    /// What does the work; another one after a failure.
    queue: Option<Arc<dyn Queue>>,
}

impl CardStream {
    pub(crate) fn start(card: Arc<Card>, id: Arc<str>, cancel: Arc<AtomicBool>) -> Result<CardStream> {
        let (work, commands) = channel::<(Instant, Work)>();
        let mut engine = Engine { card: card.clone(), id: id.clone(), cancel, queue: None };
        let no_thread =
            |e| Error::Device { device: id.to_string(), op: None, detail: format!("no thread for its card: {e}") };
        let thread = std::thread::Builder::new().name(format!("{id} card")).spawn(move || engine.run(commands));
        Ok(CardStream { card, thread: Some(thread.map_err(no_thread)?), id, work: Some(work) })
    }

    /// Gives the card something to do.
    fn give<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<Outcome<T>> {
        let (to, done) = channel();
        let work: Work = Box::new(move |engine| {
            // Whoever waited may have gone.
            let _ = to.send(work(engine));
        });
        let gone = Error::Device { device: self.id.to_string(), op: None, detail: "its card has stopped".into() };
        let due = Instant::now() + self.card.latency;
        let given = self.work.as_ref().is_some_and(|sender| sender.send((due, work)).is_ok());
        if !given {
            return Err(gone);
        }
        Ok(Outcome::Later(Box::new(move |cancel| {
            loop {
                match done.recv_timeout(LOOK_AGAIN) {
                    Ok(result) => return result,
                    Err(RecvTimeoutError::Timeout) if cancel.load(Ordering::Relaxed) => return Err(Error::Cancelled),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Err(gone),
                }
            }
        })))
    }
}

impl Stream for CardStream {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        let (dst, keep) = (inner(dst)?, dst.clone());
        self.give(move |engine| {
            let done = engine.run_to_end(|queue| queue.write(&dst, data));
            drop(keep);
            done
        })
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        let (src, keep) = (inner(src)?, src.clone());
        self.give(move |engine| {
            let bytes = engine.wait_for(|queue| queue.read(&src));
            drop(keep);
            bytes
        })
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        let (from, to, keep) = (inner(src)?, inner(dst)?, [src.clone(), dst.clone()]);
        self.give(move |engine| {
            let done = engine.run_to_end(|queue| queue.copy(&from, &to));
            drop(keep);
            done
        })
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        let (dst, keep) = (inner(dst)?, dst.clone());
        self.give(move |engine| {
            let done = engine.run_to_end(|queue| queue.fill(&dst, value));
            drop(keep);
            done
        })
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let wrong = || Error::Misuse("a graph that was compiled for another kind of device".into());
        let compiled = executable.as_any().downcast_ref::<CardExecutable>().ok_or_else(wrong)?;
        let (graph, tails) = (compiled.inner.clone(), compiled.tails.clone());
        let keep = executable.clone();
        let clock = self.card.clock;
        let ran = self.give(move |engine| {
            let ran = engine.execute(&graph, &tails);
            drop(keep);
            ran
        })?;
        let to_host = move |(start, end): (Ticks, Ticks)| Span { start: clock.to_host(start), end: clock.to_host(end) };
        Ok(match ran {
            Outcome::Now(ticks) => Outcome::Now(to_host(ticks)),
            Outcome::Later(wait) => Outcome::Later(Box::new(move |cancel| wait(cancel).map(to_host))),
        })
    }

    fn reaches(&self, _: &Slice) -> bool {
        false
    }
}

impl Drop for CardStream {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Engine {
    fn run(&mut self, commands: Receiver<(Instant, Work)>) {
        for (due, work) in commands {
            while !self.cancel.load(Ordering::Relaxed)
                && let Some(left) = due.checked_duration_since(Instant::now())
            {
                std::thread::sleep(left.min(LOOK_AGAIN));
            }
            work(self);
        }
    }

    fn queue(&mut self) -> Result<&Arc<dyn Queue>> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        match &mut self.queue {
            Some(queue) => Ok(queue),
            none => Ok(none.insert(self.card.silicon.queue()?)),
        }
    }

    /// Gives the silicon a command and waits for it.
    fn run_to_end(&mut self, command: impl FnOnce(&Arc<dyn Queue>) -> Result<()>) -> Result<()> {
        self.wait_for(|queue| {
            command(queue)?;
            queue.marker()
        })
    }

    /// Gives the silicon a command and waits for its answer. A failure is told, whether it is found at once or later, and what comes behind
    /// it goes on.
    fn wait_for<T>(&mut self, command: impl FnOnce(&Arc<dyn Queue>) -> Result<Pending<T>>) -> Result<T> {
        let result = self.queue().and_then(command).and_then(|pending| self.look(pending));
        result.map_err(|error| {
            self.queue = None;
            self.mine(error)
        })
    }

    /// Waits for an answer, and looks now and then whether it is still wanted.
    fn look<T>(&self, mut pending: Pending<T>) -> Result<T> {
        loop {
            match pending.wait_more(LOOK_AGAIN) {
                Some(result) => return result,
                None if self.cancel.load(Ordering::Relaxed) => return Err(Error::Cancelled),
                None => {}
            }
        }
    }

    fn execute(&mut self, graph: &Arc<dyn Executable>, tails: &[Tail]) -> Result<(Ticks, Ticks)> {
        self.look_behind(tails)?;
        let start = self.card.clock.now();
        self.run_to_end(|queue| queue.execute(graph))?;
        Ok((start, self.card.clock.now()))
    }

    /// Reads what kernels of a card would read behind weights.
    fn look_behind(&mut self, tails: &[Tail]) -> Result<()> {
        let queue = self.queue()?;
        let read = tails.iter().map(|tail| queue.read(&tail.bytes)).collect::<Result<Vec<_>>>()?;
        for (Tail { weight, .. }, bytes) in tails.iter().zip(read) {
            if self.look(bytes)?.iter().any(|&byte| byte != 0) {
                let detail = "the bytes behind this weight are not zero".to_owned();
                return Err(Error::Device { device: self.id.to_string(), op: Some(weight.clone()), detail });
            }
        }
        Ok(())
    }

    /// An error of the silicon as one of the card.
    fn mine(&self, error: Error) -> Error {
        match error {
            Error::Device { op, detail, .. } => Error::Device { device: self.id.to_string(), op, detail },
            other => other,
        }
    }
}
