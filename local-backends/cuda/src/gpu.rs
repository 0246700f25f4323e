//! A context of a card: its memory, its kernels, and whether it can be used.

use crate::card::{Card, Found, words};
use crate::events::Timeline;
use crate::kernels::{Function, Kernels, Variant};
use crate::peers::Peers;
use crate::reaper::{Context, Reaper};
use crate::recording::Recorded;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use outboard_core::local::CardHealth;
use outboard_core::{Error, MemoryInfo, Result, Slice, lock};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long an allocation waits for memory that others have given back.
const LONGEST_FREE: Duration = Duration::from_secs(2);
/// Bytes behind a buffer's end, so that none begins where another one ends.
const TAIL: u64 = 16;

/// A context of a card. What is of it keeps it; when nothing is left, it is freed, with whatever a fault had kept from being freed before.
pub(crate) struct Gpu {
    /// The id of the device, for errors.
    pub(crate) id: Arc<str>,
    pub(crate) card: Card,
    pub(crate) context: Context,
    reaper: Reaper,
    /// Contexts that it copies to.
    pub(crate) peers: Peers,
    kernels: Mutex<Kernels>,
    /// Kernels that graphs of the driver's have.
    pub(crate) recorded: Mutex<Recorded>,
    /// Floating-point operations of a millisecond, at most.
    pub(crate) flops_of_ms: u64,
    /// Pinned memory that nobody uses.
    pub(crate) pinned: Mutex<Vec<crate::pinned::Piece>>,
    /// Whether it is used. It is lost when its context has an error that it keeps.
    pub(crate) health: CardHealth,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Whether a context keeps an error (CUDA Driver API, CUresult: those that end the process's or context's work).
pub(crate) fn is_kept(error: CUresult) -> bool {
    matches!(error as u32, 214 | 220 | 700 | 702 | 709 | 710 | 714..=720 | 999)
}

impl Gpu {
    /// Opens a context of a card.
    pub(crate) fn open(found: &Found, id: &str, patience: Duration) -> Result<Arc<Gpu>> {
        let cannot = |why: String| Error::Device {
            device: id.to_owned(),
            op: None,
            detail: format!("it cannot be opened: {why}"),
        };
        let device = result::device::get(found.ordinal).map_err(|e| cannot(words(e)))?;
        // Threads that wait sleep.
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        let mut context = Context(std::ptr::null_mut());
        // The call that drivers of every version have.
        // SAFETY: a place for a context, and a device of the driver's.
        let made = unsafe { sys::cuCtxCreate_v2(&mut context.0, flags, device) }.result();
        made.map_err(|e| cannot(words(e)))?;
        let reaper = Reaper::start(context, id).map_err(|e| {
            // SAFETY: the context was just made, and nothing uses it.
            let _ = unsafe { sys::cuCtxDestroy_v2(context.0) };
            cannot(format!("no thread: {e}"))
        })?;
        Ok(Arc::new(Gpu {
            id: id.into(),
            card: found.card,
            context,
            reaper,
            peers: Peers::look(found.ordinal),
            kernels: Mutex::default(),
            recorded: Mutex::default(),
            flops_of_ms: found.flops_of_ms,
            pinned: Mutex::default(),
            health: CardHealth::new(patience),
        }))
    }

    fn error(&self, detail: String) -> Error {
        Error::Device { device: self.id.to_string(), op: None, detail }
    }

    /// A failed call as an error. A context that keeps its error stays lost.
    pub(crate) fn failed(&self, what: &str, error: DriverError) -> Error {
        if is_kept(error.0) {
            return self.lost(what, error);
        }
        self.error(format!("{what}: {}", words(error)))
    }

    /// The same of a call without which nobody knows any more when what was given is done: then nothing of the context may be freed but all of it.
    pub(crate) fn lost(&self, what: &str, error: DriverError) -> Error {
        let detail = format!("{what}: {}", words(error));
        self.health.lose(format!("its context has failed: {detail}"));
        self.error(detail)
    }

    /// Makes the context that of this thread. An error if it is not used any more.
    pub(crate) fn enter(&self) -> Result<()> {
        if let Some(why) = self.health.end() {
            return Err(self.error(format!("{why}; it is given nothing more")));
        }
        // SAFETY: the context lives as long as this.
        unsafe { result::ctx::set_current(self.context.0) }.map_err(|e| self.lost("its context", e))
    }

    /// An error if there is nothing to wait for any more: the context has failed, or nothing has come to an end for too long since the wait began,
    /// and it is given up.
    pub(crate) fn check(&self, waits_since: Instant) -> Result<()> {
        let given_up = || tracing::warn!("{}: it hangs, and is given up", self.id);
        self.health.check(waits_since, given_up).map_err(|detail| self.error(detail))
    }

    /// The card's memory, as its driver sees it.
    pub(crate) fn memory(&self) -> Result<MemoryInfo> {
        self.enter()?;
        let (free, total) = result::mem_get_info().map_err(|e| self.failed("its memory", e))?;
        Ok(MemoryInfo { total: total as u64, free: free as u64 })
    }

    /// The function of a variant; its module is loaded if it is the first.
    pub(crate) fn function(&self, variant: &Variant) -> Result<Function> {
        self.enter()?;
        let function = lock(&self.kernels).get(variant, self.card.capability);
        function.map_err(|e| self.failed(&format!("the driver cannot take its kernel {}", variant.entry), e))
    }

    /// Memory of zeros, of at least one byte.
    pub(crate) fn allocate(self: &Arc<Gpu>, size: u64) -> Result<Memory> {
        self.enter()?;
        let bytes = usize::try_from(size).ok().and_then(|size| size.checked_add(TAIL as usize));
        // SAFETY: the context of this thread is this one.
        let take = |bytes| unsafe { result::malloc_sync(bytes) };
        let mut taken = bytes.map_or(Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)), take);
        if matches!(taken, Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY))) && self.reaper.finish(LONGEST_FREE) {
            taken = bytes.map_or(taken, take);
        }
        let address = taken.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => self.out_of_memory(size),
            _ => self.failed("memory", error),
        })?;
        let memory = Memory { gpu: self.clone(), address };
        let mut timeline = Timeline::new(self)?;
        // SAFETY: memory of so many bytes that nothing else uses.
        let cleared = unsafe { result::memset_d8_async(address, 0, bytes.unwrap_or(0), timeline.stream()) };
        cleared.map_err(|e| self.failed("memory cannot be cleared", e))?;
        timeline.mark()?.wait(&AtomicBool::new(false))?;
        Ok(memory)
    }

    /// That there is no memory of this size.
    pub(crate) fn out_of_memory(&self, size: u64) -> Error {
        let free = self.memory().map_or(0, |memory| memory.free);
        Error::OutOfMemory { device: self.id.to_string(), needed: size, free }
    }

    /// Keeps memory of another context, which this one may still write to, until this one has ended.
    pub(crate) fn keep(&self, of_other: Slice) {
        self.reaper.keep(of_other);
    }

    /// Gives pinned memory back to the driver.
    pub(crate) fn free_host(&self, place: *mut u8) {
        self.reaper.free_host(place);
    }
}

/// Memory of a card.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) address: sys::CUdeviceptr,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // That of a context that was lost or given up is freed with it.
        if !self.gpu.health.is_over() {
            self.gpu.reaper.free(self.address);
        }
    }
}
