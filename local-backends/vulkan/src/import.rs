//! Memory of the host that a device uses where it is, such as a mapped file (VK_EXT_external_memory_host).

use crate::allocation::TAIL;
use crate::commands::{Lane, barrier, run_once};
use crate::gpu::Gpu;
use ash::vk;
use bytes::Bytes;
use gpu_allocator::MemoryLocation;
use outboard_core::DeviceKind;
use std::fmt;
use std::sync::Arc;

/// Pages are no smaller, so that all of the last one is there.
const PAGE: u64 = 4096;

/// What the host's memory is as external memory, and what buffers in it are for.
const HANDLE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw(),
);

/// What its memory must be: what the host writes is seen without being told.
const WANTED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);
/// What it must not be: memory that has to be asked for as a feature.
const UNWANTED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::PROTECTED.as_raw() | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD.as_raw(),
);

/// Bytes as memory of a device; the error says why it must have a copy of them. The first time, another device of the same driver reads the first of them: some
/// drivers find that they cannot use a file's memory when they do, and the device is lost then.
pub(crate) fn import(gpu: &Arc<Gpu>, bytes: &Bytes) -> Result<Imported, String> {
    if bytes.is_empty() || !(bytes.as_ptr() as u64).is_multiple_of(PAGE) {
        return Err(format!("there are no bytes, or they do not begin with a page of {PAGE}"));
    }
    gpu.imports.get_or_init(|| try_out(gpu, bytes)).clone()?;
    Imported::new(gpu, bytes)
}

/// Imports the first bytes on a device of its own, and reads them.
fn try_out(gpu: &Gpu, bytes: &Bytes) -> Result<(), String> {
    let first = bytes.slice(..bytes.len().min((PAGE - TAIL) as usize));
    let other = gpu.another().map_err(|e| e.to_string())?;
    let imported = Imported::new(&other, &first)?;
    let size = first.len() as u64;
    let copy = other.allocate(size, MemoryLocation::GpuToCpu).map_err(|e| e.to_string())?;
    let (_, copy) = run_once(&other, (imported, copy), |device, commands, (imported, copy)| {
        // SAFETY: two buffers of this device with so many bytes, kept until it is done.
        unsafe {
            let region = vk::BufferCopy::default().size(size);
            device.cmd_copy_buffer(commands, imported.buffer, copy.buffer, &[region]);
            barrier(device, commands, Lane::Compute);
        }
    })
    .map_err(|e| e.to_string())?;
    let mapped = copy.mapped().ok_or("memory that the host cannot address")?;
    // SAFETY: the memory is mapped and has so many bytes, and the device is done.
    let read = unsafe { std::slice::from_raw_parts(mapped, first.len()) };
    if read == first { Ok(()) } else { Err("it reads other bytes there".into()) }
}

/// Memory of the host as a buffer of a device. It is read only.
pub(crate) struct Imported {
    gpu: Arc<Gpu>,
    pub(crate) buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// Where shaders find it.
    pub(crate) address: u64,
    /// What the memory belongs to.
    bytes: Bytes,
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Imported {
    fn new(gpu: &Arc<Gpu>, bytes: &Bytes) -> Result<Imported, String> {
        let alignment = gpu.physical.host_alignment.ok_or("its driver uses no memory of the host in place")?;
        if alignment > PAGE {
            return Err(format!(
                "its driver asks for multiples of {alignment} bytes, and pages of {PAGE} are what is sure"
            ));
        }
        let (len, size) = (bytes.len() as u64, (bytes.len() as u64).next_multiple_of(PAGE));
        if len + TAIL > size {
            return Err("the last page has no room behind the bytes".into());
        }
        if size > gpu.physical.max_alloc {
            return Err(format!("its driver takes {} bytes at once", gpu.physical.max_alloc));
        }
        // A card's driver keeps all pages in memory as long as it may use them.
        if gpu.physical.kind == DeviceKind::IntegratedGpu && size > gpu.memory().free {
            return Err(format!("its driver has room for {} bytes", gpu.memory().free));
        }
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HANDLE);
        let info = vk::BufferCreateInfo::default().size(size).usage(USAGE).push_next(&mut external);
        // SAFETY: the device lives, and the structures are whole.
        let buffer =
            unsafe { gpu.device.create_buffer(&info, None) }.map_err(|e| gpu.failed("no buffer", e).to_string())?;
        // From here on what was made is destroyed with it.
        let memory = vk::DeviceMemory::null();
        let mut made = Imported { gpu: gpu.clone(), buffer, memory, address: 0, bytes: bytes.clone() };
        made.bind(size)?;
        Ok(made)
    }

    /// Gives the buffer its memory.
    fn bind(&mut self, size: u64) -> Result<(), String> {
        let (gpu, buffer) = (&self.gpu, self.buffer);
        let pointer = self.bytes.as_ptr().cast::<std::ffi::c_void>().cast_mut();
        let of_host = ash::ext::external_memory_host::Device::new(&gpu.vulkan.instance, &gpu.device);
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: memory of this process, which the bytes keep, and a device that was opened with the extension.
        unsafe {
            (of_host.fp().get_memory_host_pointer_properties_ext)(gpu.device.handle(), HANDLE, pointer, &mut properties)
        }
        .result()
        .map_err(|e| gpu.failed("it does not know the memory", e).to_string())?;
        // SAFETY: the buffer was just made.
        let needs = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
        let types = needs.memory_type_bits & properties.memory_type_bits;
        let of_types = gpu.memory_types();
        let is_fitting = |&(i, flags): &(usize, vk::MemoryPropertyFlags)| {
            types >> i & 1 == 1 && flags.contains(WANTED) && !flags.intersects(UNWANTED)
        };
        let fitting = of_types.into_iter().enumerate().find(is_fitting).filter(|_| needs.size <= size);
        let (memory_type, _) = fitting.ok_or("its buffers cannot lie there")?;
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HANDLE).host_pointer(pointer);
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(memory_type as u32)
            .push_next(&mut import)
            .push_next(&mut flags);
        // SAFETY: whole pages of this process's memory, which are kept as long as this is; nothing writes there by way of the device.
        self.memory = unsafe { gpu.device.allocate_memory(&info, None) }
            .map_err(|e| gpu.failed("its driver cannot use this memory", e).to_string())?;
        // SAFETY: the memory is of this device, large enough and of a fitting type, and the buffer has none yet.
        unsafe { gpu.device.bind_buffer_memory(buffer, self.memory, 0) }
            .map_err(|e| gpu.failed("memory cannot be bound", e).to_string())?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: a buffer with memory that was made for addresses.
        self.address = unsafe { gpu.device.get_buffer_device_address(&info) };
        Ok(())
    }
}

/// Whether a driver that has the extension says that it takes memory of the host for buffers.
pub(crate) fn is_offered(instance: &ash::Instance, physical: vk::PhysicalDevice) -> bool {
    let asked = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(HANDLE);
    let mut told = vk::ExternalBufferProperties::default();
    // SAFETY: a physical device of this instance, and structures that are whole.
    unsafe { instance.get_physical_device_external_buffer_properties(physical, &asked, &mut told) };
    let told = told.external_memory_properties;
    told.compatible_handle_types.contains(HANDLE)
        && told.external_memory_features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
        && !told.external_memory_features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has waited for what uses it; both are destroyed once, and destroying no memory does nothing.
        unsafe {
            self.gpu.device.destroy_buffer(self.buffer, None);
            self.gpu.device.free_memory(self.memory, None);
        }
    }
}
