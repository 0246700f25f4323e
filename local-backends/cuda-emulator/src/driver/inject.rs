//! Errors on demand: of a call, of a kernel, or a kernel that does not end.
use super::{Answer, Code, lock};
use std::sync::Mutex;

/// What becomes of a kernel that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelFault {
    /// It ends with this code, which its context keeps.
    Fails(Code),
    /// It runs until its context is destroyed.
    Hangs,
}

#[derive(Debug)]
struct Injection<T> {
    /// A call or a kernel; every one if empty.
    name: String,
    /// How many it lets pass first.
    after: u64,
    fault: T,
}

/// Faults that are still to come, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Injected {
    calls: Mutex<Vec<Injection<Code>>>,
    kernels: Mutex<Vec<Injection<KernelFault>>>,
}

fn due<T: Copy>(list: &Mutex<Vec<Injection<T>>>, name: &str) -> Option<T> {
    let mut list = lock(list);
    let mut found = None;
    list.retain_mut(|injection| {
        if !(injection.name.is_empty() || injection.name == name) {
            return true;
        }
        if injection.after > 0 {
            injection.after -= 1;
            return true;
        }
        if found.is_some() {
            return true;
        }
        found = Some(injection.fault);
        false
    });
    found
}

impl Injected {
    pub(crate) fn add_call(&self, name: String, after: u64, code: Code) {
        lock(&self.calls).push(Injection { name, after, fault: code });
    }

    pub(crate) fn add_kernel(&self, name: String, after: u64, fault: KernelFault) {
        lock(&self.kernels).push(Injection { name, after, fault });
    }

    /// Drops what has not come yet.
    pub(crate) fn clear(&self) {
        lock(&self.calls).clear();
        lock(&self.kernels).clear();
    }

    pub(super) fn call(&self, name: &str) -> Answer {
        due(&self.calls, name).map_or(Ok(()), Err)
    }

    pub(super) fn kernel(&self, name: &str) -> Option<KernelFault> {
        due(&self.kernels, name)
    }
}
