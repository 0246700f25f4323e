//! What devices a library has, as it tells of them.

use crate::functions::Object;
use crate::library::{Library, Registry, text};
use outboard_core::{DeviceKind, MemoryInfo};
use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::Arc;

/// Whether a device is hardware to run models on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Yes.
    Hardware,
    /// The processors, which the CPU device has, or a driver that runs on them: only for who names it.
    Software,
}

/// A device of a library.
#[derive(Clone)]
pub struct GgmlDevice {
    library: Arc<Library>,
    registry: Registry,
    device: Registry,
    /// ggml's name of it: `CUDA0`, `Vulkan1`, `CPU`.
    pub name: String,
    /// For people: the model of the card.
    pub description: String,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// The PCI address; empty if ggml does not know it.
    pub device_id: String,
    /// Whether it is hardware.
    pub class: Class,
}

impl fmt::Debug for GgmlDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgmlDevice").field("name", &self.name).finish_non_exhaustive()
    }
}

/// `ggml_backend_dev_props`, which the library fills, and room behind it for fields of later versions.
#[repr(C)]
struct Props {
    name: *const c_char,
    description: *const c_char,
    free: usize,
    total: usize,
    kind: c_int,
    device_id: *const c_char,
    _more: [usize; 32],
}

/// Names of drivers that run on processors, in descriptions.
const SOFTWARE: [&str; 3] = ["llvmpipe", "lavapipe", "SwiftShader"];

/// A backend, as far as devices must know it: by the names that ggml gives its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The processors.
    Cpu,
    /// CUDA, and what is compiled of the same source: HIP and MUSA.
    Cuda,
    Metal,
    Sycl,
    Vulkan,
}

/// Variables that a helper of ggml's has, and what for.
pub(crate) const HELPER_VARIABLES: [(&str, &str); 4] = [
    // ggml starts a debugger for its last words otherwise.
    ("GGML_NO_BACKTRACE", "1"),
    // At the beginning of a graph the fusion of ADD and RMS_NORM clears memory that a graph before may still be at.
    (VULKAN_ALONE, "1"),
    // SYCL moves the bytes of weights about at their first product, and remembers that in one tensor: here several have the same bytes. Later versions
    // have the second name.
    (SYCL_IN_ORDER, "1"),
    ("GGML_SYCL_ENABLE_OPT", "0"),
];
const VULKAN_ALONE: &str = "GGML_VK_DISABLE_FUSION";
const SYCL_IN_ORDER: &str = "GGML_SYCL_DISABLE_OPT";

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

impl Kind {
    /// That of a device of this name. `None` for a backend of which it is not known whether bytes of a tensor lie in its memory as ggml.h says:
    /// CANN's and OpenCL's do not, and nothing of an unknown one is written by anybody but this.
    fn of(device: &str) -> Option<Kind> {
        match device.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "CPU" => Some(Kind::Cpu),
            "CUDA" | "ROCm" | "MUSA" => Some(Kind::Cuda),
            "Metal" | "MTL" => Some(Kind::Metal),
            // Only where it leaves weights as they are.
            "SYCL" if is_set(SYCL_IN_ORDER) => Some(Kind::Sycl),
            "Vulkan" => Some(Kind::Vulkan),
            _ => None,
        }
    }
}

/// The devices of a library that compute alone: those that only help a CPU (BLAS, AMX), and those that consist of others, are left out.
pub fn devices(library: &Arc<Library>) -> Vec<GgmlDevice> {
    all(library).filter_map(|device| of_known_backend(device).ok()).collect()
}

/// Which of them are left out because nothing is known of their backend: a line for each.
pub(crate) fn unknown(library: &Arc<Library>) -> Vec<String> {
    all(library).filter_map(|device| of_known_backend(device).err()).collect()
}

fn all(library: &Arc<Library>) -> impl Iterator<Item = GgmlDevice> {
    library.registries().iter().flat_map(move |&registry| {
        // SAFETY: a registry of this library, and a place below its count of devices.
        let count = unsafe { (library.functions.ggml_backend_reg_dev_count)(registry.0) };
        // SAFETY: as above.
        let device = move |i| unsafe { (library.functions.ggml_backend_reg_dev_get)(registry.0, i) };
        (0..count).filter_map(move |i| describe(library, registry, device(i)))
    })
}

fn of_known_backend(device: GgmlDevice) -> Result<GgmlDevice, String> {
    if device.kind_of_backend().is_some() {
        return Ok(device);
    }
    Err(format!("{} is left out: its backend may keep weights in memory otherwise than others read them", device.name))
}

fn describe(library: &Arc<Library>, registry: Registry, device: Object) -> Option<GgmlDevice> {
    let f = &library.functions;
    if device.is_null() {
        return None;
    }
    let mut props = Props {
        name: std::ptr::null(),
        description: std::ptr::null(),
        free: 0,
        total: 0,
        kind: 0,
        device_id: std::ptr::null(),
        _more: [0; 32],
    };
    // SAFETY: a device of this library; it fills the structure that ggml-backend.h declares, for which there is room, with texts that live as
    // long as the device.
    let [name, description, device_id] = unsafe {
        (f.ggml_backend_dev_get_props)(device, (&raw mut props).cast());
        [text(props.name), text(props.description), text(props.device_id)]
    };
    let kind = kind(props.kind)?;
    let software = kind == DeviceKind::Cpu || SOFTWARE.iter().any(|driver| description.contains(driver));
    let class = if software { Class::Software } else { Class::Hardware };
    let library = library.clone();
    Some(GgmlDevice { library, registry, device: Registry(device), name, description, kind, device_id, class })
}

/// `ggml_backend_dev_type`.
fn kind(number: c_int) -> Option<DeviceKind> {
    match number {
        0 => Some(DeviceKind::Cpu),
        1 => Some(DeviceKind::Gpu),
        2 => Some(DeviceKind::IntegratedGpu),
        _ => None,
    }
}

impl GgmlDevice {
    fn kind_of_backend(&self) -> Option<Kind> {
        Kind::of(&self.name)
    }

    /// Whether pieces of a graph may be given ahead of one another. Metal forgets the errors of a piece when it is given the next one; Vulkan's must leave memory
    /// alone that the piece before uses.
    pub(crate) fn takes_pieces_ahead(&self) -> bool {
        match self.kind_of_backend() {
            Some(Kind::Cuda) => true,
            Some(Kind::Vulkan) => is_set(VULKAN_ALONE),
            _ => false,
        }
    }

    /// Whether its pinned memory is its own, and long transfers through it do not wait for what computes. Vulkan's is that of its first device, and where the
    /// host can write to the memory of a card, that is quicker.
    pub(crate) fn has_pinned_memory(&self) -> bool {
        match self.kind_of_backend() {
            Some(Kind::Cuda) => true,
            Some(Kind::Vulkan) => self.name == "Vulkan0" && self.kind != DeviceKind::IntegratedGpu,
            _ => false,
        }
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// The library's handle.
    pub(crate) fn handle(&self) -> Object {
        self.device.0
    }

    /// The address of an optional function of its backend, by name; null if it has none.
    pub(crate) fn extra(&self, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
        // SAFETY: a registry of this library and a text that ends with 0.
        unsafe { (self.library.functions.ggml_backend_reg_get_proc_address)(self.registry.0, name.as_ptr()) }
    }

    /// Its memory, as ggml sees it now.
    pub(crate) fn memory(&self) -> MemoryInfo {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a device of this library, and two places for what it says.
        unsafe { (self.library.functions.ggml_backend_dev_memory)(self.handle(), &raw mut free, &raw mut total) };
        MemoryInfo { total: total as u64, free: free as u64 }
    }
}
