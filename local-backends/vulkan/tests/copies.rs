//! Long copies between host and device have a queue of their own: what is given to one queue is behind what was given to the other. The driver here has one queue,
//! which stands in for both, and waits are counted. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use bytes::Bytes;
use outboard_core::op::Scale;
use outboard_core::{DType, Device, GraphBuilder, Host, Placement, Slice, TensorId, Usage};
use outboard_host::MemoryBudget;
use outboard_vulkan::{Function, Interposer, OpenOptions, find, vulkan_device};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// Numbers of a tensor of three mebibytes.
const NUMBERS: usize = 3 << 18;

/// Submissions that wait for a semaphore, and the driver's own function.
static WAITS: AtomicUsize = AtomicUsize::new(0);
static SUBMIT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    submits: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    // SAFETY: what whoever calls it has promised to Vulkan.
    let all = unsafe { std::slice::from_raw_parts(submits, count as usize) };
    WAITS.fetch_add(all.iter().filter(|submit| submit.wait_semaphore_count > 0).count(), Ordering::Relaxed);
    // SAFETY: `choose` has put the function of this type there.
    unsafe {
        std::mem::transmute::<usize, vk::PFN_vkQueueSubmit>(SUBMIT.load(Ordering::Relaxed))(
            queue, count, submits, fence,
        )
    }
}

fn choose(name: &CStr, driver: Function) -> Function {
    if name.to_bytes() != b"vkQueueSubmit" {
        return driver;
    }
    SUBMIT.store(driver.unwrap() as usize, Ordering::Relaxed);
    // SAFETY: a function, which is called by the type of its name.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(submit as *const ()) })
}

fn bytes(number: impl Fn(usize) -> f32) -> Bytes {
    (0..NUMBERS).flat_map(|i| number(i).to_le_bytes()).collect::<Vec<_>>().into()
}

#[test]
fn long_copies_are_behind_kernels_and_kernels_behind_them() {
    let Some(found) = find().first() else { return println!("skipped: there is no Vulkan device") };
    for (copies, waits) in [(false, 0), (true, 5)] {
        // SAFETY: the function above has the type of its name, and does what Vulkan says.
        let interposer = Some(unsafe { Interposer::new(choose) });
        let options = OpenOptions { interposer, copies, ..OpenOptions::default() };
        let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
        let mut g = GraphBuilder::new();
        let x = g.input("x", DType::F32, &[1024, NUMBERS / 1024]).unwrap();
        let y = g.push(Scale { scale: 2.0, bias: 1.0 }, &[x]).unwrap();
        g.output(y);
        let graph = Arc::new(g.finish().unwrap());
        let place = |_: TensorId| Some(Slice::whole(device.alloc(4 * NUMBERS as u64, Usage::Any).unwrap()));
        let places: Vec<_> = graph.ids().map(place).collect();
        let placement = Placement::new(&graph, device.as_ref(), places.clone()).unwrap();
        let executable = device.compile(graph.clone(), placement).unwrap();
        let queue = device.queue().unwrap();
        let at = |id: TensorId| places[id.index()].clone().unwrap();
        WAITS.store(0, Ordering::Relaxed);
        queue.write(&at(x), bytes(|i| i as f32)).unwrap();
        queue.execute(&executable).unwrap();
        let first = queue.read(&at(y)).unwrap();
        // A short copy is no reason to wait for the other queue twice.
        queue.write(&at(x).part(0, 4).unwrap(), Bytes::from(7f32.to_le_bytes().to_vec())).unwrap();
        queue.execute(&executable).unwrap();
        let second = queue.read(&at(y)).unwrap();
        assert_eq!(first.wait(LONG).unwrap(), bytes(|i| 2.0 * i as f32 + 1.0));
        assert_eq!(second.wait(LONG).unwrap(), bytes(|i| if i == 0 { 15.0 } else { 2.0 * i as f32 + 1.0 }));
        assert_eq!(WAITS.load(Ordering::Relaxed), waits, "copies of their own: {copies}");
    }
}
