//! When a graph ran: timestamps of the device.

use crate::gpu::Gpu;
use ash::vk;
use outboard_core::Result;
use outboard_core::local::Span;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Two timestamps.
#[derive(Debug)]
pub(crate) struct Timer {
    gpu: Arc<Gpu>,
    /// `None` on a device without timestamps.
    queries: Option<vk::QueryPool>,
}

impl Timer {
    fn new(gpu: &Arc<Gpu>) -> Result<Timer> {
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2);
        // SAFETY: the device lives and has timestamps.
        let make = || unsafe { gpu.device.create_query_pool(&info, None) };
        let queries = gpu.physical.has_timestamps.then(make).transpose();
        Ok(Timer { gpu: gpu.clone(), queries: queries.map_err(|e| gpu.failed("no timestamps", e))? })
    }

    /// Takes the first one.
    ///
    /// # Safety
    ///
    /// The command buffer is being recorded, and the timer lives until it is done.
    pub(crate) unsafe fn begin(&self, device: &ash::Device, commands: vk::CommandBuffer) {
        let Some(queries) = self.queries else { return };
        // SAFETY: what this function asks for.
        unsafe {
            device.cmd_reset_query_pool(commands, queries, 0, 2);
            device.cmd_write_timestamp(commands, vk::PipelineStageFlags::BOTTOM_OF_PIPE, queries, 0);
        }
    }

    /// Takes the second one.
    ///
    /// # Safety
    ///
    /// As for [`Timer::begin`].
    pub(crate) unsafe fn end(&self, device: &ash::Device, commands: vk::CommandBuffer) {
        let Some(queries) = self.queries else { return };
        // SAFETY: what this function asks for.
        unsafe { device.cmd_write_timestamp(commands, vk::PipelineStageFlags::BOTTOM_OF_PIPE, queries, 1) };
    }

    /// From when to when the graph ran, which was submitted then and is done now. Only the length is the device's: its clock is not the
    /// host's.
    pub(crate) fn span(&self, gpu: &Gpu, submitted: Instant) -> Span {
        let now = Instant::now();
        let mut ticks = [0u64; 2];
        let read = self.queries.map(|queries| {
            // SAFETY: both timestamps were taken, and there is room for them.
            unsafe { gpu.device.get_query_pool_results(queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64) }
        });
        let Some(Ok(())) = read else { return Span { start: submitted, end: now } };
        let nanoseconds = ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(gpu.physical.limits.timestamp_period);
        let length = Duration::from_nanos(nanoseconds as u64);
        let start = now.checked_sub(length).map_or(submitted, |start| start.max(submitted));
        Span { start, end: (start + length).min(now) }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(queries) = self.queries {
            // SAFETY: whoever drops it has waited for what uses it.
            unsafe { self.gpu.device.destroy_query_pool(queries, None) };
        }
    }
}

/// Those of a stream that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Timers(Vec<Timer>);

impl Timers {
    pub(crate) fn take(&mut self, gpu: &Arc<Gpu>) -> Result<Timer> {
        self.0.pop().map_or_else(|| Timer::new(gpu), Ok)
    }

    pub(crate) fn give_back(&mut self, timer: Timer) {
        self.0.push(timer);
    }
}
