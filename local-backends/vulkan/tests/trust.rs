//! Matrix units and products of whole numbers that compute wrong results are switched off when a device is opened, and products are right without
//! them. The driver here has no units: other kernels stand in for theirs, once right and once wrong. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use bytes::Bytes;
use outboard_core::op::MulMat;
use outboard_core::{DType, Device, GraphBuilder, Host, Placement, Slice, TensorId, Usage};
use outboard_host::MemoryBudget;
use outboard_vulkan::{Function, Interposer, OpenOptions, Units, find, vulkan_device};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// The kernel that uses matrix units, one that computes the same without, one of whole numbers, and one that leaves results as they are.
static UNITS: &[u8] = include_bytes!("../spirv/mul_mat_units.spv");
static RIGHT: &[u8] = include_bytes!("../spirv/mul_mat.spv");
static DOT: &[u8] = include_bytes!("../spirv/mul_mat_dot.spv");
static WRONG: &[u8] = include_bytes!("../spirv/halves.spv");

/// Whether what is tried computes what it should; how many were made.
static IS_RIGHT: AtomicBool = AtomicBool::new(true);
static MADE: AtomicU32 = AtomicU32::new(0);

/// The driver's own functions.
static MODULE: AtomicUsize = AtomicUsize::new(0);
static DISPATCH: AtomicUsize = AtomicUsize::new(0);

unsafe extern "system" fn module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    // SAFETY: what whoever calls it has promised to Vulkan.
    let mut info = unsafe { *info };
    // SAFETY: as above.
    let code = unsafe { std::slice::from_raw_parts(info.p_code.cast::<u8>(), info.code_size) };
    let other = match (code == UNITS || code == DOT, IS_RIGHT.load(Ordering::Relaxed)) {
        (false, _) => code,
        (true, false) => WRONG,
        (true, true) if code == DOT => code,
        (true, true) => RIGHT,
    };
    let words: Vec<u32> = other.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    if code == UNITS || code == DOT {
        MADE.fetch_add(1, Ordering::Relaxed);
    }
    (info.p_code, info.code_size) = (words.as_ptr(), other.len());
    // SAFETY: `choose` has put the function of this type there; the code is whole, and kept until it returns.
    unsafe {
        std::mem::transmute::<usize, vk::PFN_vkCreateShaderModule>(MODULE.load(Ordering::Relaxed))(
            device, &info, callbacks, module,
        )
    }
}

/// Tiles of the kernel that stands in are a quarter as large: more workgroups than are needed do nothing.
unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    // SAFETY: as above.
    unsafe {
        std::mem::transmute::<usize, vk::PFN_vkCmdDispatch>(DISPATCH.load(Ordering::Relaxed))(commands, 4 * x, y, z);
    }
}

fn choose(name: &CStr, driver: Function) -> Function {
    let (place, mine) = match name.to_bytes() {
        b"vkCreateShaderModule" => (&MODULE, module as *const ()),
        b"vkCmdDispatch" => (&DISPATCH, dispatch as *const ()),
        _ => return driver,
    };
    place.store(driver.unwrap() as usize, Ordering::Relaxed);
    // SAFETY: a function, which is called by the type of its name.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(mine) })
}

/// What is tried.
#[derive(Clone, Copy)]
enum Tried {
    Units,
    Dot,
}

/// Opens the device and computes a product of ones. Returns how many kernels of what is tried were made until it was open, and how many in all.
fn made_by_a_product(tried: Tried) -> Option<[u32; 2]> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    MADE.store(0, Ordering::Relaxed);
    // SAFETY: the functions above have the types of their names, and do what Vulkan says.
    let interposer = Some(unsafe { Interposer::new(choose) });
    let (units, dot, dtype) = match tried {
        Tried::Units => (Some(Units { m: 8, n: 8, k: 8, subgroup: 8, results: [1, 2] }), false, DType::F16),
        Tried::Dot => (None, true, DType::Q8_0),
    };
    let options = OpenOptions { interposer, units, dot, ..OpenOptions::default() };
    let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
    let open = MADE.load(Ordering::Relaxed);
    let mut g = GraphBuilder::new();
    let a = g.weight("a", dtype, &[64, 40]).unwrap();
    let b = g.input("b", DType::F32, &[64, 70]).unwrap();
    let product = g.push(MulMat, &[a, b]).unwrap();
    g.output(product);
    let graph = Arc::new(g.finish().unwrap());
    let place = |id: TensorId| {
        let size = graph.tensor(id).layout().span() as u64;
        Some(Slice::whole(device.alloc(size, Usage::Any).unwrap()))
    };
    let places: Vec<_> = graph.ids().map(place).collect();
    let placement = Placement::new(&graph, device.as_ref(), places.clone()).unwrap();
    let executable = device.compile(graph.clone(), placement).unwrap();
    let queue = device.queue().unwrap();
    let at = |id: TensorId| places[id.index()].clone().unwrap();
    let half = 0x3c00u16.to_le_bytes();
    let ones = match tried {
        Tried::Units => half.repeat(64 * 40),
        Tried::Dot => [half.as_slice(), &[1; 32]].concat().repeat(2 * 40),
    };
    queue.write(&at(a), Bytes::from(ones)).unwrap();
    queue.write(&at(b), Bytes::from(1f32.to_le_bytes().repeat(64 * 70))).unwrap();
    queue.execute(&executable).unwrap();
    let result = queue.read(&at(product)).unwrap().wait(LONG).unwrap();
    let results = result.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    assert!(results.into_iter().all(|result| (result - 64.0).abs() < 1e-3));
    Some([open, MADE.load(Ordering::Relaxed)])
}

/// One after the other: they share what stands before the driver.
#[test]
fn what_computes_wrong_results_is_switched_off() {
    for tried in [Tried::Units, Tried::Dot] {
        IS_RIGHT.store(true, Ordering::Relaxed);
        let Some([open, all]) = made_by_a_product(tried) else { return };
        assert!(open > 0 && all > open, "what is right is used: {open} and {all} kernels");
        IS_RIGHT.store(false, Ordering::Relaxed);
        let [open, all] = made_by_a_product(tried).unwrap();
        assert!(open > 0 && all == open, "what is wrong is not used: {open} and {all} kernels");
    }
}
