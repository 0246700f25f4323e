//! Every device of this host against the reference, on every case.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::{Filter, run};
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, Isa, cpu_device};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::sync::Arc;

fn conforms(device: &dyn Device, reference: &dyn Device) -> Result<(), String> {
    let report = run(device, reference, &Filter::default()).unwrap();
    println!("{report}");
    if report.ok() { Ok(()) } else { Err(report.to_string()) }
}

fn all_conform(devices: &[Arc<dyn Device>]) {
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let failed: Vec<String> = devices.iter().filter_map(|d| conforms(d.as_ref(), reference.as_ref()).err()).collect();
    assert!(failed.is_empty(), "{}", failed.concat());
}

#[test]
fn every_device_of_the_list_computes_what_the_reference_does() {
    all_conform(&local_devices(&Host::new(), &DeviceSpec::all(), None, None).unwrap());
}

#[test]
fn cpu_devices_do_with_every_instruction_set() {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let device = |isa: Isa, threads| {
        cpu_device(&host, &format!("{} x{threads}", isa.name()), CpuOptions { isa, threads }, &budget)
    };
    all_conform(&Isa::available().into_iter().flat_map(|isa| [1, 3].map(|n| device(isa, n))).collect::<Vec<_>>());
}
