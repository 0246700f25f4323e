//! Contexts: what belongs together and ends together. A fault of a kernel stays with its context until that is destroyed.
use super::stream::Stream;
use super::{Answer, Code, driver, lock};
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct Context {
    pub(super) handle: usize,
    pub(super) device: usize,
    /// The error of a kernel, 0 if none.
    error: AtomicU32,
    /// It is destroyed: what runs in it ends.
    pub(super) abort: AtomicBool,
    pub(super) flags: AtomicU32,
    null: Mutex<Option<Arc<Stream>>>,
    /// Devices whose memory its kernels may address.
    pub(super) peers: Mutex<HashSet<usize>>,
}

thread_local! {
    /// Contexts of this thread; the last one is current.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    /// Another context of a device.
    pub(super) fn create(device: usize, flags: u32) -> Arc<Self> {
        driver().contexts.add(|handle| Self {
            handle,
            device,
            error: AtomicU32::new(0),
            abort: AtomicBool::new(false),
            flags: AtomicU32::new(flags),
            null: Mutex::new(None),
            peers: Mutex::new(HashSet::new()),
        })
    }

    /// The error that it keeps, or that it is no more.
    pub(super) fn check(&self) -> Answer {
        if self.abort.load(Ordering::Acquire) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        match self.error.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    pub(super) fn fail(&self, code: Code) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The stream that has no handle.
    pub(super) fn null(self: &Arc<Self>) -> Answer<Arc<Stream>> {
        let mut null = lock(&self.null);
        if let Some(stream) = &*null {
            return Ok(stream.clone());
        }
        let stream = Stream::start(0, self, true)?;
        *null = Some(stream.clone());
        Ok(stream)
    }

    pub(super) fn existing_null(&self) -> Option<Arc<Stream>> {
        lock(&self.null).clone()
    }

    /// Ends all that belongs to it.
    pub(super) fn destroy(self: &Arc<Self>) {
        let driver = driver();
        self.abort.store(true, Ordering::Release);
        let _ = driver.contexts.remove(self.handle);
        let mut streams = driver.streams.remove_all(|s| s.context.handle == self.handle);
        streams.extend(lock(&self.null).take());
        for stream in streams {
            stream.end(true);
        }
        driver.events.remove_all(|e| e.context == self.handle);
        for module in driver.modules.remove_all(|m| m.context == self.handle) {
            module.unload();
        }
        driver.functions.remove_all(|f| f.context == self.handle);
        driver.graphs.remove_all(|g| g.context == self.handle);
        driver.memory.free_all(self.handle);
    }
}

/// The context of this thread, without an error that it keeps.
pub(super) fn current() -> Answer<Arc<Context>> {
    let context = attached()?;
    context.check()?;
    Ok(context)
}

/// The context of this thread, whatever its state.
pub(super) fn attached() -> Answer<Arc<Context>> {
    let handle = CURRENT.with_borrow(|c| c.last().copied()).filter(|h| *h != 0).ok_or(Code::INVALID_CONTEXT)?;
    driver().contexts.get(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED)
}

/// The handle of the context of this thread, 0 if it has none.
pub(super) fn current_handle() -> usize {
    CURRENT.with_borrow(|c| c.last().copied()).unwrap_or(0)
}

/// Makes a context current, or none (0).
pub(super) fn set_current(handle: usize) -> Answer {
    if handle != 0 {
        driver().contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    }
    CURRENT.with_borrow_mut(|c| {
        c.pop();
        if handle != 0 {
            c.push(handle);
        }
    });
    Ok(())
}

pub(super) fn push(handle: usize) {
    CURRENT.with_borrow_mut(|c| c.push(handle));
}

pub(super) fn pop() -> Answer<usize> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)
}
