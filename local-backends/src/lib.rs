//! The one list of backends: what `-d` can name, and how its devices are made.
//!
//! To add a backend: its crate, a variant of [`DeviceSpec`], a line in [`DeviceSpec::parse_list`] and one in [`local_devices`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

use outboard_core::{Device, Result};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::{Host, MemoryBudget};
use outboard_reference::reference_device;
use std::sync::Arc;

/// Most devices of one host: far above real ones, so that a slip of the keyboard does not start a thousand threads.
pub const MAX_DEVICES: usize = 64;
/// Most threads of one CPU device.
pub const MAX_THREADS: usize = 1024;

/// One device to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The host's processors, with this many threads; `None` for the default.
    Cpu(Option<usize>),
    /// The reference implementation, for tests.
    Reference,
}

impl DeviceSpec {
    /// Parses `cpu`, `cpu:2`, `cpu:1,cpu:1`, `reference`.
    pub fn parse_list(text: &str) -> std::result::Result<Vec<DeviceSpec>, String> {
        let specs = text.split(',').map(DeviceSpec::parse).collect::<std::result::Result<Vec<_>, _>>()?;
        match specs.len() <= MAX_DEVICES {
            true => Ok(specs),
            false => Err(format!("{} devices, at most {MAX_DEVICES} are possible", specs.len())),
        }
    }

    fn parse(text: &str) -> std::result::Result<DeviceSpec, String> {
        let text = text.trim();
        let (name, threads) = match text.split_once(':') {
            Some((name, threads)) => (name, Some(threads)),
            None => (text, None),
        };
        match (name.to_ascii_lowercase().as_str(), threads) {
            ("cpu", None) => Ok(DeviceSpec::Cpu(None)),
            ("cpu", Some(threads)) => match threads.parse() {
                Ok(n) if (1..=MAX_THREADS).contains(&n) => Ok(DeviceSpec::Cpu(Some(n))),
                _ => Err(format!("\"{text}\": the number of threads must be 1 to {MAX_THREADS}")),
            },
            ("reference", None) => Ok(DeviceSpec::Reference),
            _ => Err(format!("there is no device \"{text}\"; this host has: cpu, cpu:THREADS, reference")),
        }
    }
}

/// The devices of `host` by their specifications (none: one CPU device), named `CPU0`, `CPU1`, ... in order of each kind. CPU devices without a number
/// of threads get `threads`, or all processors divided among them. All share `memory_limit` bytes, or what the host has available now.
pub fn local_devices(
    host: &Arc<Host>,
    specs: &[DeviceSpec],
    threads: Option<usize>,
    memory_limit: Option<u64>,
) -> Result<Vec<Arc<dyn Device>>> {
    let specs = if specs.is_empty() { &[DeviceSpec::Cpu(None)] } else { specs };
    let budget = MemoryBudget::new(memory_limit);
    let cpus = specs.iter().filter(|s| matches!(s, DeviceSpec::Cpu(_))).count().max(1);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let default = threads.unwrap_or(processors / cpus).clamp(1, MAX_THREADS);
    let (mut n_cpu, mut n_reference) = (0, 0);
    let number = |n: &mut usize| std::mem::replace(n, *n + 1);
    let make = |spec: &DeviceSpec| match spec {
        DeviceSpec::Cpu(threads) => {
            let options = CpuOptions::with_threads(threads.unwrap_or(default));
            cpu_device(host, &format!("CPU{}", number(&mut n_cpu)), options, &budget)
        }
        DeviceSpec::Reference => reference_device(host, &format!("REF{}", number(&mut n_reference)), &budget),
    };
    Ok(specs.iter().map(make).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(
            DeviceSpec::parse_list("cpu:1,CPU:3").unwrap(),
            [DeviceSpec::Cpu(Some(1)), DeviceSpec::Cpu(Some(3))]
        );
        assert_eq!(DeviceSpec::parse_list("cpu,reference").unwrap(), [DeviceSpec::Cpu(None), DeviceSpec::Reference]);
        for wrong in ["", "gpu", "cpu:0", "cpu:x", "cpu:1,", "cpu:99999999999", "cpu,".repeat(99).as_str()] {
            assert!(DeviceSpec::parse_list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_count_up() {
        let specs = DeviceSpec::parse_list("cpu:1,reference,cpu:1").unwrap();
        let devices = local_devices(&Host::new(), &specs, None, Some(1 << 20)).unwrap();
        let names: Vec<_> = devices.iter().map(|d| d.info().id.clone()).collect();
        assert_eq!(names, ["CPU0", "REF0", "CPU1"]);
        assert_eq!(devices[0].memory().unwrap().total, 1 << 20);
        let default = local_devices(&Host::new(), &[], Some(1), None).unwrap();
        assert_eq!(default.iter().map(|d| d.info().id.as_str()).collect::<Vec<_>>(), ["CPU0"]);
    }

    #[test]
    fn devices_of_a_host_share_its_memory() {
        let specs = DeviceSpec::parse_list("cpu:1,reference").unwrap();
        let devices = local_devices(&Host::new(), &specs, None, Some(1 << 20)).unwrap();
        let buffer = devices[0].alloc(1 << 19, outboard_core::Usage::Any).unwrap();
        assert_eq!(devices[1].memory().unwrap().free, 1 << 19);
        assert!(devices[1].alloc(1 << 20, outboard_core::Usage::Any).is_err());
        assert!(devices[0].peer().unwrap().reaches(devices[1].as_ref()));
        drop(buffer);
        assert_eq!(devices[1].memory().unwrap().free, 1 << 20);
    }
}
