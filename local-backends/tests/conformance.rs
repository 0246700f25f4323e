//! Every device of this host against the reference, on every case.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_conformance::{Filter, run};
use outboard_cpu::{CpuOptions, Isa, cpu_device};
use outboard_host::{Host, MemoryBudget};
use outboard_reference::reference_device;

#[test]
fn cpu_devices_compute_what_the_reference_does() {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let reference = reference_device(&host, "REF", &budget);
    let mut failed = String::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let name = format!("{} x{threads}", isa.name());
            let device = cpu_device(&host, &name, CpuOptions { isa, threads }, &budget);
            let report = run(device.as_ref(), reference.as_ref(), &Filter::default()).unwrap();
            println!("{report}");
            if !report.ok() {
                failed += &report.to_string();
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
