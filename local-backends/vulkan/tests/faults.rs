//! A device that is lost, that has no memory, or that hangs: errors on the timelines of whoever uses it, nothing freed that it may still use,
//! and the next client finds it open. Functions before the driver's bring the faults about. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use bytes::Bytes;
use outboard_core::device::{Client, MemoryAccount, MemoryShare, fresh_uid};
use outboard_core::op::GetRows;
use outboard_core::{
    DType, Device, DeviceInfo, Error, Executable, GraphBuilder, Host, Placement, Queue, Slice, TensorId, Usage,
};
use outboard_host::MemoryBudget;
use outboard_vulkan::{Function, Interposer, OpenOptions, find, vulkan_device};
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
/// How long the device may hang here.
const PATIENCE: Duration = Duration::from_millis(300);

/// What the driver does.
static FAULT: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = 0;
/// What it is given is lost with the device.
const LOST_WHEN_GIVEN: u32 = 1;
/// It takes what it is given, and is lost before it is done.
const LOST_WHEN_WAITED_FOR: u32 = 2;
/// It has no memory left.
const NO_MEMORY: u32 = 3;
/// It takes what it is given, and never gets it done.
const HANGS: u32 = 4;

/// The driver's own functions.
static SUBMIT: AtomicUsize = AtomicUsize::new(0);
static WAIT: AtomicUsize = AtomicUsize::new(0);
static ALLOCATE: AtomicUsize = AtomicUsize::new(0);
static FREE: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicUsize = AtomicUsize::new(0);

/// Allocations that there are.
static ALLOCATIONS: AtomicI64 = AtomicI64::new(0);
/// What the device has that hangs: the semaphores that wait for it, and what they would get.
static STUCK: Mutex<Vec<(vk::Device, vk::Semaphore, u64)>> = Mutex::new(Vec::new());
static DEVICE: Mutex<vk::Device> = Mutex::new(vk::Device::null());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A function as the driver has it: `choose` has put the one of this type there.
macro_rules! real {
    ($place:ident as $type:ty) => {
        std::mem::transmute::<usize, $type>($place.load(Ordering::Relaxed))
    };
}

unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    submits: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    match FAULT.load(Ordering::Relaxed) {
        LOST_WHEN_GIVEN => return vk::Result::ERROR_DEVICE_LOST,
        HANGS | LOST_WHEN_WAITED_FOR => {
            // SAFETY: what whoever calls it has promised to Vulkan; the crate under test chains the values, and nothing else.
            let (submit, values) = unsafe {
                let submit = &*submits;
                (submit, &*submit.p_next.cast::<vk::TimelineSemaphoreSubmitInfo<'_>>())
            };
            // SAFETY: as above: one semaphore, and one value.
            let (semaphore, value) = unsafe { (*submit.p_signal_semaphores, *values.p_signal_semaphore_values) };
            lock(&STUCK).push((*lock(&DEVICE), semaphore, value));
            return vk::Result::SUCCESS;
        }
        _ => {}
    }
    // SAFETY: passed on as it came.
    unsafe { real!(SUBMIT as vk::PFN_vkQueueSubmit)(queue, count, submits, fence) }
}

unsafe extern "system" fn wait(device: vk::Device, info: *const vk::SemaphoreWaitInfo<'_>, limit: u64) -> vk::Result {
    if FAULT.load(Ordering::Relaxed) == LOST_WHEN_WAITED_FOR {
        return vk::Result::ERROR_DEVICE_LOST;
    }
    // SAFETY: passed on as it came.
    unsafe { real!(WAIT as vk::PFN_vkWaitSemaphores)(device, info, limit) }
}

unsafe extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    *lock(&DEVICE) = device;
    if FAULT.load(Ordering::Relaxed) == NO_MEMORY {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    // SAFETY: passed on as it came.
    let done = unsafe { real!(ALLOCATE as vk::PFN_vkAllocateMemory)(device, info, callbacks, memory) };
    if done == vk::Result::SUCCESS {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
    done
}

unsafe extern "system" fn free(
    device: vk::Device,
    memory: vk::DeviceMemory,
    callbacks: *const vk::AllocationCallbacks<'_>,
) {
    ALLOCATIONS.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: passed on as it came.
    unsafe { real!(FREE as vk::PFN_vkFreeMemory)(device, memory, callbacks) }
}

/// The device that hung comes to an end.
fn release() {
    FAULT.store(NONE, Ordering::Relaxed);
    for (device, semaphore, value) in lock(&STUCK).drain(..) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(semaphore).value(value);
        // SAFETY: the device is there, and the semaphore is kept until it has this value.
        let done = unsafe { real!(SIGNAL as vk::PFN_vkSignalSemaphore)(device, &info) };
        assert_eq!(done, vk::Result::SUCCESS);
    }
}

fn choose(name: &CStr, driver: Function) -> Function {
    let (place, mine) = match name.to_bytes() {
        b"vkQueueSubmit" => (&SUBMIT, submit as *const ()),
        b"vkWaitSemaphores" => (&WAIT, wait as *const ()),
        b"vkAllocateMemory" => (&ALLOCATE, allocate as *const ()),
        b"vkFreeMemory" => (&FREE, free as *const ()),
        b"vkSignalSemaphore" => {
            SIGNAL.store(driver.unwrap() as usize, Ordering::Relaxed);
            return driver;
        }
        _ => return driver,
    };
    place.store(driver.unwrap() as usize, Ordering::Relaxed);
    // SAFETY: a function, which is called by the type of its name.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(mine) })
}

/// An account that everything is on.
#[derive(Debug)]
struct Unlimited;

impl MemoryAccount for Unlimited {
    fn take(&self, _: u64, _: &DeviceInfo, _: u64) -> Result<MemoryShare, Error> {
        Ok(Box::new(()))
    }
}

/// A test's device. One test has it at a time, because its faults are everybody's.
struct Broken {
    device: Arc<dyn Device>,
    _turn: MutexGuard<'static, ()>,
}

impl Broken {
    fn new() -> Option<Broken> {
        static TURN: Mutex<()> = Mutex::new(());
        let Some(found) = find().first() else {
            println!("skipped: there is no Vulkan device");
            return None;
        };
        let turn = lock(&TURN);
        FAULT.store(NONE, Ordering::Relaxed);
        // SAFETY: the functions above have the types of their names, and fail as Vulkan says.
        let interposer = Some(unsafe { Interposer::new(choose) });
        let options = OpenOptions { patience: PATIENCE, interposer, ..OpenOptions::default() };
        let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
        Some(Broken { device, _turn: turn })
    }

    /// What a new client has of it.
    fn client(&self) -> Work {
        let client = Client { turns: fresh_uid(), room: fresh_uid(), account: Arc::new(Unlimited) };
        Work::new(self.device.for_client(client).unwrap())
    }
}

/// One client's device with a graph on it: a row of a table.
struct Work {
    device: Arc<dyn Device>,
    queue: Arc<dyn Queue>,
    executable: Arc<dyn Executable>,
    picked: Slice,
}

impl Work {
    fn new(device: Arc<dyn Device>) -> Work {
        let mut g = GraphBuilder::new();
        let table = g.input("table", DType::F32, &[64, 4]).unwrap();
        let rows = g.input("rows", DType::I32, &[1]).unwrap();
        let picked = g.push(GetRows, &[table, rows]).unwrap();
        g.name(picked, "picked");
        g.output(picked);
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
        queue.fill(&at(table), 0x3f).unwrap();
        queue.write(&at(rows), Bytes::copy_from_slice(&3i32.to_le_bytes())).unwrap();
        let picked = at(picked);
        Work { device, queue, executable, picked }
    }

    /// Runs it.
    fn run(&self) -> Result<Bytes, Error> {
        self.queue.execute(&self.executable)?;
        self.queue.read(&self.picked)?.wait(LONG)
    }

    fn computes(&self) {
        assert!(self.run().unwrap().iter().all(|&byte| byte == 0x3f));
    }
}

/// What a fault has come to: an error of the device, at an op or not.
fn device_error(error: &Error) -> (Option<&str>, &str) {
    let Error::Device { device, op, detail } = error else { panic!("{error:?}") };
    assert_eq!(device, "Vulkan0");
    (op.as_deref(), detail)
}

#[test]
fn a_device_that_is_lost_is_an_error_and_is_opened_again() {
    let Some(broken) = Broken::new() else { return };
    for (fault, detail) in [(LOST_WHEN_GIVEN, "cannot be submitted"), (LOST_WHEN_WAITED_FOR, "is not done")] {
        let (first, second) = (broken.client(), broken.client());
        first.computes();
        second.computes();
        FAULT.store(fault, Ordering::Relaxed);
        let error = first.run().unwrap_err();
        let (op, said) = device_error(&error);
        assert!(said.contains(detail) && said.contains("lost"), "{error:?}");
        if fault == LOST_WHEN_WAITED_FOR {
            assert!(op.is_some_and(|op| op.contains("picked")), "{error:?}");
        }
        // Whatever is asked of the queue now is answered with it.
        assert_eq!(first.run().unwrap_err().to_string(), error.to_string());
        FAULT.store(NONE, Ordering::Relaxed);
        // Also of another client, which has not seen it happen.
        let start = Instant::now();
        assert!(device_error(&second.run().unwrap_err()).1.contains("it was lost"));
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        for client in [&first, &second] {
            assert!(matches!(client.device.resume(), Err(Error::Peer { .. })));
            assert!(client.device.queue().and_then(|queue| queue.read(&client.picked)?.wait(LONG)).is_err());
        }
        // Who comes now finds it open, also while the others are still there.
        broken.client().computes();
        release();
    }
}

#[test]
fn a_program_gets_a_lost_device_of_its_own_again() {
    let Some(broken) = Broken::new() else { return };
    let work = Work::new(broken.device.clone());
    work.computes();
    assert!(broken.device.reopened().is_none());
    FAULT.store(LOST_WHEN_GIVEN, Ordering::Relaxed);
    work.run().unwrap_err();
    FAULT.store(NONE, Ordering::Relaxed);
    Work::new(broken.device.reopened().unwrap()).computes();
}

#[test]
fn a_lost_device_gives_its_memory_back() {
    let Some(broken) = Broken::new() else { return };
    drop(broken.client());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let work = broken.client();
    work.computes();
    FAULT.store(LOST_WHEN_GIVEN, Ordering::Relaxed);
    work.run().unwrap_err();
    FAULT.store(NONE, Ordering::Relaxed);
    drop(work);
    drop(broken.client());
    // Of staging memory, a block stays with each of the two devices.
    let left = || ALLOCATIONS.load(Ordering::Relaxed);
    wait_for(|| left() <= before + 1, || format!("{} allocations, {before} before", left()));
}

#[test]
fn no_memory_is_an_error_with_sizes_and_costs_nothing_else() {
    let Some(broken) = Broken::new() else { return };
    let (first, second) = (broken.client(), broken.client());
    first.computes();
    FAULT.store(NO_MEMORY, Ordering::Relaxed);
    match first.device.alloc(4321, Usage::Any) {
        Err(Error::OutOfMemory { device, needed, .. }) => assert_eq!((device.as_str(), needed), ("Vulkan0", 4321)),
        other => panic!("{other:?}"),
    }
    // What needs none goes on, also in the same queue.
    first.computes();
    let big = vec![0; 40 << 20];
    let queue = first.device.queue().unwrap();
    FAULT.store(NONE, Ordering::Relaxed);
    let place = Slice::whole(first.device.alloc(big.len() as u64, Usage::Any).unwrap());
    FAULT.store(NO_MEMORY, Ordering::Relaxed);
    // The host's memory on the way there is memory, too.
    queue.write(&place, big.into()).unwrap();
    let error = queue.finish(LONG).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    second.computes();
    FAULT.store(NONE, Ordering::Relaxed);
    first.device.resume().unwrap();
    broken.client().computes();
}

#[test]
fn a_device_that_hangs_is_given_up_and_keeps_what_it_may_use() {
    let Some(broken) = Broken::new() else { return };
    let (first, second) = (broken.client(), broken.client());
    first.computes();
    second.computes();
    let held = ALLOCATIONS.load(Ordering::Relaxed);
    FAULT.store(HANGS, Ordering::Relaxed);
    let start = Instant::now();
    let error = first.run().unwrap_err();
    let (op, detail) = device_error(&error);
    assert!(op.is_some_and(|op| op.contains("picked")), "{error:?}");
    assert!(detail.contains("within 300ms: it is given up"), "{error:?}");
    assert!(device_error(&second.run().unwrap_err()).1.contains("it was lost, or given up"));
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    drop(first);
    FAULT.store(NONE, Ordering::Relaxed);
    // Another one is opened and computes, while the first one still has what it was given: that was not freed.
    let third = broken.client();
    third.computes();
    std::thread::sleep(3 * PATIENCE);
    let now = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(now >= held, "{now} allocations of {held}: some were freed that a stuck command may use");
    release();
    drop(second);
    let left = || ALLOCATIONS.load(Ordering::Relaxed);
    wait_for(|| left() < now, || format!("{} allocations of {now}", left()));
    third.computes();
}

/// Waiting can be given up before the device is.
#[test]
fn a_client_that_leaves_does_not_wait_for_a_device_that_hangs() {
    let Some(broken) = Broken::new() else { return };
    let (first, second) = (broken.client(), broken.client());
    FAULT.store(HANGS, Ordering::Relaxed);
    first.queue.execute(&first.executable).unwrap();
    let start = Instant::now();
    drop(first);
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    release();
    wait_for(|| second.run().is_ok(), || "the second client".into());
}

fn wait_for(mut done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{}", what());
        std::thread::sleep(Duration::from_millis(10));
    }
}
