//! A logical device: its queue, its memory, its pipelines.

use crate::allocation::host_sees_heap;
use crate::cache::PipelineFile;
use crate::commands::Lane;
use crate::device::OpenOptions;
use crate::dot::DOT;
use crate::instance::{Physical, Vulkan, vulkan};
use crate::interposer::Interposer;
use crate::launch::Fast;
use crate::pipelines::{Counts, Making, Pipelines};
use crate::trust::{Checked, is_right};
use crate::units::{UNITS, Units};
use ash::vk;
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings};
use outboard_core::local::CardHealth;
use outboard_core::{DeviceKind, Error, Result, lock};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Bytes that staging memory is cut from.
const BLOCK: u64 = 16 << 20;
/// How long compiled pipelines wait for others before they are written: a model's are compiled one after the other.
const SAVE_AFTER: Duration = Duration::from_secs(2);
/// How long a device may take for nearly nothing.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);

/// What each shader is given: the addresses of its node and of the fault, and the node's number.
pub(crate) const PUSH_BYTES: u32 = 20;

/// A logical device.
pub(crate) struct Gpu {
    pub(crate) vulkan: &'static Vulkan,
    pub(crate) physical: Physical,
    /// The id of the device, for errors.
    pub(crate) id: Arc<str>,
    pub(crate) device: ash::Device,
    queue: Mutex<vk::Queue>,
    /// The one for copies; none where they go to the other.
    copies: Option<Mutex<vk::Queue>>,
    pub(crate) allocator: ManuallyDrop<Mutex<Allocator>>,
    pub(crate) pipelines: ManuallyDrop<Pipelines>,
    /// Whether it has no memory of its own, but the host's, which writes tensors without a copy.
    pub(crate) is_unified: bool,
    /// Whether a test says that there is a queue for copies, where the one that computes stands in for it.
    copies_by_test: bool,
    /// Where they are kept, if they are.
    file: Option<PipelineFile>,
    /// Whether a thread is to write them.
    saving: AtomicBool,
    /// What it has for products that was seen to compute what it should.
    fast: OnceLock<Fast>,
    /// Whether its driver was seen to use memory of the host where it is, or why it does not.
    pub(crate) imports: OnceLock<std::result::Result<(), String>>,
    /// Its place among the host's, and what stands before the driver, in tests.
    opened: (usize, Option<Interposer>),
    /// Whether it is used. It is lost when its driver says so.
    pub(crate) health: CardHealth,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Environment variable: 0 keeps all copies on the queue that computes, and lets no memory be written without one.
pub const COPIES: &str = "OUTBOARD_VULKAN_COPIES";

/// Whether copies go other ways than commands of the queue that computes.
fn wants_copies() -> bool {
    std::env::var(COPIES).as_deref() != Ok("0")
}

/// Whether tensors of a device lie where the host sees them, without leaving the heap that it counts: on an integrated card, if it has such memory.
fn is_unified(vulkan: &Vulkan, physical: &Physical, options: &OpenOptions) -> bool {
    options.unified || physical.kind == DeviceKind::IntegratedGpu && wants_copies() && host_sees_heap(vulkan, physical)
}

/// Whether matrix units are to be used, where the driver has them.
fn wants_units() -> bool {
    std::env::var(UNITS).is_ok_and(|value| !["", "0"].contains(&value.as_str()))
}

/// Whether products of whole numbers are to be used, where the driver has them.
fn wants_dot(physical: &Physical, options: &OpenOptions) -> bool {
    let said = if options.dot { "1".to_owned() } else { std::env::var(DOT).unwrap_or_default() };
    physical.dot.is_wanted(&said)
}

/// The driver's device, with a queue that computes, and maybe one that copies.
fn create(vulkan: &Vulkan, physical: &Physical, options: &OpenOptions) -> std::result::Result<ash::Device, vk::Result> {
    let priorities = [1.0];
    let queue = |family| vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities);
    let queues: Vec<_> = std::iter::once(physical.family).chain(physical.copies).map(queue).collect();
    let has_dot = wants_dot(physical, options);
    let extensions: Vec<_> = [
        physical.has_budget.then_some(ash::ext::memory_budget::NAME.as_ptr()),
        physical.has_feedback.then_some(ash::ext::pipeline_creation_feedback::NAME.as_ptr()),
        physical.units.map(|_| ash::khr::cooperative_matrix::NAME.as_ptr()),
        physical.units.map(|_| ash::ext::subgroup_size_control::NAME.as_ptr()),
        has_dot.then_some(ash::khr::shader_integer_dot_product::NAME.as_ptr()),
        physical.host_alignment.map(|_| ash::ext::external_memory_host::NAME.as_ptr()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let has_units = physical.units.is_some();
    let mut features = vk::PhysicalDeviceVulkan12Features::default()
        .timeline_semaphore(true)
        .buffer_device_address(true)
        .shader_float16(has_units)
        // Kernels' atomics are for the whole device, with that model as without it.
        .vulkan_memory_model(has_units)
        .vulkan_memory_model_device_scope(has_units);
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlFeatures::default().compute_full_subgroups(true);
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .push_next(&mut features);
    if has_units {
        info = info.push_next(&mut matrices).push_next(&mut sizes);
    }
    if has_dot {
        info = info.push_next(&mut dot);
    }
    // SAFETY: a physical device of this instance, with extensions and features that it has.
    let device = unsafe { vulkan.instance.create_device(physical.handle, &info, None) }?;
    Ok(match options.interposer {
        Some(interposer) => interposer.before(&vulkan.instance, device),
        None => device,
    })
}

impl Gpu {
    /// Opens the device of this number.
    pub(crate) fn open(number: usize, id: &str, options: &OpenOptions) -> Result<Arc<Gpu>> {
        let gpu = Gpu::open_unchecked(number, id, options)?.with_products_checked(options);
        if !gpu.health.is_over() {
            return Ok(gpu);
        }
        tracing::warn!(
            "{id}: it did not survive the check of its products, and is opened again without what was checked; {DOT}=0 leaves the check out"
        );
        Ok(Arc::new(Gpu::open_unchecked(number, id, options)?))
    }

    fn open_unchecked(number: usize, id: &str, options: &OpenOptions) -> Result<Gpu> {
        let error = |detail: String| Error::Device { device: id.to_owned(), op: None, detail };
        let vulkan = vulkan().ok_or_else(|| error("there is no Vulkan on this host any more".into()))?;
        let mut physical = vulkan.physical.get(number).ok_or_else(|| error("there is no such device".into()))?.clone();
        // On cards with the host's memory, other programs have met trouble with it, and there is nothing to win.
        physical.copies = physical.copies.filter(|_| physical.kind == DeviceKind::Gpu && wants_copies());
        physical.units = physical.units.filter(|_| wants_units());
        let cannot = |what: &str, e: vk::Result| error(format!("{what}: {e}"));
        let device = create(vulkan, &physical, options).or_else(|_| {
            physical.copies = None;
            create(vulkan, &physical, options)
        });
        let device = device.map_err(|e| cannot("it cannot be opened", e))?;
        // SAFETY: the one queue of the family that was asked for.
        let queue = unsafe { device.get_device_queue(physical.family, 0) };
        // SAFETY: the same of the other family.
        let copies = physical.copies.map(|family| Mutex::new(unsafe { device.get_device_queue(family, 0) }));
        let describes = AllocatorCreateDesc {
            instance: vulkan.instance.clone(),
            device: device.clone(),
            physical_device: physical.handle,
            debug_settings: AllocatorDebugSettings::default(),
            buffer_device_address: true,
            allocation_sizes: AllocationSizes::new(BLOCK, BLOCK),
        };
        let file = options.pipelines.as_ref().map(|folder| PipelineFile::new(folder, &physical.identity));
        let cached = file.as_ref().map(PipelineFile::read).unwrap_or_default();
        let is_unified = is_unified(vulkan, &physical, options);
        let making = Making {
            cached: &cached,
            has_feedback: physical.has_feedback,
            has_full_subgroups: physical.units.is_some(),
            ..Making::default()
        };
        let pipelines = || Pipelines::new(&device, making).map_err(|e| cannot("its pipelines cannot be made", e));
        let made = Allocator::new(&describes)
            .map_err(|e| error(format!("its memory cannot be managed: {e}")))
            .and_then(|allocator| Ok((allocator, pipelines()?)));
        match made {
            Ok((allocator, pipelines)) => Ok(Gpu {
                vulkan,
                physical,
                id: id.into(),
                device,
                queue: Mutex::new(queue),
                copies,
                is_unified,
                copies_by_test: options.copies,
                allocator: ManuallyDrop::new(Mutex::new(allocator)),
                pipelines: ManuallyDrop::new(pipelines),
                file,
                saving: AtomicBool::new(false),
                fast: OnceLock::new(),
                imports: OnceLock::new(),
                opened: (number, options.interposer),
                health: CardHealth::new(options.patience),
            }),
            Err(error) => {
                // SAFETY: nothing of it is left.
                unsafe { device.destroy_device(None) };
                Err(error)
            }
        }
    }

    /// Another device of the same hardware, to be lost where this one must not be. It is given up after some seconds.
    pub(crate) fn another(&self) -> Result<Arc<Gpu>> {
        let (number, interposer) = self.opened;
        let options = OpenOptions { patience: SHORT_PATIENCE, interposer, ..OpenOptions::default() };
        Ok(Arc::new(Gpu::open_unchecked(number, &self.id, &options)?))
    }

    /// Decides how it computes products: with matrix units and products of whole numbers, if it has them (or a test says so), they are wanted, and they compute what
    /// they should.
    fn with_products_checked(self, options: &OpenOptions) -> Arc<Gpu> {
        let gpu = Arc::new(self);
        let units = gpu.physical.units.or(options.units);
        let units = units.filter(|&units| is_right(&gpu, Checked::Units(units)));
        let dot = wants_dot(&gpu.physical, options) && is_right(&gpu, Checked::Dot);
        let units_used = units.map_or("none".to_owned(), |Units { m, n, k, .. }| format!("{m} x {n} x {k}"));
        tracing::debug!(
            "{}: matrix units used: {units_used}; integer dot product used: {dot}; queue for copies: {}; memory is the host's: {}; mapped files in place: {}",
            gpu.id,
            gpu.has_copies(),
            gpu.is_unified,
            gpu.physical.host_alignment.is_some(),
        );
        // Nothing else sets it.
        let _ = gpu.fast.set(Fast { units, dot });
        gpu
    }

    /// What it has for products that computes what it should.
    pub(crate) fn fast(&self) -> Fast {
        self.fast.get().copied().unwrap_or_default()
    }

    /// Writes pipelines that are new, some time from now: others may follow.
    pub(crate) fn save_pipelines_soon(self: &Arc<Gpu>) {
        if self.file.is_none() || self.pipelines.counts().new == 0 || self.saving.swap(true, Ordering::Relaxed) {
            return;
        }
        let of = Arc::downgrade(self);
        let save = move || {
            std::thread::sleep(SAVE_AFTER);
            if let Some(gpu) = of.upgrade() {
                gpu.saving.store(false, Ordering::Relaxed);
                gpu.save_pipelines();
            }
        };
        // Without a thread, when it is closed.
        let _ = std::thread::Builder::new().name(format!("{} pipelines", self.id)).spawn(save);
    }

    /// Writes pipelines, if there are new ones. What cannot be written is compiled again another time.
    fn save_pipelines(&self) {
        let counts = self.pipelines.counts();
        let Some(file) = self.file.as_ref().filter(|_| counts.new > 0) else { return };
        let saved = self.pipelines.cached().map_err(std::io::Error::other).and_then(|data| file.write(&data));
        match saved {
            Ok(()) => {
                let Counts { made, from_cache, new } = counts;
                tracing::debug!("{}: {made} pipelines, {from_cache} from the driver's cache, {new} to keep", self.id);
            }
            Err(why) => tracing::debug!("{}: compiled pipelines are not kept: {why}", self.id),
        }
    }

    fn error(&self, detail: String) -> Error {
        Error::Device { device: self.id.to_string(), op: None, detail }
    }

    /// A failed call as an error. A lost device stays lost.
    pub(crate) fn failed(&self, what: &str, result: vk::Result) -> Error {
        if result == vk::Result::ERROR_DEVICE_LOST {
            self.health.lose("its driver has lost it");
        }
        self.error(format!("{what}: {result}"))
    }

    /// An error if there is nothing to wait for any more: the device was lost, or nothing has come to an end for too long since the wait began,
    /// and it is given up.
    pub(crate) fn check(&self, waits_since: Instant) -> Result<()> {
        let given_up = || tracing::warn!("{}: it hangs, and is given up", self.id);
        self.health.check(waits_since, given_up).map_err(|detail| self.error(detail))
    }

    /// Whether long copies have a queue of their own.
    pub(crate) fn has_copies(&self) -> bool {
        self.copies.is_some() || self.copies_by_test
    }

    /// The queue family of a lane.
    pub(crate) fn family(&self, lane: Lane) -> u32 {
        self.physical.copies.filter(|_| lane == Lane::Copies).unwrap_or(self.physical.family)
    }

    /// Gives a queue of the device command buffers, behind everything that it was given before, and behind a value of the semaphore, which another queue may bring; the
    /// semaphore gets a value when they are done.
    pub(crate) fn submit(
        &self,
        lane: Lane,
        commands: &[vk::CommandBuffer],
        (semaphore, value): (vk::Semaphore, u64),
        behind: Option<u64>,
    ) -> Result<()> {
        let (semaphores, values) = ([semaphore], [value]);
        let (waits, stages) = ([behind.unwrap_or(0)], [vk::PipelineStageFlags::ALL_COMMANDS]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let mut submit = vk::SubmitInfo::default().command_buffers(commands).signal_semaphores(&semaphores);
        if behind.is_some() {
            timeline = timeline.wait_semaphore_values(&waits);
            submit = submit.wait_semaphores(&semaphores).wait_dst_stage_mask(&stages);
        }
        let submit = submit.push_next(&mut timeline);
        if let Some(why) = self.health.end() {
            return Err(self.error(format!("{why}, and is given nothing more")));
        }
        let queue = match (lane, &self.copies) {
            (Lane::Copies, Some(copies)) => lock(copies),
            _ => lock(&self.queue),
        };
        // SAFETY: the queue is locked; the command buffers are recorded, and whoever gives them keeps them and what they use.
        let done = unsafe { self.device.queue_submit(*queue, &[submit], vk::Fence::null()) };
        done.map_err(|e| self.failed("commands cannot be submitted", e))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.save_pipelines();
        // SAFETY: everything that is of the device keeps it, so that nothing is left; the two are dropped once, before it.
        unsafe {
            let _ = self.device.device_wait_idle();
            ManuallyDrop::drop(&mut self.pipelines);
            ManuallyDrop::drop(&mut self.allocator);
            self.device.destroy_device(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::variants;
    use std::path::Path;
    use std::process::Command;

    /// RADV's description file. It compiles for cards that are not there, and keeps what it has compiled, as software drivers do not.
    const RADV: &str = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json";
    /// Names the folder of the pipelines for [`of_the_named_card`].
    const FOLDER: &str = "OUTBOARD_TEST_PIPELINES";

    /// Of the driver that the environment names; on its own it says nothing.
    #[test]
    fn of_the_named_card() {
        let Some(folder) = std::env::var_os(FOLDER) else { return println!("skipped: {FOLDER} names no folder") };
        let options = OpenOptions { pipelines: Some(folder.into()), ..OpenOptions::default() };
        let gpu = Gpu::open(0, "Vulkan0", &options).unwrap();
        let start = Instant::now();
        for (_, variant) in &variants()[..6] {
            gpu.pipelines.get(variant).unwrap();
        }
        println!("{} of 6 pipelines from the cache, {:?}", gpu.pipelines.counts().from_cache, start.elapsed());
        gpu.save_pipelines();
        // RADV cannot wait for a card that is not there.
        std::mem::forget(gpu);
    }

    /// The same, where the file must be there before the device is closed.
    #[test]
    fn while_it_is_open() {
        let Some(folder) = std::env::var_os(FOLDER) else { return println!("skipped: {FOLDER} names no folder") };
        let options = OpenOptions { pipelines: Some(folder.clone().into()), ..OpenOptions::default() };
        let gpu = Gpu::open(0, "Vulkan0", &options).unwrap();
        gpu.pipelines.get(&variants()[0].1).unwrap();
        gpu.save_pipelines_soon();
        let end = Instant::now() + 30 * SAVE_AFTER;
        while !std::fs::read_dir(&folder).is_ok_and(|files| files.count() > 0) {
            assert!(Instant::now() < end, "no pipelines are written");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::mem::forget(gpu);
    }

    /// Runs a test above in a process with this folder. Returns what it said.
    fn on_a_card(test: &str, folder: &Path) -> String {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("gpu::tests::{test}"), "--nocapture"])
            .envs([("RADV_FORCE_FAMILY", "navi21"), ("VK_ICD_FILENAMES", RADV), ("MESA_SHADER_CACHE_DISABLE", "true")])
            .env(FOLDER, folder)
            .output()
            .unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        said
    }

    /// Pipelines that the driver had in its cache, of six, in a process with this folder.
    fn from_cache(folder: &Path) -> usize {
        let said = on_a_card("of_the_named_card", folder);
        let line = said.lines().find_map(|line| line.split_once(" of 6 pipelines")).unwrap_or_else(|| panic!("{said}"));
        println!("{}", said.lines().find(|line| line.contains(" of 6 ")).unwrap());
        line.0.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_driver_does_not_compile_twice() {
        if !Path::new(RADV).exists() {
            return println!("skipped: {RADV} is not here (mesa-vulkan-drivers)");
        }
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("pipelines");
        assert_eq!([from_cache(&kept), from_cache(&kept)], [0, 6]);
        let file = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        // What is damaged is compiled again, and kept again.
        for damaged in
            [&whole[..whole.len() / 2], &[&whole[..whole.len() - 1], &[!whole[whole.len() - 1]]].concat(), b""]
        {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!([from_cache(&kept), from_cache(&kept)], [0, 6]);
        }
        std::fs::remove_dir_all(&kept).unwrap();
        assert_eq!([from_cache(&kept), from_cache(&kept)], [0, 6]);
        // Where nothing can be written, nothing is kept.
        let nowhere = file.join("folder");
        assert_eq!([from_cache(&nowhere), from_cache(&nowhere)], [0, 0]);
        on_a_card("while_it_is_open", &folder.path().join("another"));
    }
}
