//! Random graphs on the CPU: what is computed together, and in memory that results share, is what nodes compute one by one. On an
//! emulated card `outboard-cuda` has the same.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::hazards;
use outboard_core::Host;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;

/// Seconds for each device, if the environment does not say how many.
const SECONDS: u64 = 4;

#[test]
fn random_graphs_are_what_their_nodes_are() {
    // The graphs' weights have no zeros behind them, as the detached device asks for; a software driver of Vulkan runs too few of them in the time.
    let is_ours = |spec: &DeviceSpec| spec.backend() == "cpu";
    let specs: Vec<_> = DeviceSpec::all().into_iter().filter(is_ours).collect();
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    for device in local_devices(&Host::new(), &specs, None, None).unwrap() {
        let (ran, wrong) = hazards(device.as_ref(), reference.as_ref(), SECONDS, Vec::new);
        println!("{}: {ran} graphs", device.info().id);
        assert!(wrong.is_empty(), "{}: {ran} graphs, of which:\n{}", device.info().id, wrong.join("\n"));
        assert!(ran > 5, "{}: {ran} graphs", device.info().id);
    }
}
