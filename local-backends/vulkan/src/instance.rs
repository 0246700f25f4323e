//! The loader of this host, and the physical devices behind it.

use crate::dot::Dot;
use crate::import::is_offered;
use crate::reported::{Reported, text};
use crate::units::{Units, unbelieved, units};
use ash::vk;
use outboard_core::DeviceKind;
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

/// What a physical device is, or what it lacks.
fn describe(
    loader: &ash::Entry,
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
    number: usize,
) -> Result<(Physical, Found), String> {
    let reported = Reported::new(instance, handle)?;
    reported.check()?;
    let family = reported.computing_family().ok_or_else(|| format!("{} does not compute", reported.name))?;
    let kind = reported.kind();
    let (class, device_id) = match kind {
        DeviceKind::Cpu => (Class::Software, String::new()),
        _ => (Class::Hardware, reported.hardware_id()),
    };
    let (of, limits) = (&reported.of, reported.of.limits);
    let identity = Identity {
        driver: reported.driver.driver_id.as_raw() as u32,
        driver_version: of.driver_version,
        vendor: of.vendor_id,
        device: of.device_id,
        cache_uuid: of.pipeline_cache_uuid,
    };
    let takes_host_memory =
        kind != DeviceKind::Gpu && reported.has(ash::ext::external_memory_host::NAME) && is_offered(instance, handle);
    let has_dot = reported.has(ash::khr::shader_integer_dot_product::NAME);
    let physical = Physical {
        handle,
        identity,
        family: family as u32,
        copies: reported.copying_family().map(|family| family as u32),
        limits,
        max_alloc: reported.maintenance.max_memory_allocation_size,
        has_timestamps: reported.families[family].timestamp_valid_bits > 0 && limits.timestamp_period > 0.0,
        has_budget: reported.has(ash::ext::memory_budget::NAME),
        has_feedback: reported.has(ash::ext::pipeline_creation_feedback::NAME),
        units: usable_units(loader, &reported),
        dot: if has_dot { Dot::of(instance, handle, kind) } else { Dot::Absent },
        host_alignment: takes_host_memory.then_some(reported.of_host.min_imported_host_pointer_alignment),
        kind,
    };
    Ok((physical, Found { number, description: reported.description(), kind, device_id, class }))
}

/// The matrix units that kernels can use.
fn usable_units(loader: &ash::Entry, reported: &Reported) -> Option<Units> {
    if !reported.offers_units() {
        return None;
    }
    let name = &reported.name;
    if let Some(why) = unbelieved(reported.driver.driver_id) {
        tracing::info!("{name}: its matrix units are not used: {why} ({})", text(&reported.driver.driver_info));
        return None;
    }
    if !reported.has_one_subgroup_size() {
        tracing::debug!("{name}: its matrix units are not used: its subgroups are of several sizes");
        return None;
    }
    let (subgroup, shared) = (reported.subgroups.subgroup_size, reported.of.limits.max_compute_shared_memory_size);
    let usable = units(loader, reported.instance, reported.handle, subgroup, shared);
    if usable.is_none() {
        tracing::debug!("{name}: kernels can use no size of its matrix units");
    }
    usable
}
