//! Copies between host and device. Long ones have a queue of their own: what is given to one queue is behind what was given to the other. The driver here has one
//! queue, which stands in for both, and waits are counted. Where both share memory, a write is none. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::Scale;
use outboard_core::{DType, Device, Executable, GraphBuilder, Host, Placement, Slice, Usage};
use outboard_host::MemoryBudget;
use outboard_vulkan::{Function, Interposer, OpenOptions, find, vulkan_device};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// Numbers of a tensor of three mebibytes.
const NUMBERS: usize = 3 << 18;

/// Submissions that wait for a semaphore, copies of buffers that were recorded, and the driver's own functions.
static WAITS: AtomicUsize = AtomicUsize::new(0);
static COPIES: AtomicUsize = AtomicUsize::new(0);
static SUBMIT: AtomicUsize = AtomicUsize::new(0);
static COPY: AtomicUsize = AtomicUsize::new(0);

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

unsafe extern "system" fn copy(
    commands: vk::CommandBuffer,
    from: vk::Buffer,
    to: vk::Buffer,
    count: u32,
    regions: *const vk::BufferCopy,
) {
    COPIES.fetch_add(1, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe {
        std::mem::transmute::<usize, vk::PFN_vkCmdCopyBuffer>(COPY.load(Ordering::Relaxed))(
            commands, from, to, count, regions,
        );
    }
}

fn choose(name: &CStr, driver: Function) -> Function {
    let (place, mine) = match name.to_bytes() {
        b"vkQueueSubmit" => (&SUBMIT, submit as *const ()),
        b"vkCmdCopyBuffer" => (&COPY, copy as *const ()),
        _ => return driver,
    };
    place.store(driver.unwrap() as usize, Ordering::Relaxed);
    // SAFETY: a function, which is called by the type of its name.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(mine) })
}

fn bytes(number: impl Fn(usize) -> f32) -> Bytes {
    (0..NUMBERS).flat_map(|i| number(i).to_le_bytes()).collect::<Vec<_>>().into()
}

/// One test after the other: they count together.
static ALONE: Mutex<()> = Mutex::new(());

/// A device and a graph on it: `2 x + 1`.
struct Setup {
    device: Arc<LocalDevice>,
    x: Slice,
    y: Slice,
    executable: Arc<dyn Executable>,
}

fn setup(options: OpenOptions) -> Option<Setup> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    // SAFETY: the functions above have the types of their names, and do what Vulkan says.
    let interposer = Some(unsafe { Interposer::new(choose) });
    let options = OpenOptions { interposer, ..options };
    let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[1024, NUMBERS / 1024]).unwrap();
    let y = g.push(Scale { scale: 2.0, bias: 1.0 }, &[x]).unwrap();
    g.output(y);
    let graph = Arc::new(g.finish().unwrap());
    let [x, y] = [x, y].map(|_| Slice::whole(device.alloc(4 * NUMBERS as u64, Usage::Any).unwrap()));
    let placement = Placement::new(&graph, device.as_ref(), vec![Some(x.clone()), Some(y.clone())]).unwrap();
    let executable = device.compile(graph, placement).unwrap();
    Some(Setup { device, x, y, executable })
}

/// Gives a queue two runs, the second of which has another first number; their results are right.
fn check_runs(Setup { device, x, y, executable }: &Setup) {
    let queue = device.queue().unwrap();
    queue.write(x, bytes(|i| i as f32)).unwrap();
    queue.execute(executable).unwrap();
    let first = queue.read(y).unwrap();
    queue.write(&x.part(0, 4).unwrap(), Bytes::from(7f32.to_le_bytes().to_vec())).unwrap();
    queue.execute(executable).unwrap();
    let second = queue.read(y).unwrap();
    assert!(first.wait(LONG).unwrap() == bytes(|i| 2.0 * i as f32 + 1.0));
    assert!(second.wait(LONG).unwrap() == bytes(|i| if i == 0 { 15.0 } else { 2.0 * i as f32 + 1.0 }));
}

#[test]
fn long_copies_are_behind_kernels_and_kernels_behind_them() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (copies, waits) in [(false, 0), (true, 5)] {
        let Some(setup) = setup(OpenOptions { copies, ..OpenOptions::default() }) else { return };
        WAITS.store(0, Ordering::Relaxed);
        check_runs(&setup);
        // The short copy is given to the queue that computes.
        assert_eq!(WAITS.load(Ordering::Relaxed), waits, "copies of their own: {copies}");
    }
}

#[test]
fn what_the_host_sees_is_written_without_a_copy() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (unified, copies) in [(false, 1), (true, 0)] {
        let Some(setup) = setup(OpenOptions { unified, ..OpenOptions::default() }) else { return };
        let queue = setup.device.queue().unwrap();
        COPIES.store(0, Ordering::Relaxed);
        queue.write(&setup.x, bytes(|_| 3.0)).unwrap();
        queue.finish(LONG).unwrap();
        assert_eq!(COPIES.load(Ordering::Relaxed), copies, "the same memory: {unified}");
        assert!(queue.read(&setup.x).unwrap().wait(LONG).unwrap() == bytes(|_| 3.0));
        // A write behind a run that is under way waits for it.
        check_runs(&setup);
    }
}
