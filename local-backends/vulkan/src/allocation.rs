//! Memory of a driver: heaps, allocations, addresses.

use crate::gpu::Gpu;
use crate::instance::{Physical, Vulkan};
use ash::vk;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};
use outboard_core::{Error, MemoryInfo, Result, lock};
use std::sync::Arc;

/// Bytes behind a buffer's end that may be read, and are not used: elements are read in whole words.
pub(crate) const TAIL: u64 = 16;

/// Memory as Vulkan has it.
#[derive(Debug)]
pub(crate) struct Raw {
    gpu: Arc<Gpu>,
    pub(crate) buffer: vk::Buffer,
    allocation: Option<Allocation>,
    /// Where shaders find it.
    pub(crate) address: u64,
}

impl Gpu {
    /// The heap that it computes in: all of it, and what the driver says is free.
    pub(crate) fn memory(&self) -> MemoryInfo {
        heap(self.vulkan, &self.physical)
    }

    /// What its types of memory are.
    pub(crate) fn memory_types(&self) -> Vec<vk::MemoryPropertyFlags> {
        // SAFETY: a physical device of this instance.
        let memory = unsafe { self.vulkan.instance.get_physical_device_memory_properties(self.physical.handle) };
        memory.memory_types_as_slice().iter().map(|of| of.property_flags).collect()
    }

    /// New memory; what is in it is whatever was there.
    pub(crate) fn allocate(self: &Arc<Gpu>, size: u64, location: MemoryLocation) -> Result<Raw> {
        let out_of_memory = || {
            let free = self.memory().free;
            Error::OutOfMemory { device: self.id.to_string(), needed: size, free }
        };
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let families = [Some(self.physical.family), self.physical.copies].map(|family| family.unwrap_or_default());
        let mut info = vk::BufferCreateInfo::default().size((size + TAIL).next_multiple_of(TAIL)).usage(usage);
        if self.physical.copies.is_some() {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families);
        }
        // SAFETY: the device lives, and the structure is whole.
        let buffer = unsafe { self.device.create_buffer(&info, None) }.map_err(|_| out_of_memory())?;
        let mut raw = Raw { gpu: self.clone(), buffer, allocation: None, address: 0 };
        // SAFETY: the buffer was just made.
        let requirements = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        // Tensors have allocations of their own: of one that is cut from a larger one, a client would hold all and pay for a part.
        let scheme = match location {
            MemoryLocation::GpuOnly | MemoryLocation::CpuToGpu => AllocationScheme::DedicatedBuffer(buffer),
            _ => AllocationScheme::GpuAllocatorManaged,
        };
        let describes =
            AllocationCreateDesc { name: "memory", requirements, location, linear: true, allocation_scheme: scheme };
        let allocation = lock(&self.allocator).allocate(&describes).map_err(|why| {
            tracing::debug!("{}: {size} bytes could not be had: {why}", self.id);
            out_of_memory()
        })?;
        let allocation = raw.allocation.insert(allocation);
        // SAFETY: the memory is of this device, large enough and of a fitting type, and the buffer has none yet.
        let bound = unsafe { self.device.bind_buffer_memory(buffer, allocation.memory(), allocation.offset()) };
        bound.map_err(|e| self.failed("memory cannot be bound", e))?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: a buffer with memory that was made for addresses.
        raw.address = unsafe { self.device.get_buffer_device_address(&info) };
        Ok(raw)
    }
}

/// The largest heap of a device's own, and its place among all.
fn own_heap(memory: &vk::PhysicalDeviceMemoryProperties) -> Option<(usize, vk::MemoryHeap)> {
    let heaps = memory.memory_heaps_as_slice().iter().copied().enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.max_by_key(|(_, heap)| heap.size)
}

/// Whether memory of the largest heap of a device's own can be written by the host.
pub(crate) fn host_sees_heap(vulkan: &Vulkan, physical: &Physical) -> bool {
    // SAFETY: a physical device of this instance.
    let memory = unsafe { vulkan.instance.get_physical_device_memory_properties(physical.handle) };
    let largest = own_heap(&memory).map(|(place, _)| place as u32);
    let wanted = vk::MemoryPropertyFlags::DEVICE_LOCAL
        | vk::MemoryPropertyFlags::HOST_VISIBLE
        | vk::MemoryPropertyFlags::HOST_COHERENT;
    let mut types = memory.memory_types_as_slice().iter();
    types.any(|of| Some(of.heap_index) == largest && of.property_flags.contains(wanted))
}

/// The largest heap of a device's own, as `VK_EXT_memory_budget` sees it.
pub(crate) fn heap(vulkan: &Vulkan, physical: &Physical) -> MemoryInfo {
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if physical.has_budget {
        properties = properties.push_next(&mut budget);
    }
    // SAFETY: a physical device of this instance, and structures that it may fill.
    unsafe { vulkan.instance.get_physical_device_memory_properties2(physical.handle, &mut properties) };
    let memory = properties.memory_properties;
    let Some((place, heap)) = own_heap(&memory) else {
        return MemoryInfo { total: 0, free: 0 };
    };
    let free = if physical.has_budget {
        budget.heap_budget[place].saturating_sub(budget.heap_usage[place])
    } else {
        heap.size
    };
    MemoryInfo { total: heap.size, free }
}

impl Raw {
    /// The memory as the host sees it, where it does.
    pub(crate) fn mapped(&self) -> Option<*mut u8> {
        Some(self.allocation.as_ref()?.mapped_ptr()?.as_ptr().cast())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take()
            && let Err(why) = lock(&self.gpu.allocator).free(allocation)
        {
            tracing::warn!("{}: memory could not be freed: {why}", self.gpu.id);
        }
        // SAFETY: whoever drops it has waited for what uses it; the buffer is destroyed once.
        unsafe { self.gpu.device.destroy_buffer(self.buffer, None) };
    }
}
