//! Products of whole numbers: columns are made bytes once for all products that read them, and again where they have changed. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use bytes::Bytes;
use outboard_core::op::{Cpy, MulMat};
use outboard_core::{DType, Device, GraphBuilder, Host, LeafKind, Placement, Slice, TensorId, Usage};
use outboard_host::MemoryBudget;
use outboard_vulkan::{Function, Interposer, OpenOptions, find, vulkan_device};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Kernels that were recorded, and the driver's own function.
static KERNELS: AtomicUsize = AtomicUsize::new(0);
static DISPATCH: AtomicUsize = AtomicUsize::new(0);

unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    KERNELS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `choose` has put the function of this type there; what whoever calls this has promised to Vulkan.
    unsafe {
        std::mem::transmute::<usize, vk::PFN_vkCmdDispatch>(DISPATCH.load(Ordering::Relaxed))(commands, x, y, z);
    }
}

fn choose(name: &CStr, driver: Function) -> Function {
    if name.to_bytes() != b"vkCmdDispatch" {
        return driver;
    }
    DISPATCH.store(driver.unwrap() as usize, Ordering::Relaxed);
    // SAFETY: a function, which is called by the type of its name.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(dispatch as *const ()) })
}

/// Rows of Q8_0 whose numbers are all `number`.
fn rows_of(number: u8, rows: usize) -> Bytes {
    let one = 0x3c00u16.to_le_bytes();
    Bytes::from([one.as_slice(), &[number; 32]].concat().repeat(2 * rows))
}

#[test]
fn columns_are_made_bytes_once_for_all_who_read_them() {
    let Some(found) = find().first() else { return println!("skipped: there is no Vulkan device") };
    // SAFETY: the function above has the type of its name, and does what Vulkan says.
    let interposer = Some(unsafe { Interposer::new(choose) });
    let options = OpenOptions { interposer, dot: true, ..OpenOptions::default() };
    let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
    for columns in [3, 20] {
        let mut g = GraphBuilder::new();
        let weights = ["a", "b", "c"].map(|name| g.weight(name, DType::Q8_0, &[64, 32]).unwrap());
        let x = g.leaf(LeafKind::State, "x", DType::F32, &[64, columns]).unwrap();
        let other = g.input("other", DType::F32, &[64, columns]).unwrap();
        let first = g.push(MulMat, &[weights[0], x]).unwrap();
        let second = g.push(MulMat, &[weights[1], x]).unwrap();
        let copied = g.push(Cpy, &[other, x]).unwrap();
        // The same tensor, which has other numbers now.
        let third = g.push(MulMat, &[weights[2], x]).unwrap();
        for id in [first, second, copied, third] {
            g.output(id);
        }
        let graph = Arc::new(g.finish().unwrap());
        let place = |id: TensorId| {
            let tensor = graph.tensor(id);
            let size = tensor.layout().span() as u64;
            (tensor.root() == id).then(|| Slice::whole(device.alloc(size, Usage::Any).unwrap()))
        };
        let places: Vec<_> = graph.ids().map(place).collect();
        let placement = Placement::new(&graph, device.as_ref(), places.clone()).unwrap();
        let before = KERNELS.load(Ordering::Relaxed);
        let executable = device.compile(graph.clone(), placement).unwrap();
        let kernels = KERNELS.load(Ordering::Relaxed) - before;
        let queue = device.queue().unwrap();
        let at = |id: TensorId| places[id.index()].clone().unwrap();
        for (i, &id) in weights.iter().enumerate() {
            queue.write(&at(id), rows_of(i as u8 + 1, 32)).unwrap();
        }
        for (id, number) in [(x, 1f32), (other, -2f32)] {
            queue.write(&at(id), Bytes::from(number.to_le_bytes().repeat(64 * columns))).unwrap();
        }
        queue.execute(&executable).unwrap();
        for (id, want) in [(first, 64.0), (second, 128.0), (third, -384.0f32)] {
            let result = queue.read(&at(id)).unwrap().wait(LONG).unwrap();
            let mut results = result.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
            assert!(results.all(|got| (got - want).abs() < 1e-3), "{columns} columns: {want}");
        }
        // Three products, a copy, and columns twice.
        assert_eq!(kernels, 6, "{columns} columns");
    }
}
