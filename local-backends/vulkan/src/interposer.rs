//! Functions that stand before a driver's: how tests see what becomes of a device that is lost, that hangs, or that has no memory.

use ash::vk;
use std::ffi::{CStr, c_void};
use std::fmt;

/// A function of a driver, of whatever type its name says.
pub type Function = Option<unsafe extern "system" fn()>;

/// Gives for each function of a device, by name, the one that is called: the driver's, which it is given, or another one.
#[derive(Clone, Copy)]
pub struct Interposer(fn(&CStr, Function) -> Function);

impl Interposer {
    /// One that asks a function. Nothing that a program can be told makes one: it is for tests.
    ///
    /// # Safety
    ///
    /// What is given for a name has that name's type, and does what Vulkan says of it, or fails as Vulkan says that it may.
    pub unsafe fn new(choose: fn(&CStr, Function) -> Function) -> Interposer {
        Interposer(choose)
    }

    /// The same device, with these functions before the driver's.
    pub(crate) fn before(self, instance: &ash::Instance, device: ash::Device) -> ash::Device {
        let handle = device.handle();
        let load = |name: &CStr| -> *const c_void {
            // SAFETY: a device of this instance, and the name of one of its functions.
            let of_driver: vk::PFN_vkVoidFunction = unsafe { instance.get_device_proc_addr(handle, name.as_ptr()) };
            (self.0)(name, of_driver).map_or(std::ptr::null(), |function| function as *const c_void)
        };
        // SAFETY: the functions have the types of their names, as whoever made this has promised.
        unsafe { ash::Device::load_with(load, handle) }
    }
}

impl fmt::Debug for Interposer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interposer").finish_non_exhaustive()
    }
}
