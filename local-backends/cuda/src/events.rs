//! A stream of CUDA's, and events on it.

use crate::gpu::Gpu;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use outboard_core::{Error, Result, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Shortest and longest pause between two looks at an event. In between it is a part of the time that was waited, so that a wait is longer than
/// it must be by so much at most.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
const PART: u32 = 8;
/// Events that are kept for another time.
const KEPT: usize = 64;

/// A stream of CUDA's. Commands are given by one thread at a time.
#[derive(Debug)]
pub(crate) struct Timeline {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
    idle: Idle,
}

/// Events that wait to be used again, while there is a stream that they can be recorded on.
type Idle = Arc<Mutex<Option<Vec<Event>>>>;

// SAFETY: a handle that any thread may use.
unsafe impl Send for Timeline {}

/// An event of CUDA's.
#[derive(Debug)]
struct Event(sys::CUevent);

// SAFETY: a handle that any thread may use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// A point on a timeline.
#[derive(Debug)]
pub(crate) struct Mark {
    gpu: Arc<Gpu>,
    event: Option<Event>,
    idle: Idle,
}

impl Timeline {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Timeline> {
        gpu.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(|e| gpu.failed("no stream", e))?;
        Ok(Timeline { gpu: gpu.clone(), stream, idle: Arc::new(Mutex::new(Some(Vec::new()))) })
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Has what the stream is given from here on wait for a point on another one. A point of its own is behind it anyway.
    pub(crate) fn wait_for(&self, mark: &Mark) -> std::result::Result<(), DriverError> {
        match &mark.event {
            Some(event) if !Arc::ptr_eq(&self.idle, &mark.idle) => {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: an event and a stream of the same context.
                unsafe { result::stream::wait_event(self.stream, event.0, flags) }
            }
            _ => Ok(()),
        }
    }

    /// A point behind everything that the stream was given.
    pub(crate) fn mark(&mut self) -> Result<Arc<Mark>> {
        let event = match lock(&self.idle).as_mut().and_then(Vec::pop) {
            Some(event) => event,
            None => {
                let made = result::event::create(sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC);
                Event(made.map_err(|e| self.gpu.lost("no event", e))?)
            }
        };
        // From here on it is given back whatever happens.
        let mark = Mark { gpu: self.gpu.clone(), event: Some(event), idle: self.idle.clone() };
        // SAFETY: an event and a stream of the same context.
        let recorded = mark.event.as_ref().map(|event| unsafe { result::event::record(event.0, self.stream) });
        recorded.transpose().map_err(|e| self.gpu.lost("an event cannot be given", e))?;
        Ok(Arc::new(mark))
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let events = lock(&self.idle).take().unwrap_or_default();
        if self.gpu.enter().is_err() {
            // They end with the context.
            return;
        }
        // SAFETY: whoever drops it has waited for it; all are of this context.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            for event in events {
                let _ = result::event::destroy(event.0);
            }
        }
    }
}

impl Mark {
    /// Whether the device is there. An error if it will not be.
    pub(crate) fn is_reached(&self) -> Result<bool> {
        self.gpu.enter()?;
        let Some(event) = &self.event else { return Ok(true) };
        // SAFETY: an event of this context.
        match unsafe { result::event::query(event.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(self.gpu.lost("what it was given is not done", error)),
        }
    }

    /// Waits for it; [`Error::Cancelled`] when the flag is set. A device that hangs is given up.
    pub(crate) fn wait(&self, cancel: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        while !self.is_reached()? {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            self.gpu.check(begun)?;
            std::thread::sleep((begun.elapsed() / PART).clamp(PAUSES[0], PAUSES[1]));
        }
        self.gpu.health.goes_on();
        Ok(())
    }

    /// The time from here to a later point, both of which were reached.
    pub(crate) fn until(&self, later: &Mark) -> Option<Duration> {
        let (begin, end) = (self.event.as_ref()?, later.event.as_ref()?);
        self.gpu.enter().ok()?;
        // SAFETY: two events of this context.
        let milliseconds = unsafe { result::event::elapsed(begin.0, end.0) }.ok()?;
        Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        let mut idle = lock(&self.idle);
        // An event that is recorded anew forgets what it was recorded for.
        if let Some(idle) = idle.as_mut().filter(|idle| idle.len() < KEPT) {
            return idle.push(event);
        }
        drop(idle);
        if self.gpu.enter().is_ok() {
            // SAFETY: an event of this context, which nothing refers to any more.
            let _ = unsafe { result::event::destroy(event.0) };
        }
    }
}
