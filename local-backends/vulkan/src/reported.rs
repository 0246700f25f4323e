//! What a driver says of a physical device.

use ash::vk;
use outboard_core::DeviceKind;
use std::ffi::{CStr, c_char};

/// What families that only copy may do besides.
const COPIES: vk::QueueFlags =
    vk::QueueFlags::from_raw(vk::QueueFlags::SPARSE_BINDING.as_raw() | vk::QueueFlags::PROTECTED.as_raw());

/// Properties, features, extensions and queue families of a physical device of Vulkan 1.2 or later.
pub(crate) struct Reported<'a> {
    pub(crate) instance: &'a ash::Instance,
    pub(crate) handle: vk::PhysicalDevice,
    pub(crate) name: String,
    pub(crate) of: vk::PhysicalDeviceProperties,
    pub(crate) driver: vk::PhysicalDeviceDriverProperties<'a>,
    pub(crate) subgroups: vk::PhysicalDeviceSubgroupProperties<'a>,
    pub(crate) maintenance: vk::PhysicalDeviceMaintenance3Properties<'a>,
    pub(crate) of_host: vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'a>,
    pub(crate) families: Vec<vk::QueueFamilyProperties>,
    ids: vk::PhysicalDeviceIDProperties<'a>,
    floats: vk::PhysicalDeviceFloatControlsProperties<'a>,
    features: vk::PhysicalDeviceVulkan12Features<'a>,
    matrices: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'a>,
    sizes: vk::PhysicalDeviceSubgroupSizeControlFeatures<'a>,
    extensions: Vec<vk::ExtensionProperties>,
}

impl<'a> Reported<'a> {
    /// Asks a physical device of this instance; an error if it has an older Vulkan.
    pub(crate) fn new(instance: &'a ash::Instance, handle: vk::PhysicalDevice) -> Result<Reported<'a>, String> {
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
        let mut features = vk::PhysicalDeviceVulkan12Features::default();
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut chain = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut features)
            .push_next(&mut matrices)
            .push_next(&mut sizes);
        // SAFETY: as above.
        unsafe { instance.get_physical_device_features2(handle, &mut chain) };
        // SAFETY: as above.
        let families = unsafe { instance.get_physical_device_queue_family_properties(handle) };
        // SAFETY: as above.
        let extensions = unsafe { instance.enumerate_device_extension_properties(handle) }.unwrap_or_default();
        Ok(Reported {
            instance,
            handle,
            name,
            of,
            driver,
            subgroups,
            maintenance,
            of_host,
            families,
            ids,
            floats,
            features,
            matrices,
            sizes,
            extensions,
        })
    }

    /// Whether it has an extension.
    pub(crate) fn has(&self, wanted: &CStr) -> bool {
        self.extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(wanted))
    }

    /// An error that names what it lacks of what every kernel needs.
    pub(crate) fn check(&self) -> Result<(), String> {
        let arithmetic = self.subgroups.supported_operations.contains(vk::SubgroupFeatureFlags::ARITHMETIC)
            && self.subgroups.supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
        for (there, what) in [
            (self.features.timeline_semaphore != 0, "timeline semaphores"),
            (self.features.buffer_device_address != 0, "buffer device addresses"),
            (arithmetic, "arithmetic of subgroups"),
            (self.floats.shader_signed_zero_inf_nan_preserve_float32 != 0, "floats that keep infinities and NaN"),
            (self.of.limits.max_compute_work_group_invocations >= 256, "workgroups of 256"),
            (self.of.limits.max_compute_work_group_size[0] >= 256, "workgroups of 256 in one dimension"),
        ] {
            if !there {
                return Err(format!("{} has no {what}", self.name));
            }
        }
        Ok(())
    }

    /// The first queue family that computes.
    pub(crate) fn computing_family(&self) -> Option<usize> {
        self.families.iter().position(|family| family.queue_flags.contains(vk::QueueFlags::COMPUTE))
    }

    /// One that does nothing but copy.
    pub(crate) fn copying_family(&self) -> Option<usize> {
        self.families
            .iter()
            .position(|family| family.queue_count > 0 && family.queue_flags & !COPIES == vk::QueueFlags::TRANSFER)
    }

    pub(crate) fn kind(&self) -> DeviceKind {
        match self.of.device_type {
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::IntegratedGpu,
            vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Gpu,
        }
    }

    /// Of hardware: its PCI address, or the driver's UUID for it.
    pub(crate) fn hardware_id(&self) -> String {
        if !self.has(ash::ext::pci_bus_info::NAME) {
            return self.ids.device_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut pci);
        // SAFETY: a physical device of this instance that has the extension, and structures that it may fill.
        unsafe { self.instance.get_physical_device_properties2(self.handle, &mut properties) };
        format!("{:04x}:{:02x}:{:02x}.{}", pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function)
    }

    /// Whether it offers matrix units, and what kernels for them need besides.
    pub(crate) fn offers_units(&self) -> bool {
        self.has(ash::khr::cooperative_matrix::NAME)
            && self.matrices.cooperative_matrix != 0
            && self.features.shader_float16 != 0
            && self.features.vulkan_memory_model != 0
            && self.features.vulkan_memory_model_device_scope != 0
            && self.has(ash::ext::subgroup_size_control::NAME)
            && self.sizes.compute_full_subgroups != 0
    }

    /// Whether all subgroups of a device that has matrix units are of one size: kernels count on it.
    pub(crate) fn has_one_subgroup_size(&self) -> bool {
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
        // SAFETY: a physical device of this instance, and structures that it may fill; what it does not know it leaves as it is.
        unsafe { self.instance.get_physical_device_properties2(self.handle, &mut properties) };
        sizes.min_subgroup_size > 0 && sizes.min_subgroup_size == sizes.max_subgroup_size
    }

    /// The card and its driver, for people.
    pub(crate) fn description(&self) -> String {
        let [driver, version] = [text(&self.driver.driver_name), text(&self.driver.driver_info)];
        format!("{} ({driver} {version})", self.name).replace(" )", ")")
    }
}

/// A driver's text, up to its end.
pub(crate) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
