//! The one list of backends. Adding one is its crate, its entry here, and nothing else but the manifests: `-d`, local devices, `--list-devices`, the
//! conformance suite and `outboard smoke` go through this list.

use crate::MAX_THREADS;
use outboard_core::{Device, DeviceKind, Error, Host, Result};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_cuda::cuda_device;
use outboard_detached::{DetachedOptions, detached_device};
use outboard_ggml::Difference;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_vulkan::{OpenOptions, vulkan_device};
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
    /// Its name among those of its backend, behind the colon: `ggml:Vulkan0`. Empty where numbers tell them apart.
    pub(crate) label: String,
    pub(crate) kind: DeviceKind,
    /// Identifies the hardware, such as the PCI address; empty if there is none.
    pub(crate) device_id: String,
    pub(crate) class: Class,
}

/// What can stand behind a backend's name and a colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// Nothing.
    None,
    /// A number: what it is, and the largest one.
    Number(&'static str, usize),
    /// The label of a device. Without one, all of its hardware is meant.
    Label,
}

/// How a device is opened: what the backend has found, the name it gets, and the number behind the colon.
type Open = fn(&Setup, &Found, &str, Option<usize>) -> Result<Arc<dyn Device>>;

/// A backend as the list has it.
pub(crate) struct Backend {
    /// In front of numbers, on the command line.
    pub(crate) name: &'static str,
    /// In front of numbers, in names of devices.
    pub(crate) prefix: &'static str,
    /// What can stand behind a colon.
    pub(crate) argument: Argument,
    /// What a device of this kind and label does not support, and computes otherwise: the conformance suite fails for anything else.
    pub(crate) known: fn(DeviceKind, &str) -> Known,
    pub(crate) looked_for: LookedFor,
    /// What helps where it has no devices.
    pub(crate) without: fn() -> String,
    /// The devices that there are now.
    pub(crate) find: fn() -> Vec<Found>,
    pub(crate) open: Open,
}

/// When a backend's devices are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedFor {
    /// Its hardware is used where nobody says what to use.
    Always,
    /// Nothing looks for it until somebody says what to use.
    WhenNamed,
    /// The same, and people are not told of it.
    ByTests,
}

/// What is known of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// What it does not support, as names of ops or of cases of the conformance suite.
    pub unsupported: &'static [&'static str],
    /// What it computes otherwise than the reference.
    pub differs: &'static [Difference],
}

/// All of them: hardware that two can drive is the first one's, unless the other is named.
pub(crate) const BACKENDS: &[Backend] = &[
    Backend {
        name: "cpu",
        prefix: "CPU",
        argument: Argument::Number("THREADS", MAX_THREADS),
        looked_for: LookedFor::Always,
        known: |_, _| Known::default(),
        without: String::new,
        find: || vec![in_host_memory(Class::Hardware)],
        open: |setup, _, name, threads| {
            let options = CpuOptions::with_threads(threads.unwrap_or(setup.threads));
            Ok(cpu_device(&setup.host, name, options, &setup.budget))
        },
    },
    Backend {
        name: "reference",
        prefix: "REF",
        argument: Argument::None,
        looked_for: LookedFor::ByTests,
        known: |_, _| Known::default(),
        without: String::new,
        find: || vec![in_host_memory(Class::Software)],
        open: |setup, _, name, _| Ok(reference_device(&setup.host, name, &setup.budget)),
    },
    Backend {
        name: "detached",
        prefix: "DETACHED",
        argument: Argument::None,
        looked_for: LookedFor::ByTests,
        known: |_, _| Known::default(),
        without: String::new,
        find: || vec![Found { kind: DeviceKind::Accelerator, ..in_host_memory(Class::Software) }],
        open: |setup, _, name, _| Ok(detached_device(&setup.host, name, DetachedOptions::default())),
    },
    Backend {
        name: "cuda",
        prefix: "CUDA",
        argument: Argument::None,
        looked_for: LookedFor::Always,
        known: |_, _| Known { unsupported: outboard_cuda::UNSUPPORTED, differs: &[] },
        without: || {
            "; CUDA needs NVIDIA's driver of release 535 or later, and a card of compute capability 6.1: RUST_LOG=debug says what is missing".into()
        },
        find: || outboard_cuda::find().iter().map(of_cuda).collect(),
        open: |setup, found, name, _| {
            let gone = || Error::Misuse(format!("{name} is not among CUDA's devices any more"));
            let of_cuda = outboard_cuda::find().iter().find(|device| Some(device.number) == found.number);
            Ok(cuda_device(&setup.host, of_cuda.ok_or_else(gone)?, name, &outboard_cuda::OpenOptions::default())?)
        },
    },
    Backend {
        name: "ggml",
        prefix: "ggml",
        argument: Argument::Label,
        looked_for: LookedFor::Always,
        known: |kind, label| {
            let outboard_ggml::Known { unsupported, differs } = outboard_ggml::known(kind, label);
            Known { unsupported, differs }
        },
        without: || {
            let else_name = format!("name the folder of libggml-base with --ggml or {}", outboard_ggml::VARIABLE);
            format!("; {}", outboard_ggml::why_none(&else_name))
        },
        find: || outboard_ggml::find().iter().enumerate().map(of_ggml).collect(),
        open: |setup, found, name, _| {
            let gone = || Error::Misuse(format!("{name} is not among ggml's devices any more"));
            Ok(outboard_ggml::open(&setup.host, ggml(found).ok_or_else(gone)?, name, setup.threads, &setup.budget))
        },
    },
    Backend {
        name: "vulkan",
        prefix: "Vulkan",
        argument: Argument::None,
        // One card has run its kernels, and no driver of another vendor.
        looked_for: LookedFor::WhenNamed,
        known: |_, _| Known { unsupported: outboard_vulkan::UNSUPPORTED, differs: &[] },
        without: || {
            // What a driver lacks is a debug line; that a card has no driver, or that its device file cannot be opened, is none.
            "; a card needs its driver for Vulkan 1.2 (RUST_LOG=debug says what one lacks) and, on Linux, a /dev/dri/renderD* that this user may open (group render)".into()
        },
        find: || outboard_vulkan::find().iter().map(of_vulkan).collect(),
        open: |setup, found, name, _| {
            let gone = || Error::Misuse(format!("{name} is not among Vulkan's devices any more"));
            let of_vulkan = outboard_vulkan::find().iter().find(|device| Some(device.number) == found.number);
            let pipelines = outboard_system::cache_dir().map(|dir| dir.join("pipelines"));
            let options = OpenOptions { pipelines, ..OpenOptions::default() };
            Ok(vulkan_device(&setup.host, of_vulkan.ok_or_else(gone)?, name, &setup.budget, &options)?)
        },
    },
];

/// The processors of this host.
fn in_host_memory(class: Class) -> Found {
    Found { number: None, label: String::new(), kind: DeviceKind::Cpu, device_id: String::new(), class }
}

/// A device of Vulkan's as the list has it.
fn of_vulkan(device: &outboard_vulkan::Found) -> Found {
    let class = match device.class {
        outboard_vulkan::Class::Hardware => Class::Hardware,
        outboard_vulkan::Class::Software => Class::Software,
    };
    let (number, device_id) = (Some(device.number), device.device_id.clone());
    Found { number, label: String::new(), kind: device.kind, device_id, class }
}

/// A device of CUDA's as the list has it.
fn of_cuda(device: &outboard_cuda::Found) -> Found {
    let (number, device_id) = (Some(device.number), device.device_id.clone());
    Found { number, label: String::new(), kind: device.kind, device_id, class: Class::Hardware }
}

/// A device of ggml's as the list has it.
fn of_ggml((number, device): (usize, &outboard_ggml::Found)) -> Found {
    let class = match device.class {
        outboard_ggml::Class::Hardware => Class::Hardware,
        outboard_ggml::Class::Software => Class::Software,
    };
    let (label, device_id) = (device.name.clone(), device.info.device_id.clone());
    Found { number: Some(number), label, kind: device.info.kind, device_id, class }
}

/// The device of ggml's that was found.
fn ggml(found: &Found) -> Option<&'static outboard_ggml::Found> {
    outboard_ggml::find().iter().find(|device| device.name == found.label)
}
