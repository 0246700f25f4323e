//! What one queue gives to a card: copies and graphs, in order, each with an event behind it.

use crate::events::{Mark, Timeline};
use crate::gpu::Gpu;
use crate::memory::address;
use crate::peers::{self, Destination, PAUSE};
use crate::pinned::{LARGEST, Pinned, size_for};
use crate::program::Program;
use crate::record::FAULT_BYTES;
use bytes::Bytes;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUstream;
use outboard_core::local::{COPY_ENDS, Later, Outcome, Span, Stream};
use outboard_core::{Error, Executable, Result, Slice, lock};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Pieces of a read that are under way before the first of them is taken.
const PIECES_OF_READ: usize = 4;
/// Pinned memory that what is under way has, both ways: it does not grow with what is copied, and nobody pays for it.
const MOST_PINNED: usize = 8 * LARGEST;
/// Pieces of a graph that the device is given ahead. What is ahead cannot be stopped.
const PIECES_AHEAD: usize = 2;
/// Longest wait for what a dropped stream had given. A device that takes longer is taken to hang, and keeps what it may still use.
const LAST_WAIT: Duration = COPY_ENDS;

/// A queue's side of a card.
pub(crate) struct GpuStream {
    gpu: Arc<Gpu>,
    cancel: Arc<AtomicBool>,
    /// Nodes that the device has computed, for all streams.
    steps: Arc<AtomicU64>,
    parts: Option<Parts>,
}

/// What the device may still use.
struct Parts {
    timeline: Timeline,
    flight: Arc<Mutex<VecDeque<Flight>>>,
    /// When its queue was first found to be dropped while it copied to another context.
    given_up: Arc<OnceLock<Instant>>,
}

/// What a command uses.
#[derive(Default)]
struct Used {
    /// Memory of the host that it copies from or to.
    pinned: Option<Arc<Pinned>>,
    /// The piece of a graph that it is.
    piece: Option<(Arc<dyn Executable>, usize)>,
    _keep: Vec<Box<dyn Any + Send>>,
}

/// What is under way: until the mark is reached, all that it uses is kept.
struct Flight {
    mark: Arc<Mark>,
    used: Used,
}

impl Parts {
    fn new(gpu: &Arc<Gpu>) -> Result<Parts> {
        Ok(Parts { timeline: Timeline::new(gpu)?, flight: Arc::default(), given_up: Arc::default() })
    }

    /// Lets go what the device is done with.
    fn collect(&mut self) -> Result<()> {
        let mut done = Vec::new();
        let mut flight = lock(&self.flight);
        while let Some(first) = flight.front() {
            if !first.mark.is_reached()? {
                break;
            }
            done.extend(flight.pop_front());
        }
        // It is dropped when the lock is.
        drop(flight);
        Ok(())
    }

    /// Gives a command, behind which what it uses is kept. Returns the point at which it is done.
    fn give(
        &mut self,
        gpu: &Arc<Gpu>,
        used: Used,
        command: impl FnOnce(CUstream) -> std::result::Result<(), DriverError>,
    ) -> Result<Arc<Mark>> {
        let (mark, given) = self.try_give(gpu, used, command)?;
        given.map_err(|e| gpu.failed("it does not take a command", e))?;
        Ok(mark)
    }

    /// The same, with what the driver says of the command itself.
    fn try_give(
        &mut self,
        gpu: &Arc<Gpu>,
        used: Used,
        command: impl FnOnce(CUstream) -> std::result::Result<(), DriverError>,
    ) -> Result<(Arc<Mark>, std::result::Result<(), DriverError>)> {
        self.collect().and_then(|()| gpu.enter()).map_err(|error| blame(&self.flight, error))?;
        let given = command(self.timeline.stream());
        // Also of a command that failed: a part of it may have been given.
        let mark = self.timeline.mark()?;
        lock(&self.flight).push_back(Flight { mark: mark.clone(), used });
        Ok((mark, given))
    }

    /// Waits until there is room for a copy of so many bytes in pinned memory.
    fn make_room(&mut self, len: usize, cancel: &AtomicBool) -> Result<()> {
        loop {
            self.collect()?;
            let flight = lock(&self.flight);
            let pinned = flight.iter().filter_map(|flight| Some((flight.used.pinned.as_ref()?.size(), &flight.mark)));
            let (taken, oldest) =
                pinned.fold((0, None), |(sum, oldest), (size, mark)| (sum + size, oldest.or(Some(mark))));
            let Some(oldest) = oldest.filter(|_| taken + size_for(len) > MOST_PINNED).cloned() else { return Ok(()) };
            drop(flight);
            oldest.wait(cancel)?;
        }
    }

    /// The outcome that is there when a mark is reached, or when it is known that it will not be.
    fn later<T: 'static>(
        &self,
        mark: Arc<Mark>,
        then: impl FnOnce(Result<()>) -> Result<T> + Send + 'static,
    ) -> Outcome<T> {
        self.later_by(mark, Mark::wait, then)
    }

    /// The same, by another wait.
    fn later_by<T: 'static>(
        &self,
        mark: Arc<Mark>,
        wait: impl FnOnce(&Mark, &AtomicBool) -> Result<()> + Send + 'static,
        then: impl FnOnce(Result<()>) -> Result<T> + Send + 'static,
    ) -> Outcome<T> {
        let flight = self.flight.clone();
        let wait: Later<T> = Box::new(move |cancel| {
            if let Err(error) = wait(&mark, cancel) {
                return then(Err(blame(&flight, error)));
            }
            // What it used is free now, not when the queue is given something else. It is dropped when the lock is.
            let mut flight = lock(&flight);
            let here = flight.iter().position(|flight| Arc::ptr_eq(&flight.mark, &mark));
            let _done: Vec<_> = here.map(|here| flight.drain(..=here).collect()).unwrap_or_default();
            drop(flight);
            then(Ok(()))
        });
        Outcome::Later(wait)
    }
}

/// An error of the device with the name of what it was at: a context that fails says so to whoever asks first, if only for a copy.
fn blame(flight: &Mutex<VecDeque<Flight>>, error: Error) -> Error {
    let running = lock(flight).iter().find_map(|flight| flight.used.piece.clone());
    let Some((executable, piece)) = running else { return error };
    match executable.as_any().downcast_ref::<Program>() {
        Some(program) => program.blame(piece, error),
        None => error,
    }
}

impl Used {
    fn of(slices: &[&Slice]) -> Used {
        let keep = slices.iter().map(|&slice| Box::new(slice.clone()) as Box<dyn Any + Send>);
        Used { _keep: keep.collect(), ..Used::default() }
    }

    fn of_executable(executable: &Arc<dyn Executable>) -> Used {
        Used { _keep: vec![Box::new(executable.clone())], ..Used::default() }
    }

    fn of_piece(executable: &Arc<dyn Executable>, piece: usize) -> Used {
        Used { piece: Some((executable.clone(), piece)), ..Used::default() }
    }

    fn of_copy_to_peer(gpu: &Arc<Gpu>, src: &Slice, dst: &Slice) -> Used {
        Used { _keep: vec![Box::new(src.clone()), Box::new(Destination::new(gpu, dst))], ..Used::default() }
    }

    /// The same with memory that is copied from or to.
    fn with(self, pinned: Arc<Pinned>) -> Used {
        Used { pinned: Some(pinned), ..self }
    }
}

/// Bytes on their way from the device: where they lie when the mark is reached, and how many there are.
struct Coming {
    mark: Arc<Mark>,
    pinned: Arc<Pinned>,
    len: usize,
}

impl Coming {
    /// They; their mark was reached.
    fn bytes(&self) -> &[u8] {
        self.pinned.bytes(self.len)
    }
}

impl GpuStream {
    pub(crate) fn new(gpu: &Arc<Gpu>, cancel: Arc<AtomicBool>, steps: Arc<AtomicU64>) -> Result<GpuStream> {
        Ok(GpuStream { gpu: gpu.clone(), cancel, steps, parts: Some(Parts::new(gpu)?) })
    }

    fn parts(&mut self) -> Result<(&Arc<Gpu>, &mut Parts)> {
        let ended = || Error::Misuse("a stream that has ended".into());
        Ok((&self.gpu, self.parts.as_mut().ok_or_else(ended)?))
    }

    /// Gives a command that uses no memory of the host.
    fn give(
        &mut self,
        slices: &[&Slice],
        command: impl FnOnce(CUstream) -> std::result::Result<(), DriverError>,
    ) -> Result<Outcome<()>> {
        let (gpu, parts) = self.parts()?;
        let mark = parts.give(gpu, Used::of(slices), command)?;
        Ok(parts.later(mark, |reached| reached))
    }

    /// Copies straight into memory of another context.
    fn copy_to_peer(&mut self, src: &Slice, dst: &Slice, other: &Gpu) -> Result<Outcome<()>> {
        let (from, to, len) = (address(src)?, address(dst)?, src.len() as usize);
        let (gpu, parts) = self.parts()?;
        let (here, there) = (gpu.context.0, other.context.0);
        let used = Used::of_copy_to_peer(gpu, src, dst);
        let (mark, given) = parts.try_give(gpu, used, |stream| {
            peers::enable(gpu, other);
            // SAFETY: so many bytes of both, which are kept, with their contexts, until it is done.
            unsafe { result::memcpy_peer_async(there, to, here, from, len, stream) }
        })?;
        given.map_err(|e| peers::refused(gpu, other, e))?;
        let given_up = parts.given_up.clone();
        Ok(parts.later_by(mark, move |mark, cancel| peers::wait_for_end(mark, cancel, &given_up), |done| done))
    }

    /// Copies some bytes to a place.
    fn write_part(&mut self, dst: &Slice, bytes: &[u8]) -> Result<Arc<Mark>> {
        let to = address(dst)?;
        let cancel = self.cancel.clone();
        let (gpu, parts) = self.parts()?;
        parts.make_room(bytes.len(), &cancel)?;
        let mut pinned = Pinned::take(gpu, bytes.len())?;
        pinned.write(bytes);
        let pinned = Arc::new(pinned);
        parts.give(gpu, Used::of(&[dst]).with(pinned.clone()), |stream| {
            // SAFETY: so many bytes of both, which are kept until it is done.
            unsafe { result::memcpy_htod_async(to, pinned.bytes(bytes.len()), stream) }
        })
    }

    /// Copies some bytes to memory of the host.
    fn read_part(&mut self, src: &Slice) -> Result<Coming> {
        let (from, len) = (address(src)?, src.len() as usize);
        let cancel = self.cancel.clone();
        let (gpu, parts) = self.parts()?;
        parts.make_room(len, &cancel)?;
        coming(gpu, parts, Used::of(&[src]), from, len)
    }

    /// Gives the pieces of a graph, few of them ahead. Returns the number of nodes that are not known to be done.
    fn give_pieces(&mut self, executable: &Arc<dyn Executable>, program: &Program) -> Result<u64> {
        let (cancel, steps) = (self.cancel.clone(), self.steps.clone());
        let (gpu, parts) = self.parts()?;
        let mut ahead: VecDeque<(Arc<Mark>, u64)> = VecDeque::new();
        for (i, piece) in program.pieces.iter().enumerate() {
            if ahead.len() == PIECES_AHEAD
                && let Some((mark, nodes)) = ahead.pop_front()
            {
                mark.wait(&cancel).map_err(|error| program.blame(i - PIECES_AHEAD, error))?;
                steps.fetch_add(nodes, Ordering::Relaxed);
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            // SAFETY: this thread has entered the context of the program, which is kept until it is done.
            let give = |stream| unsafe { program.give(gpu, piece, stream) };
            let given = parts.give(gpu, Used::of_piece(executable, i), give);
            ahead.push_back((given.map_err(|error| program.blame(i, error))?, piece.nodes()));
        }
        Ok(ahead.iter().map(|(_, nodes)| nodes).sum())
    }

    /// Takes what kernels have found wrong out of the device, for the next run, which begins behind that.
    fn end(&mut self, executable: &Arc<dyn Executable>, program: &Program) -> Result<(Coming, Arc<Mark>)> {
        let fault = program.fault();
        let (gpu, parts) = self.parts()?;
        let coming = coming(gpu, parts, Used::of_executable(executable), fault, FAULT_BYTES);
        let cleared = parts.give(gpu, Used::of_executable(executable), |stream| {
            // SAFETY: memory of the program's, which is kept until it is done.
            unsafe { result::memset_d8_async(fault, 0, FAULT_BYTES, stream) }
        });
        // Without a mark the context is lost, or this is all that failed: then what was given has a mark of its own.
        let end = match &cleared {
            Ok(mark) => Ok(mark.clone()),
            Err(error) => parts.timeline.mark().map_err(|_| error.clone()),
        }?;
        program.ends(&end);
        cleared?;
        Ok((coming?, end))
    }
}

/// Copies some bytes from the device.
fn coming(gpu: &Arc<Gpu>, parts: &mut Parts, used: Used, from: u64, len: usize) -> Result<Coming> {
    let pinned = Arc::new(Pinned::take(gpu, len)?);
    let mark = parts.give(gpu, used.with(pinned.clone()), |stream| {
        // SAFETY: so many bytes of both, which are kept until it is done; nobody reads them before.
        unsafe { result::memcpy_dtoh_async(pinned.room(len), from, stream) }
    })?;
    Ok(Coming { mark, pinned, len })
}

impl Stream for GpuStream {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        let mut last = None;
        for (i, bytes) in data.chunks(LARGEST).enumerate() {
            last = Some(self.write_part(&dst.part((i * LARGEST) as u64, bytes.len() as u64)?, bytes)?);
        }
        let Some(mark) = last else { return Ok(Outcome::Now(())) };
        Ok(self.parts()?.1.later(mark, |reached| reached))
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        let cancel = self.cancel.clone();
        let (mut coming, mut bytes) = (VecDeque::<Coming>::new(), Vec::new());
        for begin in (0..src.len()).step_by(LARGEST) {
            if coming.len() == PIECES_OF_READ
                && let Some(first) = coming.pop_front()
            {
                first.mark.wait(&cancel)?;
                bytes.extend_from_slice(first.bytes());
            }
            let part = src.part(begin, (LARGEST as u64).min(src.len() - begin))?;
            coming.push_back(self.read_part(&part)?);
        }
        let Some(mark) = coming.back().map(|last| last.mark.clone()) else { return Ok(Outcome::Now(Bytes::new())) };
        Ok(self.parts()?.1.later(mark, move |reached| {
            reached?;
            coming.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
            Ok(bytes.into())
        }))
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        if let Some(other) = peers::other_context(&self.gpu, dst) {
            return self.copy_to_peer(src, dst, other);
        }
        let (from, to, len) = (address(src)?, address(dst)?, src.len() as usize);
        self.give(&[src, dst], |stream| {
            if from == to {
                return Ok(());
            }
            // SAFETY: so many bytes of this device, which do not overlap, kept until it is done.
            unsafe { result::memcpy_dtod_async(to, from, len, stream) }
        })
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        let (to, len) = (address(dst)?, dst.len() as usize);
        // SAFETY: bytes of this device, kept until it is done.
        self.give(&[dst], |stream| unsafe { result::memset_d8_async(to, value, len, stream) })
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let wrong = || Error::Misuse("a graph that was compiled for another kind of device".into());
        let program = executable.as_any().downcast_ref::<Program>().ok_or_else(wrong)?;
        let submitted = Instant::now();
        let alone = program.alone(&self.cancel)?;
        let (gpu, parts) = self.parts()?;
        if let Some(last) = &alone.last {
            parts.timeline.wait_for(last).map_err(|e| gpu.failed("it cannot wait for another queue", e))?;
        }
        let begin = parts.give(gpu, Used::default(), |_| Ok(()))?;
        let given = self.give_pieces(executable, program);
        // Also of a run that was stopped: what its kernels have found wrong is not the next one's.
        let ended = self.end(executable, program);
        drop(alone);
        let left = given?;
        let (end, last) = ended?;
        let (executable, gpu, steps) = (executable.clone(), self.gpu.clone(), self.steps.clone());
        Ok(self.parts()?.1.later(last.clone(), move |reached| {
            let program = executable.as_any().downcast_ref::<Program>().ok_or_else(wrong)?;
            reached?;
            program.ended(&last);
            steps.fetch_add(left, Ordering::Relaxed);
            let words = end.bytes().as_chunks::<4>().0;
            let fault = [0, 1, 2, 3].map(|i| words.get(i).map_or(0, |word| u32::from_le_bytes(*word)));
            match program.fault_error(&gpu.id, fault) {
                Some(error) => Err(error),
                None => Ok(span(submitted, begin.until(&end.mark))),
            }
        }))
    }

    fn reaches(&self, dst: &Slice) -> bool {
        peers::reaches(&self.gpu, dst)
    }

    fn has_peers(&self) -> bool {
        self.gpu.peers.are_there()
    }
}

/// From when to when a graph ran, which was given then and is done now. Only the length is the device's: its clock is not the host's.
fn span(submitted: Instant, length: Option<Duration>) -> Span {
    let now = Instant::now();
    let Some(length) = length else { return Span { start: submitted, end: now } };
    let start = now.checked_sub(length).map_or(submitted, |start| start.max(submitted));
    Span { start, end: (start + length).min(now) }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        let begun = Instant::now();
        let waited = parts.given_up.get().map_or(Duration::ZERO, Instant::elapsed);
        if is_done(&self.gpu, &mut parts, begun, LAST_WAIT.saturating_sub(waited)) {
            return;
        }
        tracing::warn!("{}: it does not end what it was given; its memory is kept until it does", self.gpu.id);
        // Where no thread can be had, for good.
        let parts = std::mem::ManuallyDrop::new(parts);
        let gpu = self.gpu.clone();
        let keep = move || {
            let mut parts = parts;
            while !is_done(&gpu, &mut parts, begun, LAST_WAIT) {}
            drop(std::mem::ManuallyDrop::into_inner(parts));
        };
        let _ = std::thread::Builder::new().name("what a queue has left".into()).spawn(keep);
    }
}

/// Whether the device uses nothing of it any more, known after this time at most. Of a context that has failed or hangs nothing is freed singly.
fn is_done(gpu: &Gpu, parts: &mut Parts, since: Instant, limit: Duration) -> bool {
    let begun = Instant::now();
    loop {
        if parts.collect().is_ok() && lock(&parts.flight).is_empty() || gpu.check(since).is_err() {
            return true;
        }
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}
