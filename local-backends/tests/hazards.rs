//! Random graphs on the CPU and on Vulkan: what is computed together, and in memory that results share, is what nodes compute one by one. On an
//! emulated card `outboard-cuda` has the same.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::hazards;
use outboard_core::{Device, Host};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_vulkan::{OpenOptions, find, vulkan_device};

/// Seconds for each device, if the environment does not say how many.
const SECONDS: u64 = 4;
/// The same of a device of Vulkan's, whose software drivers take some seconds for a graph's kernels.
const SECONDS_OF_VULKAN: u64 = 20;

/// Runs random graphs on a device for so many seconds.
fn check(device: &dyn Device, seconds: u64) {
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let (ran, wrong) = hazards(device, reference.as_ref(), seconds, Vec::new);
    println!("{}: {ran} graphs", device.info().id);
    assert!(wrong.is_empty(), "{}: {ran} graphs, of which:\n{}", device.info().id, wrong.join("\n"));
    assert!(ran > 5, "{}: {ran} graphs", device.info().id);
}

#[test]
fn random_graphs_are_what_their_nodes_are() {
    // The graphs' weights have no zeros behind them, as the detached device asks for.
    let is_ours = |spec: &DeviceSpec| spec.backend() == "cpu";
    let specs: Vec<_> = DeviceSpec::all().into_iter().filter(is_ours).collect();
    local_devices(&Host::new(), &specs, None, None).unwrap().iter().for_each(|device| check(device.as_ref(), SECONDS));
}

#[test]
fn random_graphs_on_vulkan() {
    let Some(found) = find().first() else { return println!("skipped: there is no Vulkan device") };
    for dot in [false, true] {
        let options = OpenOptions { dot, ..OpenOptions::default() };
        let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
        check(device.as_ref(), SECONDS_OF_VULKAN);
    }
}
