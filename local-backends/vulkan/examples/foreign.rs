//! Compiles another program's kernel on the first Vulkan device, so that its driver can be asked what it makes of it: `foreign FILE.spv CONSTANT...`. With
//! `RADV_FORCE_FAMILY=gfx1100 RADV_DEBUG=shaders` and RADV's description file as `VK_ICD_FILENAMES`, the code for a card that is not there is printed
//! (`bench/vulkan/count.py` counts it). Kernels have up to eight buffers, and 128 bytes of push constants.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use std::error::Error;

/// Buffers that a kernel may have.
const BUFFERS: u32 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: foreign FILE.spv CONSTANT...")?;
    let constants: Vec<u32> = args.map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let words: Vec<u32> = std::fs::read(&file)?.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
    // SAFETY: the system's own loader; every structure below is whole and lives as long as it is used; the process ends without giving anything back.
    unsafe { compile(&words, &constants) }
}

/// # Safety
/// The words are a valid module that the first device can compile.
unsafe fn compile(words: &[u32], constants: &[u32]) -> Result<(), Box<dyn Error>> {
    // SAFETY: as the caller promises; structures are whole.
    unsafe {
        let entry = ash::Entry::load()?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        let instance = entry.create_instance(&info, None)?;
        let physical = *instance.enumerate_physical_devices()?.first().ok_or("no device")?;
        let (mut f11, mut f12, mut f13) = Default::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next::<vk::PhysicalDeviceVulkan11Features>(&mut f11)
            .push_next::<vk::PhysicalDeviceVulkan12Features>(&mut f12)
            .push_next::<vk::PhysicalDeviceVulkan13Features>(&mut f13);
        // Everything that it has.
        instance.get_physical_device_features2(physical, &mut features);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut features);
        let device = instance.create_device(physical, &info, None)?;
        let binding = |i| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(i)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..BUFFERS).map(binding).collect();
        let sets = [device
            .create_descriptor_set_layout(&vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings), None)?];
        let ranges = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(128)];
        let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&ranges);
        let layout = device.create_pipeline_layout(&layout, None)?;
        let module = device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(words), None)?;
        let entry = |i: usize| vk::SpecializationMapEntry { constant_id: i as u32, offset: 4 * i as u32, size: 4 };
        let entries: Vec<_> = (0..constants.len()).map(entry).collect();
        let data: Vec<u8> = constants.iter().flat_map(|constant| constant.to_le_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
        device.create_compute_pipelines(vk::PipelineCache::null(), &[info], None).map_err(|(_, e)| e)?;
    }
    Ok(())
}
