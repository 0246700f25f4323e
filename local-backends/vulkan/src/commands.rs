//! Command buffers, and the timeline on which they are done.

use crate::gpu::Gpu;
use ash::vk;
use outboard_core::{Error, Result};
use std::borrow::Borrow;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a wait looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Longest time between two looks whether a device that hung is done after all.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Which of a device's queues is given commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The one that computes.
    Compute,
    /// One for long copies between host and device, which kernels need not wait for.
    Copies,
}

impl Lane {
    /// What its commands may be waited for in.
    fn stages(self) -> vk::PipelineStageFlags {
        let copies = vk::PipelineStageFlags::TRANSFER | vk::PipelineStageFlags::HOST;
        match self {
            Lane::Compute => copies | vk::PipelineStageFlags::COMPUTE_SHADER,
            Lane::Copies => copies,
        }
    }
}

/// A pool and the command buffers of it. Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Commands {
    gpu: Arc<Gpu>,
    lane: Lane,
    pool: vk::CommandPool,
}

impl Commands {
    pub(crate) fn new(gpu: &Arc<Gpu>, lane: Lane) -> Result<Commands> {
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(gpu.family(lane));
        // SAFETY: the device lives, and the family is one that it was opened with.
        let pool = unsafe { gpu.device.create_command_pool(&info, None) };
        Ok(Commands { gpu: gpu.clone(), lane, pool: pool.map_err(|e| gpu.failed("no command pool", e))? })
    }

    /// A new command buffer.
    pub(crate) fn buffer(&self) -> Result<vk::CommandBuffer> {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
        // SAFETY: a pool of this device that no other thread uses.
        let made = unsafe { self.gpu.device.allocate_command_buffers(&info) };
        let made = made.map_err(|e| self.gpu.failed("no command buffer", e))?;
        made.first().copied().ok_or_else(|| self.gpu.failed("no command buffer", vk::Result::ERROR_UNKNOWN))
    }

    /// Records a command buffer anew. It begins when everything that the queue was given before is done, and sees what that has written.
    pub(crate) fn record(
        &self,
        commands: vk::CommandBuffer,
        usage: vk::CommandBufferUsageFlags,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<()> {
        let device = &self.gpu.device;
        let info = vk::CommandBufferBeginInfo::default().flags(usage);
        // SAFETY: a command buffer of this pool that is not in use, recorded by this thread alone.
        let done = unsafe {
            device.begin_command_buffer(commands, &info).and_then(|()| {
                barrier(device, commands, self.lane);
                record(device, commands);
                // The host writes memory itself that commands have written before.
                if self.gpu.is_unified {
                    barrier(device, commands, self.lane);
                }
                device.end_command_buffer(commands)
            })
        };
        done.map_err(|e| self.gpu.failed("commands cannot be recorded", e))
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has waited for its command buffers.
        unsafe { self.gpu.device.destroy_command_pool(self.pool, None) };
    }
}

/// What comes behind it sees what was written before it, by shaders, copies and the host.
///
/// # Safety
///
/// The command buffer is being recorded, by this thread alone.
pub(crate) unsafe fn barrier(device: &ash::Device, commands: vk::CommandBuffer, lane: Lane) {
    let all = lane.stages();
    let memory = vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
        .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE);
    // SAFETY: what this function asks for.
    unsafe {
        device.cmd_pipeline_barrier(commands, all, all, vk::DependencyFlags::empty(), &[memory], &[], &[]);
    }
}

/// The kernels behind it see what the kernels before it have written. With copies and the host as in [`barrier`], an H100 takes 3 µs longer.
///
/// # Safety
///
/// The command buffer is being recorded, by this thread alone.
pub(crate) unsafe fn kernel_barrier(device: &ash::Device, commands: vk::CommandBuffer) {
    let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
    let memory = vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::SHADER_WRITE)
        .dst_access_mask(vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE);
    // SAFETY: what this function asks for.
    unsafe {
        device.cmd_pipeline_barrier(commands, stage, stage, vk::DependencyFlags::empty(), &[memory], &[], &[]);
    }
}

/// A timeline semaphore.
#[derive(Debug)]
pub(crate) struct Timeline {
    gpu: Arc<Gpu>,
    pub(crate) semaphore: vk::Semaphore,
}

impl Timeline {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Timeline> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device lives and has the feature.
        let semaphore = unsafe { gpu.device.create_semaphore(&info, None) };
        Ok(Timeline { gpu: gpu.clone(), semaphore: semaphore.map_err(|e| gpu.failed("no timeline", e))? })
    }

    /// Whether its device is lost: nothing signals it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gpu.health.is_lost()
    }

    /// What it has reached.
    pub(crate) fn reached(&self) -> Result<u64> {
        // SAFETY: a timeline semaphore of this device.
        let value = unsafe { self.gpu.device.get_semaphore_counter_value(self.semaphore) };
        value.map_err(|e| self.gpu.failed("its timeline", e))
    }

    /// Waits for a value; [`Error::Cancelled`] when the flag is set. A device that hangs is given up.
    pub(crate) fn wait(&self, value: u64, cancel: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        while !self.wait_for(value, LOOK_AGAIN)? {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            self.gpu.check(begun)?;
        }
        self.gpu.health.goes_on();
        Ok(())
    }

    /// Waits so long for a value. Returns whether it was reached.
    pub(crate) fn wait_for(&self, value: u64, limit: Duration) -> Result<bool> {
        let (semaphores, values) = ([self.semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: a timeline semaphore of this device.
        match unsafe { self.gpu.device.wait_semaphores(&info, limit) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(error) => Err(self.gpu.failed("what it was given is not done", error)),
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has waited for what signals it.
        unsafe { self.gpu.device.destroy_semaphore(self.semaphore, None) };
    }
}

/// Runs some commands that use `used`, waits for them and gives it back.
pub(crate) fn run_once<T: Send + 'static>(
    gpu: &Arc<Gpu>,
    used: T,
    record: impl FnOnce(&ash::Device, vk::CommandBuffer, &T),
) -> Result<T> {
    let (commands, timeline) = (Commands::new(gpu, Lane::Compute)?, Timeline::new(gpu)?);
    let buffer = commands.buffer()?;
    let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
    commands.record(buffer, once, |device, commands| record(device, commands, &used))?;
    gpu.submit(Lane::Compute, &[buffer], (timeline.semaphore, 1), None)?;
    let Err(error) = timeline.wait(1, &AtomicBool::new(false)) else { return Ok(used) };
    keep_until_done(gpu, timeline, 1, (commands, used));
    Err(error)
}

/// Keeps what a device may still be at until its timeline has a value, or it is lost: nothing is freed under its hands.
pub(crate) fn keep_until_done<T: Send + 'static>(
    gpu: &Gpu,
    timeline: impl Borrow<Timeline> + Send + 'static,
    value: u64,
    used: T,
) {
    if gpu.health.is_lost() {
        return;
    }
    tracing::warn!("{}: it does not end what it was given; its memory is kept until it does", gpu.id);
    // Where no thread can be had, for good.
    let used = ManuallyDrop::new((timeline, used));
    let pause = gpu.health.patience().min(LONGEST_PAUSE);
    let keep = move || {
        while !is_done(used.0.borrow(), value, pause) {}
        drop(ManuallyDrop::into_inner(used));
    };
    let _ = std::thread::Builder::new().name("what a device is at".into()).spawn(keep);
}

/// Whether the device uses nothing any more of what has this value, known after this time at most.
pub(crate) fn is_done(timeline: &Timeline, value: u64, wait: Duration) -> bool {
    let start = Instant::now();
    match timeline.wait_for(value, wait) {
        Ok(done) => done,
        // A lost device does nothing any more.
        Err(_) if timeline.is_gone() => true,
        Err(_) => {
            std::thread::sleep(wait.saturating_sub(start.elapsed()));
            false
        }
    }
}
