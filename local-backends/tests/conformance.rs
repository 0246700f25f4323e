//! Every device of this host against the reference, on every case.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, Known, local_devices};
use outboard_conformance::{Filter, run};
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, Isa, cpu_device};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Names Vulkan's drivers.
const DRIVERS: &str = "VK_ICD_FILENAMES";
/// If it says something, only some cases of every op are run: what a slow driver has time for. A number N: each Nth of them.
const QUICK: &str = "OUTBOARD_QUICK";
/// If it names an op, only its cases are run, and only those whose name holds what is behind a colon: `MUL_MAT:Q4_0`.
const OP: &str = "OUTBOARD_OP";

fn conforms(device: &dyn Device, reference: &dyn Device, known: &Known) -> Result<(), String> {
    let value = std::env::var(QUICK).unwrap_or_default();
    let (quick, each) = (!value.is_empty(), value.parse().unwrap_or_default());
    let op = std::env::var(OP).unwrap_or_default();
    let (op, name) = op.split_once(':').unwrap_or((&op, ""));
    let ops = if op.is_empty() { Vec::new() } else { vec![op.to_owned()] };
    let is_part = quick || !ops.is_empty();
    let report = run(device, reference, &Filter { quick, each, ops, name: name.to_owned() }).unwrap();
    println!("{report}");
    assert!(report.cases() > 0, "{OP} names no case");
    let differs: Vec<_> = known.differs.iter().map(|d| (d.of, d.most)).collect();
    let unknown = if is_part { report.undeclared(known.unsupported) } else { report.against(known.unsupported) };
    let mut wrong = [unknown, report.beyond(&differs)].concat();
    // What is declared by ops must not become all of it.
    if !is_part && report.unsupported() > report.cases() / 4 {
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

/// The devices of the list whose backend is wanted conform.
fn those_of_the_list_conform(wanted: impl Fn(&str) -> bool) {
    let specs: Vec<_> = DeviceSpec::all().into_iter().filter(|spec| wanted(spec.backend())).collect();
    let devices = local_devices(&Host::new(), &specs, None, None).unwrap();
    all_conform(&devices.into_iter().zip(specs.iter().map(DeviceSpec::known)).collect::<Vec<_>>());
}

#[test]
fn our_own_devices_conform() {
    those_of_the_list_conform(|backend| !matches!(backend, "ggml" | "vulkan" | "cuda"));
}

#[test]
fn ggml_devices_conform() {
    match outboard_ggml::find() {
        [] if std::env::var_os(outboard_ggml::VARIABLE).is_some() => {
            panic!("{} names no ggml", outboard_ggml::VARIABLE)
        }
        [] => println!("skipped: ggml's devices, because {} names no libraries", outboard_ggml::VARIABLE),
        found => println!("ggml has {}", found.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ")),
    }
    those_of_the_list_conform(|backend| backend == "ggml");
}

#[test]
fn vulkan_devices_conform() {
    match outboard_vulkan::find() {
        [] if std::env::var_os(DRIVERS).is_some() => panic!("{DRIVERS} names no driver that has what is needed"),
        [] => {
            println!("skipped: Vulkan's devices, of which there are none (mesa-vulkan-drivers has a software driver)")
        }
        found => found.iter().for_each(|device| println!("Vulkan{}: {}", device.number, device.description)),
    }
    those_of_the_list_conform(|backend| backend == "vulkan");
}

/// Drivers on processors compute so only when it is asked for.
#[test]
fn vulkan_products_of_whole_numbers_conform() {
    if outboard_vulkan::find().is_empty() {
        return println!("skipped: there is no Vulkan device");
    }
    for op in ["MUL_MAT", "MUL_MAT_ID"] {
        let mut cases = Command::new(std::env::current_exe().unwrap());
        cases.args(["--exact", "vulkan_devices_conform", "--nocapture"]).envs([(outboard_vulkan::DOT, "1"), (OP, op)]);
        let out = cases.output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        println!("{}", said.lines().find(|line| line.starts_with(&format!("{op} "))).unwrap_or_default());
    }
}

/// Without a card, `outboard-cuda` has the same on an emulator.
#[test]
fn cuda_devices_conform() {
    match outboard_cuda::find() {
        [] => println!("skipped: CUDA's devices, of which there are none"),
        found => found.iter().for_each(|device| println!("CUDA{}: {}", device.number, device.description)),
    }
    those_of_the_list_conform(|backend| backend == "cuda");
}

/// The layer that says where Vulkan is used against its rules, by its description file.
const LAYER: &str = "/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json";

/// Some cases of every op, or all where `OUTBOARD_QUICK` is empty, with the layer in between.
#[test]
fn vulkan_is_used_by_its_rules() {
    if !Path::new(LAYER).exists() || outboard_vulkan::find().is_empty() {
        return println!("skipped: there is no Vulkan device, or {LAYER} is not here (vulkan-validationlayers)");
    }
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut cases = Command::new(std::env::current_exe().unwrap());
    cases
        .args(["--exact", "vulkan_devices_conform", "--nocapture"])
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
        // They have more passes than those of floats.
        .env(outboard_vulkan::DOT, "1")
        .env("VK_LAYER_SETTINGS_PATH", settings)
        // ggml has an instance of its own, whose use of Vulkan is not ours.
        .env_remove(outboard_ggml::VARIABLE);
    if std::env::var_os(QUICK).is_none() {
        cases.env(QUICK, "1");
    }
    let out = cases.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("Current Enables: VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION"), "no layer: {said}");
    let against = |line: &&str| line.contains("Validation Error:") || line.contains("Validation Warning:");
    let against: Vec<_> = said.lines().filter(against).collect();
    assert!(against.is_empty(), "{} times, first {:?}", against.len(), &against[..against.len().min(9)]);
    println!("{}", said.lines().find(|line| line.starts_with("all ")).unwrap_or_default());
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
