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

/// The devices of a library that compute alone: those that only help a CPU (BLAS, AMX), and those that consist of others, are left out.
pub fn devices(library: &Arc<Library>) -> Vec<GgmlDevice> {
    let mut out = Vec::new();
    for &registry in library.registries() {
        // SAFETY: a registry of this library, and a place below its count of devices.
        let count = unsafe { (library.functions.ggml_backend_reg_dev_count)(registry.0) };
        // SAFETY: as above.
        let device = |i| unsafe { (library.functions.ggml_backend_reg_dev_get)(registry.0, i) };
        out.extend((0..count).filter_map(|i| describe(library, registry, device(i))));
    }
    out
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
