//! The devices of this machine: which there are, what `-d` can name, and how they are opened.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod choice;
mod list;

pub use choice::DeviceSpec;
pub use list::Known;
pub use outboard_ggml::{Difference, run_if_helper, this_program, use_folder as use_ggml};

use list::{Argument, BACKENDS, Setup};
use outboard_core::{Device, DeviceInfo, Host, Result};
use outboard_host::MemoryBudget;
use std::collections::HashMap;
use std::sync::Arc;

/// Most devices of one host: far above real ones, so that a slip of the keyboard does not start a thousand threads.
pub const MAX_DEVICES: usize = 64;
/// Most threads of one CPU device.
pub const MAX_THREADS: usize = 1024;

/// Opens devices of `host`. Devices of the same backend are named `CPU0`, `CPU1`, ... in their order. CPU devices without a number of threads
/// get `threads`, or all processors divided among them. Those in the host's memory share `memory_limit` bytes, or what the host has
/// available now.
pub fn local_devices(
    host: &Arc<Host>,
    specs: &[DeviceSpec],
    threads: Option<usize>,
    memory_limit: Option<u64>,
) -> Result<Vec<Arc<dyn Device>>> {
    let cpus = specs.iter().filter(|spec| spec.has_threads()).count().max(1);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or(processors / cpus).clamp(1, MAX_THREADS);
    let setup = Setup { host: host.clone(), budget: MemoryBudget::new(memory_limit), threads };
    let mut numbers: HashMap<usize, usize> = HashMap::new();
    let mut devices = Vec::with_capacity(specs.len());
    for spec in specs {
        let backend = &BACKENDS[spec.backend];
        let count = numbers.entry(spec.backend).or_default();
        let number = spec.found.number.unwrap_or(*count);
        *count += 1;
        let name = match backend.argument {
            Argument::Label => format!("{}:{}", backend.prefix, spec.found.label),
            Argument::None | Argument::Number(..) => format!("{}{number}", backend.prefix),
        };
        devices.push((backend.open)(&setup, &spec.found, &name, spec.argument)?);
    }
    Ok(devices)
}

/// What is known of a device, here or on a server, by what it says of itself.
pub fn known(info: &DeviceInfo) -> Known {
    let backend = BACKENDS.iter().find(|backend| backend.name == info.backend);
    let label = info.name.split_once(':').map_or("", |(_, label)| label);
    backend.map_or_else(Known::default, |backend| (backend.known)(info.kind, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(list: &str, memory_limit: Option<u64>) -> Vec<Arc<dyn Device>> {
        local_devices(&Host::new(), &DeviceSpec::parse_list(list).unwrap(), Some(1), memory_limit).unwrap()
    }

    #[test]
    fn names_count_up() {
        let devices = open("cpu:1,reference,cpu:1", Some(1 << 20));
        let names: Vec<_> = devices.iter().map(|d| d.info().id.clone()).collect();
        assert_eq!(names, ["CPU0", "REF0", "CPU1"]);
        assert_eq!(devices[0].memory().unwrap().total, 1 << 20);
    }

    #[test]
    fn devices_in_the_hosts_memory_share_it() {
        let devices = open("cpu:1,reference,detached", Some(1 << 20));
        let buffer = devices[0].alloc(1 << 19, outboard_core::Usage::Any).unwrap();
        assert_eq!(devices[1].memory().unwrap().free, 1 << 19);
        assert!(devices[1].alloc(1 << 20, outboard_core::Usage::Any).is_err());
        let pools: Vec<_> = devices.iter().map(|d| d.info().memory_pool.as_str()).collect();
        assert!(pools[0] == pools[1] && !pools[0].is_empty() && pools[2].is_empty(), "{pools:?}");
        assert!(devices[2].alloc(1 << 20, outboard_core::Usage::Any).is_ok());
        drop(buffer);
        assert_eq!(devices[1].memory().unwrap().free, 1 << 20);
        for (from, to) in [(0, 1), (0, 2), (2, 0)] {
            assert!(devices[from].peer().unwrap().reaches(devices[to].as_ref()));
        }
    }
}
