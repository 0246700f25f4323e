//! A device of a driver that does what tests ask for: functions before the driver's own bring faults about.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]

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

/// Longest wait for anything.
pub const LONG: Duration = Duration::from_secs(60);
/// How long the device may hang here.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// What the driver does.
pub static FAULT: AtomicU32 = AtomicU32::new(NONE);
pub const NONE: u32 = 0;
/// What it is given is lost with the device.
pub const LOST_WHEN_GIVEN: u32 = 1;
/// It takes what it is given, and is lost before it is done.
pub const LOST_WHEN_WAITED_FOR: u32 = 2;
/// It has no memory left.
pub const NO_MEMORY: u32 = 3;
/// It takes what it is given, and never gets it done.
pub const HANGS: u32 = 4;

/// The driver's own functions.
static SUBMIT: AtomicUsize = AtomicUsize::new(0);
static WAIT: AtomicUsize = AtomicUsize::new(0);
static ALLOCATE: AtomicUsize = AtomicUsize::new(0);
static FREE: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicUsize = AtomicUsize::new(0);

/// Allocations that there are.
pub static ALLOCATIONS: AtomicI64 = AtomicI64::new(0);
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
    // Held from here, so that `release` finds whatever is stuck.
    let mut stuck = lock(&STUCK);
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
            stuck.push((*lock(&DEVICE), semaphore, value));
            return vk::Result::SUCCESS;
        }
        _ => drop(stuck),
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

/// Whether the device has something that it never gets done.
pub fn hangs() -> bool {
    !lock(&STUCK).is_empty()
}

/// The device that hung comes to an end.
pub fn release() {
    let mut stuck = lock(&STUCK);
    FAULT.store(NONE, Ordering::Relaxed);
    for (device, semaphore, value) in stuck.drain(..) {
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
pub struct Broken {
    pub device: Arc<dyn Device>,
    _turn: MutexGuard<'static, ()>,
}

impl Broken {
    pub fn new() -> Option<Broken> {
        Broken::with_patience(PATIENCE)
    }

    /// A device that is given up when it hangs for longer than `patience`.
    pub fn with_patience(patience: Duration) -> Option<Broken> {
        static TURN: Mutex<()> = Mutex::new(());
        let Some(found) = find().first() else {
            println!("skipped: there is no Vulkan device");
            return None;
        };
        let turn = lock(&TURN);
        FAULT.store(NONE, Ordering::Relaxed);
        // SAFETY: the functions above have the types of their names, and fail as Vulkan says.
        let interposer = Some(unsafe { Interposer::new(choose) });
        let options = OpenOptions { patience, interposer, ..OpenOptions::default() };
        let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap();
        Some(Broken { device, _turn: turn })
    }

    /// What a new client has of it.
    pub fn client(&self) -> Work {
        let client = Client { turns: fresh_uid(), room: fresh_uid(), account: Arc::new(Unlimited) };
        Work::new(self.device.for_client(client).unwrap())
    }
}

/// One client's device with a graph on it: a row of a table.
pub struct Work {
    pub device: Arc<dyn Device>,
    pub queue: Arc<dyn Queue>,
    pub executable: Arc<dyn Executable>,
    pub picked: Slice,
}

impl Work {
    pub fn new(device: Arc<dyn Device>) -> Work {
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
    pub fn run(&self) -> Result<Bytes, Error> {
        self.queue.execute(&self.executable)?;
        self.queue.read(&self.picked)?.wait(LONG)
    }

    pub fn computes(&self) {
        assert!(self.run().unwrap().iter().all(|&byte| byte == 0x3f));
    }
}

/// Waits until something is so.
pub fn wait_for(mut done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{}", what());
        std::thread::sleep(Duration::from_millis(10));
    }
}
