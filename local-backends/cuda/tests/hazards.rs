//! Random graphs on the emulator: what is computed together, recorded, and in memory that results share is what nodes compute one by one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_conformance::hazards;
use outboard_core::Host;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;

/// Seconds, if the environment does not say how many.
const SECONDS: u64 = 10;

#[test]
fn random_graphs_are_what_their_nodes_are() {
    let device = device(LONG);
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let found = || {
        let found = emulator().findings("").into_iter().map(|found| found.text).collect();
        emulator().forget();
        found
    };
    let (ran, wrong) = hazards(device.as_ref(), reference.as_ref(), SECONDS, found);
    assert!(wrong.is_empty(), "{ran} graphs, of which:\n{}", wrong.join("\n"));
    assert!(ran > 5, "{ran} graphs");
}
