//! The one list of backends. Adding one is its crate, its entry here, and nothing else but the manifests: `-d`, local devices, `--list-devices`, the
//! conformance suite and `outboard smoke` go through this list.

use crate::MAX_THREADS;
use outboard_core::{Device, DeviceKind, Host, Result};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::sync::Arc;

/// What devices are made with.
pub(crate) struct Setup {
    pub(crate) host: Arc<Host>,
    /// The host's memory, which devices in it share.
    pub(crate) budget: Arc<MemoryBudget>,
    /// Threads of a CPU device that was given no number of its own.
    pub(crate) threads: usize,
}

/// Whether a device is one to run models on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Yes.
    Hardware,
    /// Only for who names it: a driver that runs on a processor, or a device for tests.
    Software,
}

/// A device of this machine that a backend could open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its number among those of its backend, `vulkan0`: it is opened once, and the backend's name alone means all of them. `None` for
    /// what is opened as often as one likes, `cpu:1,cpu:1`, and numbered in that order.
    pub(crate) number: Option<usize>,
    pub(crate) kind: DeviceKind,
    /// Identifies the hardware, such as the PCI address; empty if there is none.
    pub(crate) device_id: String,
    pub(crate) class: Class,
}

/// How a device is opened: what the backend has found, the name it gets, and the number behind the colon.
type Open = fn(&Setup, &Found, &str, Option<usize>) -> Result<Arc<dyn Device>>;

/// A backend as the list has it.
pub(crate) struct Backend {
    /// In front of numbers, on the command line.
    pub(crate) name: &'static str,
    /// In front of numbers, in names of devices.
    pub(crate) prefix: &'static str,
    /// What the number behind a colon is, and the largest one; `None` if there can be none.
    pub(crate) argument: Option<(&'static str, usize)>,
    /// What its devices do not support, as names of ops or of cases of the conformance suite, which fails for anything else.
    pub(crate) unsupported: &'static [&'static str],
    /// The devices that there are now.
    pub(crate) find: fn() -> Vec<Found>,
    pub(crate) open: Open,
}

/// All of them, the fastest first: hardware that two can drive is the first one's, unless the other is named.
pub(crate) const BACKENDS: &[Backend] = &[
    Backend {
        name: "cpu",
        prefix: "CPU",
        argument: Some(("THREADS", MAX_THREADS)),
        unsupported: &[],
        find: || vec![in_host_memory(Class::Hardware)],
        open: |setup, _, name, threads| {
            let options = CpuOptions::with_threads(threads.unwrap_or(setup.threads));
            Ok(cpu_device(&setup.host, name, options, &setup.budget))
        },
    },
    Backend {
        name: "reference",
        prefix: "REF",
        argument: None,
        unsupported: &[],
        find: || vec![in_host_memory(Class::Software)],
        open: |setup, _, name, _| Ok(reference_device(&setup.host, name, &setup.budget)),
    },
    Backend {
        name: "detached",
        prefix: "DETACHED",
        argument: None,
        unsupported: &[],
        find: || vec![Found { kind: DeviceKind::Accelerator, ..in_host_memory(Class::Software) }],
        open: |setup, _, name, _| Ok(detached_device(&setup.host, name, DetachedOptions::default())),
    },
];

/// The processors of this host.
fn in_host_memory(class: Class) -> Found {
    Found { number: None, kind: DeviceKind::Cpu, device_id: String::new(), class }
}
