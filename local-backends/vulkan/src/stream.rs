//! What one queue gives to a GPU: copies and graphs, in order, each with a value on the stream's timeline.

use crate::commands::{Commands, Lane, Timeline, barrier, is_done, keep_until_done};
use crate::gpu::{Gpu, PUSH_BYTES};
use crate::launch::copy_pass;
use crate::memory::{buffer, handle};
use crate::program::{FAULT_BYTES, Program, dispatch, push};
use crate::staging::{Pool, Staging, Way};
use crate::timer::{Timer, Timers};
use ash::vk;
use bytes::Bytes;
use outboard_core::local::{Later, Outcome, Span, Stream};
use outboard_core::{DeviceKind, Error, Executable, Result, Slice, lock};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of a copy between host and device; longer ones are cut.
const COPY: u64 = 16 << 20;
/// Bytes from which on a copy between host and device goes to the queue for copies: of fewer, kernels behind them would wait longer for the other queue than for
/// the copy.
const LONG_COPY: u64 = 1 << 20;
/// Copies to the device that may be under way, so that host memory does not grow with what is written.
const COPIES: usize = 4;
/// Bytes from which on a kernel copies on the device: NVIDIA's own copies reach 850 GB/s of an H100, the kernel 2900 GB/s.
const COPY_BY_KERNEL: u64 = 64 << 10;
/// Command buffers of a graph that the device is given ahead. What is ahead cannot be stopped.
const PIECES_AHEAD: usize = 2;
/// Longest wait for what a dropped stream had given. A device that takes longer is taken to hang, and keeps what it may still use.
const LAST_WAIT: Duration = Duration::from_secs(30);

/// A pipeline with its workgroups, and its push constants.
type CopyKernel = ((vk::Pipeline, u64), [u8; PUSH_BYTES as usize]);

/// A queue's side of a GPU.
pub(crate) struct GpuStream {
    gpu: Arc<Gpu>,
    cancel: Arc<AtomicBool>,
    /// Nodes that the device has computed, for all streams.
    steps: Arc<AtomicU64>,
    parts: Option<Parts>,
}

/// What the device may still use.
struct Parts {
    commands: Commands,
    /// Of the queue for copies, once it was used.
    copies: Option<Commands>,
    timeline: Arc<Timeline>,
    /// The timeline's last value that was given, and which queue brings it.
    value: u64,
    lane: Lane,
    flight: Arc<Mutex<VecDeque<Flight>>>,
    /// Command buffers that are done.
    idle: Vec<(Lane, vk::CommandBuffer)>,
    staging: Pool,
    timers: Timers,
}

/// What of a graph is not known to be done.
struct Left {
    nodes: u64,
    /// The first piece.
    first: usize,
}

/// What is under way: until the timeline has the value, all of this is kept.
struct Flight {
    value: u64,
    commands: Option<(Lane, vk::CommandBuffer)>,
    staging: Option<Arc<Staging>>,
    timer: Option<Arc<Timer>>,
    keep: Vec<Box<dyn Any + Send>>,
}

// SAFETY: command buffers are used by the thread that has the stream, and may move with it.
unsafe impl Send for Parts {}

impl Parts {
    fn new(gpu: &Arc<Gpu>) -> Result<Parts> {
        Ok(Parts {
            commands: Commands::new(gpu, Lane::Compute)?,
            copies: None,
            timeline: Arc::new(Timeline::new(gpu)?),
            value: 0,
            lane: Lane::Compute,
            flight: Arc::default(),
            idle: Vec::new(),
            staging: Pool::default(),
            timers: Timers::default(),
        })
    }

    /// Whether all that was given is done.
    fn is_idle(&self) -> Result<bool> {
        Ok(self.timeline.reached()? >= self.value)
    }

    /// Takes back what the device is done with.
    fn collect(&mut self) -> Result<()> {
        let reached = self.timeline.reached()?;
        let mut flight = lock(&self.flight);
        while flight.front().is_some_and(|flight| flight.value <= reached) {
            let Some(done) = flight.pop_front() else { break };
            self.idle.extend(done.commands);
            if let Some(staging) = done.staging.and_then(Arc::into_inner) {
                self.staging.give_back(staging);
            }
            if let Some(timer) = done.timer.and_then(Arc::into_inner) {
                self.timers.give_back(timer);
            }
        }
        Ok(())
    }

    /// Records a command buffer that is used once, for a queue.
    fn record(
        &mut self,
        gpu: &Arc<Gpu>,
        lane: Lane,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<(Lane, vk::CommandBuffer)> {
        self.collect()?;
        if lane == Lane::Copies && self.copies.is_none() {
            self.copies = Some(Commands::new(gpu, lane)?);
        }
        let commands = match (lane, &self.copies) {
            (Lane::Copies, Some(copies)) => copies,
            _ => &self.commands,
        };
        let buffer = match self.idle.iter().position(|(of, _)| *of == lane) {
            Some(place) => self.idle.swap_remove(place).1,
            None => commands.buffer()?,
        };
        commands.record(buffer, vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT, record)?;
        Ok((lane, buffer))
    }

    /// Submits what was recorded to a queue, behind all that the stream has given before, and keeps what it uses. Returns the value that the timeline then gets.
    fn submit(&mut self, gpu: &Gpu, lane: Lane, recorded: &[vk::CommandBuffer], flight: Flight) -> Result<u64> {
        // A queue knows of its own.
        let behind = (lane != self.lane).then_some(self.value);
        gpu.submit(lane, recorded, (self.timeline.semaphore, self.value + 1), behind)?;
        self.value += 1;
        self.lane = lane;
        lock(&self.flight).push_back(Flight { value: self.value, ..flight });
        Ok(self.value)
    }

    /// Submits what was recorded to be used once.
    fn submit_once(&mut self, gpu: &Gpu, (lane, recorded): (Lane, vk::CommandBuffer), flight: Flight) -> Result<u64> {
        self.submit(gpu, lane, &[recorded], Flight { commands: Some((lane, recorded)), ..flight })
    }

    /// Waits for a value.
    fn wait<T: 'static>(&self, value: u64, then: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Outcome<T>> {
        self.wait_then(value, |reached| reached.and_then(|()| then()))
    }

    /// Waits for a value, or until it is known that it will not come.
    fn wait_then<T: 'static>(
        &self,
        value: u64,
        then: impl FnOnce(Result<()>) -> Result<T> + Send + 'static,
    ) -> Result<Outcome<T>> {
        let (timeline, flight) = (self.timeline.clone(), self.flight.clone());
        let wait: Later<T> = Box::new(move |cancel| {
            if let Err(error) = timeline.wait(value, cancel) {
                return then(Err(error));
            }
            // What it used is free now, not when the queue is given something else. It is dropped when the lock is.
            let done = |flight: &mut Flight| (flight.value <= value).then(|| std::mem::take(&mut flight.keep));
            let _done: Vec<_> = lock(&flight).iter_mut().filter_map(done).collect();
            then(Ok(()))
        });
        Ok(Outcome::Later(wait))
    }
}

fn keep(slices: &[&Slice]) -> Vec<Box<dyn Any + Send>> {
    slices.iter().map(|&slice| Box::new(slice.clone()) as Box<dyn Any + Send>).collect()
}

impl Flight {
    fn of(keep: Vec<Box<dyn Any + Send>>) -> Flight {
        Flight { value: 0, commands: None, staging: None, timer: None, keep }
    }
}

/// The queue for a part of a copy between host and device of so many bytes. What comes behind a long one goes the same way: the queue that computes would wait for it, and
/// with it everybody's kernels.
fn lane_of(gpu: &Gpu, last: Lane, whole: u64) -> Lane {
    let goes_there = whole >= LONG_COPY || last == Lane::Copies;
    if goes_there && gpu.has_copies() { Lane::Copies } else { Lane::Compute }
}

impl GpuStream {
    pub(crate) fn new(gpu: &Arc<Gpu>, cancel: Arc<AtomicBool>, steps: Arc<AtomicU64>) -> Result<GpuStream> {
        Ok(GpuStream { gpu: gpu.clone(), cancel, steps, parts: Some(Parts::new(gpu)?) })
    }

    fn parts(&mut self) -> Result<(&Arc<Gpu>, &mut Parts)> {
        let ended = || Error::Misuse("a stream that has ended".into());
        Ok((&self.gpu, self.parts.as_mut().ok_or_else(ended)?))
    }

    /// Gives a copy, or several, that use no memory of the host.
    fn give(&mut self, slices: &[&Slice], record: impl FnOnce(&ash::Device, vk::CommandBuffer)) -> Result<Outcome<()>> {
        let (gpu, parts) = self.parts()?;
        let commands = parts.record(gpu, Lane::Compute, record)?;
        let value = parts.submit_once(gpu, commands, Flight::of(keep(slices)))?;
        parts.wait(value, || Ok(()))
    }

    /// How a kernel copies one slice to another, with its push constants; `None` where the driver's own copy is used: for few bytes, for what
    /// is not of whole vectors, and by drivers on processors.
    fn copy_kernel(&self, src: &Slice, dst: &Slice) -> Result<Option<CopyKernel>> {
        let (from, to) = (buffer(src)?.address() + src.offset(), buffer(dst)?.address() + dst.offset());
        let is_whole = [from, to, src.len()].iter().all(|n| n.is_multiple_of(16));
        let vectors = u32::try_from(src.len() / 16).ok().filter(|vectors| *vectors <= u32::MAX / 2);
        let Some(vectors) = vectors.filter(|_| is_whole && src.len() >= COPY_BY_KERNEL) else { return Ok(None) };
        if self.gpu.physical.kind == DeviceKind::Cpu {
            return Ok(None);
        }
        let pass = copy_pass(vectors);
        let pipeline = self.gpu.pipelines.get(&pass.variant);
        let pipeline = pipeline.map_err(|e| self.gpu.failed("the driver cannot compile the kernel that copies", e))?;
        Ok(Some(((pipeline, pass.groups), push(from, to, vectors))))
    }

    /// Copies some bytes to a place, of so many that are written.
    fn write_part(&mut self, dst: &Slice, bytes: &[u8], whole: u64) -> Result<u64> {
        let to = handle(dst)?;
        let cancel = self.cancel.clone();
        let (gpu, parts) = self.parts()?;
        let with_staging = |flight: &&Flight| flight.staging.is_some();
        let oldest = lock(&parts.flight).iter().rev().filter(with_staging).nth(COPIES - 1).map(|flight| flight.value);
        if let Some(value) = oldest {
            parts.timeline.wait(value, &cancel)?;
        }
        parts.collect()?;
        let mut staging = parts.staging.take(gpu, bytes.len() as u64, Way::ToDevice)?;
        staging.write(bytes);
        let from = staging.handle();
        let region = vk::BufferCopy::default().dst_offset(dst.offset()).size(bytes.len() as u64);
        let commands = parts.record(gpu, lane_of(gpu, parts.lane, whole), |device, commands| {
            // SAFETY: two buffers of this device with these bytes, kept until it is done.
            unsafe { device.cmd_copy_buffer(commands, from, to, &[region]) };
        })?;
        parts.submit_once(gpu, commands, Flight { staging: Some(Arc::new(staging)), ..Flight::of(keep(&[dst])) })
    }

    /// Copies some bytes to memory of the host, of so many that are read.
    fn read_part(&mut self, src: &Slice, whole: u64) -> Result<(u64, Arc<Staging>)> {
        let from = handle(src)?;
        let (gpu, parts) = self.parts()?;
        parts.collect()?;
        let staging = Arc::new(parts.staging.take(gpu, src.len(), Way::FromDevice)?);
        let to = staging.handle();
        let region = vk::BufferCopy::default().src_offset(src.offset()).size(src.len());
        let lane = lane_of(gpu, parts.lane, whole);
        let commands = parts.record(gpu, lane, |device, commands| {
            // SAFETY: two buffers of this device with these bytes, kept until it is done.
            unsafe {
                device.cmd_copy_buffer(commands, from, to, &[region]);
                barrier(device, commands, lane);
            }
        })?;
        let flight = Flight { staging: Some(staging.clone()), ..Flight::of(keep(&[src])) };
        Ok((parts.submit_once(gpu, commands, flight)?, staging))
    }

    /// Gives the pieces of a graph, few of them ahead.
    fn give_pieces(&mut self, executable: &Arc<dyn Executable>, program: &Program) -> Result<Left> {
        let (cancel, steps) = (self.cancel.clone(), self.steps.clone());
        let (gpu, parts) = self.parts()?;
        let mut ahead = VecDeque::new();
        for (i, piece) in program.pieces.iter().enumerate() {
            if ahead.len() == PIECES_AHEAD
                && let Some((value, nodes)) = ahead.pop_front()
            {
                let waited = parts.timeline.wait(value, &cancel);
                waited.map_err(|error| program.blame(i - PIECES_AHEAD, error))?;
                steps.fetch_add(nodes, Ordering::Relaxed);
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            parts.collect()?;
            let kept: Box<dyn Any + Send> = Box::new(executable.clone());
            let given = parts.submit(gpu, Lane::Compute, &[piece.commands], Flight::of(vec![kept]));
            let value = given.map_err(|error| program.blame(i, error))?;
            ahead.push_back((value, piece.nodes));
        }
        let first = program.pieces.len() - ahead.len();
        Ok(Left { nodes: ahead.iter().map(|(_, nodes)| nodes).sum(), first })
    }

    /// Takes what kernels have found wrong out of the program, for the next run, and ends the run's time.
    fn end(
        &mut self,
        executable: &Arc<dyn Executable>,
        program: &Program,
        timer: Arc<Timer>,
    ) -> Result<(u64, Arc<Staging>)> {
        let fault = program.fault()?;
        let (gpu, parts) = self.parts()?;
        let staging = Arc::new(parts.staging.take(gpu, FAULT_BYTES as u64, Way::FromDevice)?);
        let (to, of) = (staging.handle(), timer.clone());
        let commands = parts.record(gpu, Lane::Compute, |device, commands| {
            // SAFETY: the fault lies at the beginning of its buffer, and there is room for it; all is kept until it is done.
            unsafe {
                of.end(device, commands);
                device.cmd_copy_buffer(commands, fault, to, &[vk::BufferCopy::default().size(FAULT_BYTES as u64)]);
                barrier(device, commands, Lane::Compute);
                device.cmd_fill_buffer(commands, fault, 0, FAULT_BYTES as u64, 0);
            }
        })?;
        let kept: Box<dyn Any + Send> = Box::new(executable.clone());
        let flight = Flight { staging: Some(staging.clone()), timer: Some(timer), ..Flight::of(vec![kept]) };
        Ok((parts.submit_once(gpu, commands, flight)?, staging))
    }

    /// Begins the time of a run.
    fn begin(&mut self) -> Result<Arc<Timer>> {
        let (gpu, parts) = self.parts()?;
        parts.collect()?;
        let timer = Arc::new(parts.timers.take(gpu)?);
        let of = timer.clone();
        let commands = parts.record(gpu, Lane::Compute, |device, commands| {
            // SAFETY: the command buffer is being recorded, and the timer is kept until it is done.
            unsafe { of.begin(device, commands) };
        })?;
        parts.submit_once(gpu, commands, Flight { timer: Some(timer.clone()), ..Flight::of(Vec::new()) })?;
        Ok(timer)
    }
}

impl Stream for GpuStream {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        if self.gpu.is_unified && self.gpu.health.end().is_none() && self.parts()?.1.is_idle()? {
            let to = buffer(dst)?;
            // SAFETY: the slice is of the buffer. What the stream has given before is done. Other queues of the same client may be at these bytes only if it has not
            // ordered them: then they are any bytes.
            if unsafe { to.write_at_once(dst.offset(), &data) } {
                return Ok(Outcome::Now(()));
            }
        }
        let mut value = 0;
        for (i, bytes) in data.chunks(COPY as usize).enumerate() {
            value = self.write_part(&dst.part(i as u64 * COPY, bytes.len() as u64)?, bytes, dst.len())?;
        }
        self.parts()?.1.wait(value, || Ok(()))
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        let (mut value, mut parts) = (0, Vec::new());
        for begin in (0..src.len()).step_by(COPY as usize) {
            let part = src.part(begin, COPY.min(src.len() - begin))?;
            let (of_part, staging) = self.read_part(&part, src.len())?;
            value = of_part;
            parts.push((staging, part.len() as usize));
        }
        let len = src.len() as usize;
        self.parts()?.1.wait(value, move || {
            if let [(staging, len)] = parts.as_slice() {
                return Ok(staging.read(*len).into());
            }
            let mut bytes = Vec::with_capacity(len);
            parts.iter().for_each(|(staging, len)| bytes.extend(staging.read(*len)));
            Ok(bytes.into())
        })
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        let (from, to) = (handle(src)?, handle(dst)?);
        if src.shares_buffer(dst) && src.offset() == dst.offset() {
            return self.give(&[], |_, _| {});
        }
        if let Some((kernel, push)) = self.copy_kernel(src, dst)? {
            let gpu = self.gpu.clone();
            return self.give(&[src, dst], |device, commands| {
                // SAFETY: two buffers of this device with these bytes, which do not overlap, kept until it is done.
                unsafe { dispatch(&gpu, device, commands, kernel, &push) };
            });
        }
        let region = vk::BufferCopy::default().src_offset(src.offset()).dst_offset(dst.offset()).size(src.len());
        self.give(&[src, dst], |device, commands| {
            // SAFETY: two buffers of this device with these bytes, which do not overlap, kept until it is done.
            unsafe { device.cmd_copy_buffer(commands, from, to, &[region]) };
        })
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        let to = handle(dst)?;
        // Vulkan fills whole words.
        let (begin, end) = (dst.offset().next_multiple_of(4), (dst.offset() + dst.len()) & !3);
        if begin >= end {
            return self.write(dst, vec![value; dst.len() as usize].into());
        }
        for (from, to) in [(dst.offset(), begin), (end, dst.offset() + dst.len())] {
            if from < to {
                let edge = dst.part(from - dst.offset(), to - from)?;
                self.write_part(&edge, &vec![value; edge.len() as usize], edge.len())?;
            }
        }
        self.give(&[dst], |device, commands| {
            // SAFETY: whole words of a buffer of this device, kept until it is done.
            unsafe { device.cmd_fill_buffer(commands, to, begin, end - begin, u32::from_ne_bytes([value; 4])) };
        })
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let wrong = || Error::Misuse("a graph that was compiled for another kind of device".into());
        let program = executable.as_any().downcast_ref::<Program>().ok_or_else(wrong)?;
        let submitted = Instant::now();
        let timer = self.begin()?;
        let given = self.give_pieces(executable, program);
        // Also of a run that was stopped: what its kernels have found wrong is not the next one's.
        let ended = self.end(executable, program, timer.clone());
        let left = given?;
        let (value, staging) = ended.map_err(|error| program.blame(left.first, error))?;
        let (executable, gpu, steps) = (executable.clone(), self.gpu.clone(), self.steps.clone());
        self.parts()?.1.wait_then(value, move |reached| {
            let program = executable.as_any().downcast_ref::<Program>().ok_or_else(wrong)?;
            reached.map_err(|error| program.blame(left.first, error))?;
            steps.fetch_add(left.nodes, Ordering::Relaxed);
            let words = staging.read(FAULT_BYTES).as_chunks::<4>().0.to_vec();
            let fault = [0, 1, 2, 3].map(|i| words.get(i).map_or(0, |word| u32::from_le_bytes(*word)));
            match program.fault_error(&gpu.id, fault) {
                Some(error) => Err(error),
                None => Ok(timer.span(&gpu, submitted)),
            }
        })
    }

    fn reaches(&self, _: &Slice) -> bool {
        false
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        if !is_done(&parts.timeline, parts.value, LAST_WAIT.min(self.gpu.health.patience())) {
            keep_until_done(&self.gpu, parts.timeline.clone(), parts.value, parts);
        }
    }
}
