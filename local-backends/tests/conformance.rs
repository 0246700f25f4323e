//! Every device of this host against the reference, on every case.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, Known, local_devices};
use outboard_conformance::{Filter, run};
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, Isa, cpu_device};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::sync::Arc;

fn conforms(device: &dyn Device, reference: &dyn Device, known: &Known) -> Result<(), String> {
    let report = run(device, reference, &Filter::default()).unwrap();
    println!("{report}");
    let differs: Vec<_> = known.differs.iter().map(|d| (d.of, d.most)).collect();
    let mut wrong = [report.against(known.unsupported), report.beyond(&differs)].concat();
    // What is declared by ops must not become all of it.
    if report.unsupported() > report.cases() / 4 {
        wrong.push(format!("{} of {} cases are not supported", report.unsupported(), report.cases()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{report}{}\n", wrong.join("\n"))) }
}

/// Devices with what is known of them.
fn all_conform(devices: &[(Arc<dyn Device>, Known)]) {
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let check = |(device, known): &(Arc<dyn Device>, Known)| conforms(device.as_ref(), reference.as_ref(), known).err();
    let failed: Vec<String> = devices.iter().filter_map(check).collect();
    assert!(failed.is_empty(), "{}", failed.concat());
}

#[test]
fn every_device_of_the_list_computes_what_the_reference_does() {
    let specs = DeviceSpec::all();
    let of_ggml = outboard_ggml::find();
    match of_ggml {
        [] if std::env::var_os(outboard_ggml::VARIABLE).is_some() => {
            panic!("{} names no ggml", outboard_ggml::VARIABLE)
        }
        [] => println!("skipped: ggml's devices, because {} names no libraries", outboard_ggml::VARIABLE),
        found => println!("ggml has {}", found.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ")),
    }
    if outboard_vulkan::find().is_empty() {
        println!("skipped: Vulkan's devices, of which there are none (mesa-vulkan-drivers has a software driver)");
    }
    let devices = local_devices(&Host::new(), &specs, None, None).unwrap();
    all_conform(&devices.into_iter().zip(specs.iter().map(DeviceSpec::known)).collect::<Vec<_>>());
}

#[test]
fn cpu_devices_do_with_every_instruction_set() {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let device = |isa: Isa, threads| {
        cpu_device(&host, &format!("{} x{threads}", isa.name()), CpuOptions { isa, threads }, &budget)
    };
    let every = Isa::available().into_iter().flat_map(|isa| [1, 3].map(|n| (device(isa, n), Known::default())));
    all_conform(&every.collect::<Vec<_>>());
}
