//! Handles: numbers that no two things ever share.
use super::{Answer, Code, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The next handle of any table. They look like pointers, and small ones are left to streams that have names.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()) }
    }
}

/// A handle that nothing has yet.
pub(super) fn fresh() -> usize {
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

impl<T> Table<T> {
    pub(super) fn add(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let handle = fresh();
        let entry = Arc::new(make(handle));
        lock(&self.entries).insert(handle, entry.clone());
        entry
    }

    pub(super) fn get(&self, handle: usize) -> Answer<Arc<T>> {
        lock(&self.entries).get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    pub(super) fn remove(&self, handle: usize) -> Answer<Arc<T>> {
        lock(&self.entries).remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Takes out all that a context had.
    pub(super) fn remove_all(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut entries = lock(&self.entries);
        let handles: Vec<usize> = entries.iter().filter(|(_, e)| which(e)).map(|(h, _)| *h).collect();
        handles.iter().filter_map(|h| entries.remove(h)).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.entries).values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.entries).len()
    }
}
