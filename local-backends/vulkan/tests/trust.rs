//! Matrix units that compute wrong results are switched off when a device is opened, and products are right without them. The driver here has
//! none: other kernels stand in for theirs, once right and once wrong. Without a device, a line says so.
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

/// The kernel that uses matrix units, one that computes the same without, and one that leaves results as they are.
static UNITS: &[u8] = include_bytes!("../spirv/mul_mat_units.spv");
static RIGHT: &[u8] = include_bytes!("../spirv/mul_mat.spv");
static WRONG: &[u8] = include_bytes!("../spirv/halves.spv");

/// Whether the one that stands in computes what it should; how many were made.
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
    let other = if IS_RIGHT.load(Ordering::Relaxed) { RIGHT } else { WRONG };
    let words: Vec<u32> = other.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    if code == UNITS {
        MADE.fetch_add(1, Ordering::Relaxed);
        (info.p_code, info.code_size) = (words.as_ptr(), other.len());
    }
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

/// Opens the device and computes a product of ones. Returns how many kernels with units were made until it was open, and how many in all.
fn made_by_a_product() -> Option<[u32; 2]> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    MADE.store(0, Ordering::Relaxed);
    // SAFETY: the functions above have the types of their names, and do what Vulkan says.
    let interposer = Some(unsafe { Interposer::new(choose) });
    let units = Some(Units { m: 8, n: 8, k: 8, subgroup: 8 });
    let options = OpenOptions { interposer, units, ..OpenOptions::default() };
    let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
    let open = MADE.load(Ordering::Relaxed);
    let mut g = GraphBuilder::new();
    let a = g.weight("a", DType::F16, &[64, 40]).unwrap();
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
    queue.write(&at(a), Bytes::from(0x3c00u16.to_le_bytes().repeat(64 * 40))).unwrap();
    queue.write(&at(b), Bytes::from(1f32.to_le_bytes().repeat(64 * 70))).unwrap();
    queue.execute(&executable).unwrap();
    let result = queue.read(&at(product)).unwrap().wait(LONG).unwrap();
    assert!(result.as_chunks::<4>().0.iter().all(|word| f32::from_le_bytes(*word) == 64.0));
    Some([open, MADE.load(Ordering::Relaxed)])
}

#[test]
fn wrong_units_are_switched_off() {
    IS_RIGHT.store(true, Ordering::Relaxed);
    let Some([open, all]) = made_by_a_product() else { return };
    assert!(open > 0 && all > open, "right units are used: {open} and {all} kernels");
    IS_RIGHT.store(false, Ordering::Relaxed);
    let [open, all] = made_by_a_product().unwrap();
    assert!(open > 0 && all == open, "wrong units are not used: {open} and {all} kernels");
}
