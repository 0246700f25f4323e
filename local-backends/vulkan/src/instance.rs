//! The loader of this host, and the physical devices behind it.

use crate::dot::Dot;
use crate::import::is_offered;
use crate::units::{Units, unbelieved, units};
use ash::vk;
use outboard_core::DeviceKind;
use std::ffi::CStr;
use std::sync::OnceLock;

/// Whether a device is hardware to run models on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Yes.
    Hardware,
    /// A driver that runs on the processors: only for who names it.
    Software,
}

/// A device of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number: `Vulkan0`.
    pub number: usize,
    /// For people: the card and its driver.
    pub description: String,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// The PCI address, or the driver's UUID for the hardware; empty for software.
    pub device_id: String,
    /// Whether it is hardware.
    pub class: Class,
}

/// An instance. It lives as long as the process: some drivers do not survive a second one.
pub(crate) struct Vulkan {
    loader: ash::Entry,
    pub(crate) instance: ash::Instance,
    pub(crate) physical: Vec<Physical>,
    found: Vec<Found>,
}

/// What tells drivers, their versions and their devices apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Vulkan's number of the driver.
    pub(crate) driver: u32,
    pub(crate) driver_version: u32,
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    /// Of the format in which it gives its compiled pipelines.
    pub(crate) cache_uuid: [u8; vk::UUID_SIZE],
}

/// A physical device that has what is needed.
#[derive(Clone)]
pub(crate) struct Physical {
    pub(crate) handle: vk::PhysicalDevice,
    pub(crate) identity: Identity,
    /// The queue family that computes.
    pub(crate) family: u32,
    /// One that does nothing but copy.
    pub(crate) copies: Option<u32>,
    pub(crate) limits: vk::PhysicalDeviceLimits,
    /// Bytes of the largest allocation.
    pub(crate) max_alloc: u64,
    /// Whether the family's timestamps mean something.
    pub(crate) has_timestamps: bool,
    /// Whether the driver says how much of a heap is free.
    pub(crate) has_budget: bool,
    /// Whether the driver says where it had a pipeline from.
    pub(crate) has_feedback: bool,
    /// Matrix units that it says it has.
    pub(crate) units: Option<Units>,
    /// Products of whole numbers that it says it has.
    pub(crate) dot: Dot,
    /// Where memory of the host must begin to be used in place, if it can be, and is as near as memory of the device.
    pub(crate) host_alignment: Option<u64>,
    pub(crate) kind: DeviceKind,
}

/// What Vulkan offers here; without a loader or a driver, nothing.
pub(crate) fn vulkan() -> Option<&'static Vulkan> {
    static VULKAN: OnceLock<Option<Vulkan>> = OnceLock::new();
    let open = || Vulkan::open().inspect_err(|why| tracing::debug!("no Vulkan devices: {why}")).ok();
    VULKAN.get_or_init(open).as_ref()
}

/// The devices of this host, software drivers included.
pub fn find() -> &'static [Found] {
    vulkan().map_or(&[], |vulkan| &vulkan.found)
}

impl Vulkan {
    fn open() -> Result<Vulkan, String> {
        // SAFETY: the system's own Vulkan loader, which has no requirements of its own.
        let loader = unsafe { ash::Entry::load() }.map_err(|e| format!("there is no loader: {e}"))?;
        let application = vk::ApplicationInfo::default().application_name(c"outboard").api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structure is whole, and names no extensions or layers.
        let instance = unsafe { loader.create_instance(&info, None) }.map_err(|e| format!("no instance: {e}"))?;
        // SAFETY: the instance was just made.
        let handles =
            unsafe { instance.enumerate_physical_devices() }.map_err(|e| format!("its drivers found no card: {e}"))?;
        let mut vulkan = Vulkan { loader, instance, physical: Vec::new(), found: Vec::new() };
        for handle in handles {
            match describe(&vulkan.loader, &vulkan.instance, handle, vulkan.found.len()) {
                Ok((physical, found)) => {
                    vulkan.physical.push(physical);
                    vulkan.found.push(found);
                }
                Err(why) => tracing::debug!("a Vulkan device is left out: {why}"),
            }
        }
        Ok(vulkan)
    }
}

/// What families that only copy may do besides.
const COPIES: vk::QueueFlags =
    vk::QueueFlags::from_raw(vk::QueueFlags::SPARSE_BINDING.as_raw() | vk::QueueFlags::PROTECTED.as_raw());

/// What a physical device is, or what it lacks.
fn describe(
    loader: &ash::Entry,
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
    number: usize,
) -> Result<(Physical, Found), String> {
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut subgroups = vk::PhysicalDeviceSubgroupProperties::default();
    let mut maintenance = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
    let mut of_host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut ids)
        .push_next(&mut driver)
        .push_next(&mut subgroups)
        .push_next(&mut maintenance)
        .push_next(&mut floats)
        .push_next(&mut of_host);
    // SAFETY: a physical device of this instance, and structures that it may fill.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    let of = properties.properties;
    let name = text(&of.device_name);
    if of.api_version < vk::API_VERSION_1_2 {
        let (major, minor) = (vk::api_version_major(of.api_version), vk::api_version_minor(of.api_version));
        return Err(format!("{name} has Vulkan {major}.{minor}, and 1.2 is needed"));
    }
    let mut features12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut features12)
        .push_next(&mut matrices)
        .push_next(&mut sizes);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_features2(handle, &mut features) };
    let arithmetic = subgroups.supported_operations.contains(vk::SubgroupFeatureFlags::ARITHMETIC)
        && subgroups.supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    for (there, what) in [
        (features12.timeline_semaphore != 0, "timeline semaphores"),
        (features12.buffer_device_address != 0, "buffer device addresses"),
        (arithmetic, "arithmetic of subgroups"),
        (floats.shader_signed_zero_inf_nan_preserve_float32 != 0, "floats that keep infinities and NaN"),
        (of.limits.max_compute_work_group_invocations >= 256, "workgroups of 256"),
        (of.limits.max_compute_work_group_size[0] >= 256, "workgroups of 256 in one dimension"),
    ] {
        if !there {
            return Err(format!("{name} has no {what}"));
        }
    }
    // SAFETY: as above.
    let families = unsafe { instance.get_physical_device_queue_family_properties(handle) };
    let computes = |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
    let family = families.iter().position(computes).ok_or_else(|| format!("{name} does not compute"))?;
    let only_copies =
        |f: &vk::QueueFamilyProperties| f.queue_count > 0 && f.queue_flags & !COPIES == vk::QueueFlags::TRANSFER;
    // SAFETY: as above.
    let extensions = unsafe { instance.enumerate_device_extension_properties(handle) }.unwrap_or_default();
    let has = |wanted: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(wanted));
    let kind = match of.device_type {
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::IntegratedGpu,
        vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
        _ => DeviceKind::Gpu,
    };
    let class = if kind == DeviceKind::Cpu { Class::Software } else { Class::Hardware };
    let device_id = match class {
        Class::Software => String::new(),
        Class::Hardware if has(ash::ext::pci_bus_info::NAME) => pci_address(instance, handle),
        Class::Hardware => ids.device_uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let offers_units = has(ash::khr::cooperative_matrix::NAME)
        && matrices.cooperative_matrix != 0
        && features12.shader_float16 != 0
        && features12.vulkan_memory_model != 0
        && features12.vulkan_memory_model_device_scope != 0
        && has(ash::ext::subgroup_size_control::NAME)
        && sizes.compute_full_subgroups != 0;
    let units = match unbelieved(driver.driver_id) {
        Some(why) if offers_units => {
            tracing::info!("{name}: its matrix units are not used: {why} ({})", text(&driver.driver_info));
            None
        }
        _ if offers_units && has_one_size(instance, handle) => {
            let shared = of.limits.max_compute_shared_memory_size;
            let usable = units(loader, instance, handle, subgroups.subgroup_size, shared);
            if usable.is_none() {
                tracing::debug!("{name}: kernels can use no size of its matrix units");
            }
            usable
        }
        _ => None,
    };
    let identity = Identity {
        driver: driver.driver_id.as_raw() as u32,
        driver_version: of.driver_version,
        vendor: of.vendor_id,
        device: of.device_id,
        cache_uuid: of.pipeline_cache_uuid,
    };
    let takes_host_memory =
        kind != DeviceKind::Gpu && has(ash::ext::external_memory_host::NAME) && is_offered(instance, handle);
    let physical = Physical {
        handle,
        identity,
        family: family as u32,
        copies: families.iter().position(only_copies).map(|family| family as u32),
        limits: of.limits,
        max_alloc: maintenance.max_memory_allocation_size,
        has_timestamps: families[family].timestamp_valid_bits > 0 && of.limits.timestamp_period > 0.0,
        has_budget: has(ash::ext::memory_budget::NAME),
        has_feedback: has(ash::ext::pipeline_creation_feedback::NAME),
        units,
        dot: if has(ash::khr::shader_integer_dot_product::NAME) {
            Dot::of(instance, handle, kind)
        } else {
            Dot::Absent
        },
        host_alignment: takes_host_memory.then_some(of_host.min_imported_host_pointer_alignment),
        kind,
    };
    let description =
        format!("{name} ({} {})", text(&driver.driver_name), text(&driver.driver_info)).replace(" )", ")");
    Ok((physical, Found { number, description, kind, device_id, class }))
}

/// Whether all subgroups of a device that has matrix units are of one size: kernels count on it.
fn has_one_size(instance: &ash::Instance, handle: vk::PhysicalDevice) -> bool {
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
    // SAFETY: a physical device of this instance, and structures that it may fill; what it does not know it leaves as it is.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    sizes.min_subgroup_size > 0 && sizes.min_subgroup_size == sizes.max_subgroup_size
}

fn pci_address(instance: &ash::Instance, handle: vk::PhysicalDevice) -> String {
    let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut pci);
    // SAFETY: a physical device of this instance that has the extension, and structures that it may fill.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    format!("{:04x}:{:02x}:{:02x}.{}", pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function)
}

/// A driver's text, up to its end.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
