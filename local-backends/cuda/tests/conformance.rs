//! Cases of every op on the emulator against the reference: some of them, or all if `OUTBOARD_QUICK` is empty. `OUTBOARD_CUDA_CAPABILITY`
//! says of which compute capability the card is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_conformance::{Filter, run};
use outboard_core::Host;
use outboard_cuda::{OpenOptions, UNSUPPORTED, cuda_device, find};
use outboard_cuda_emulator::Emulator;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::collections::BTreeSet;

/// If it is there and empty, all cases are run: minutes of an optimised build.
const QUICK: &str = "OUTBOARD_QUICK";
/// If it says something, only cases of this op are run.
const OP: &str = "OUTBOARD_CUDA_OP";

#[test]
fn kernels_compute_what_the_reference_does() {
    let (emulator, capability) = (emulator(), capability());
    let device = cuda_device(&Host::new(), &find()[0], "CUDA0", &OpenOptions::default()).unwrap();
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let quick = std::env::var_os(QUICK).is_none_or(|value| !value.is_empty());
    let ops: Vec<_> = std::env::var(OP).ok().filter(|op| !op.is_empty()).into_iter().collect();
    let whole = !quick && ops.is_empty();
    let filter = Filter { quick, ops, ..Filter::default() };
    let report = run(device.as_ref(), reference.as_ref(), &filter).unwrap();
    println!("{report}");
    let mut wrong = if whole { report.against(UNSUPPORTED) } else { report.undeclared(UNSUPPORTED) };
    wrong.extend(report.beyond(&[]));
    wrong.extend(emulator.findings("").into_iter().map(|found| found.text));
    if whole {
        wrong.extend(never_ran(emulator, capability).into_iter().map(|name| format!("{name} never ran")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(report.cases() > 0 && report.unsupported() <= report.cases() / 4, "{report}");
}

/// Functions that no case has used, of those that compute one node.
fn never_ran(emulator: Emulator, capability: u32) -> BTreeSet<String> {
    let ran: BTreeSet<String> = emulator.launches("").into_iter().map(|launch| launch.kernel).collect();
    functions(capability).into_iter().filter(|name| !ran.contains(name) && !is_of_several(name)).collect()
}
