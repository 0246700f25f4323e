//! Memory of the host that a device uses where it is, such as a mapped file (VK_EXT_external_memory_host).

use crate::allocation::TAIL;
use crate::gpu::Gpu;
use ash::vk;
use bytes::Bytes;
use std::sync::Arc;

/// Pages are no smaller, so that all of the last one is there.
const PAGE: u64 = 4096;

/// What the host's memory is as external memory.
const HANDLE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// Memory of the host as a buffer of a device. It is read only.
#[derive(Debug)]
pub(crate) struct Imported {
    gpu: Arc<Gpu>,
    pub(crate) buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// Where shaders find it.
    pub(crate) address: u64,
    /// What the memory belongs to.
    bytes: Bytes,
}

impl Imported {
    /// Bytes as memory of the device; the error says why it must have a copy of them.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: &Bytes) -> Result<Imported, String> {
        let alignment = gpu.physical.host_alignment.ok_or("its driver uses no memory of the host in place")?;
        if alignment > PAGE || !(bytes.as_ptr() as u64).is_multiple_of(alignment) {
            return Err(format!("its driver asks for multiples of {alignment} bytes"));
        }
        let (len, size) = (bytes.len() as u64, (bytes.len() as u64).next_multiple_of(PAGE));
        if len == 0 || len + TAIL > size {
            return Err("the last page has no room behind the bytes".into());
        }
        if size > gpu.physical.max_alloc {
            return Err(format!("its driver takes {} bytes at once", gpu.physical.max_alloc));
        }
        is_importable(gpu)?;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HANDLE);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC;
        let info = vk::BufferCreateInfo::default().size(size).usage(usage).push_next(&mut external);
        // SAFETY: the device lives, and the structures are whole.
        let buffer = unsafe { gpu.device.create_buffer(&info, None) }.map_err(|e| format!("no buffer: {e}"))?;
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
        .map_err(|e| format!("it does not know the memory: {e}"))?;
        // SAFETY: the buffer was just made.
        let needs = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
        let types = needs.memory_type_bits & properties.memory_type_bits;
        if types == 0 || needs.size > size {
            return Err("its buffers cannot lie there".into());
        }
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HANDLE).host_pointer(pointer);
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(types.trailing_zeros())
            .push_next(&mut import)
            .push_next(&mut flags);
        // SAFETY: whole pages of this process's memory, which are kept as long as this is; nothing writes there by way of the device.
        self.memory = unsafe { gpu.device.allocate_memory(&info, None) }
            .map_err(|e| format!("its driver cannot use this memory: {e}"))?;
        // SAFETY: the memory is of this device, large enough and of a fitting type, and the buffer has none yet.
        unsafe { gpu.device.bind_buffer_memory(buffer, self.memory, 0) }
            .map_err(|e| format!("memory cannot be bound: {e}"))?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: a buffer with memory that was made for addresses.
        self.address = unsafe { gpu.device.get_buffer_device_address(&info) };
        Ok(())
    }
}

/// Whether the driver takes memory of the host for buffers.
fn is_importable(gpu: &Gpu) -> Result<(), String> {
    let asked =
        vk::PhysicalDeviceExternalBufferInfo::default().usage(vk::BufferUsageFlags::STORAGE_BUFFER).handle_type(HANDLE);
    let mut told = vk::ExternalBufferProperties::default();
    // SAFETY: a physical device of this instance, and structures that are whole.
    unsafe {
        let instance = &gpu.vulkan.instance;
        instance.get_physical_device_external_buffer_properties(gpu.physical.handle, &asked, &mut told);
    }
    let features = told.external_memory_properties.external_memory_features;
    if features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE) {
        return Ok(());
    }
    Err("its driver takes no memory of the host for buffers".into())
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
