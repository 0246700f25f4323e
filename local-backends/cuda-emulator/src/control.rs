//! Functions of the library beyond CUDA's: what devices there are, what was counted and found, what is to fail. Tests call them through
//! [`crate::Emulator`], because the driver that cudarc opens is another copy than the one that a test is linked with.
use crate::count::Counts;
use crate::driver::inject::KernelFault;
use crate::driver::{Code, Config, Live, driver, lock};
use std::ffi::{CStr, c_char};

/// Bytes of a name with its zero.
const NAME: usize = 1024;
/// Bytes of a finding with its zero.
const TEXT: usize = 480;

/// A launch that is over, as it goes through the library's functions.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawLaunch {
    pub(crate) kernel: [u8; NAME],
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) counts: Counts,
}

/// A finding, as it goes through the library's functions.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawFinding {
    pub(crate) fault: u32,
    pub(crate) kernel: [u8; NAME],
    pub(crate) text: [u8; TEXT],
}

impl Default for RawLaunch {
    fn default() -> Self {
        Self { kernel: [0; NAME], grid: [0; 3], block: [0; 3], counts: Counts::default() }
    }
}

impl Default for RawFinding {
    fn default() -> Self {
        Self { fault: 0, kernel: [0; NAME], text: [0; TEXT] }
    }
}

fn words<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let cut = text.len().min(N - 1);
    bytes[..cut].copy_from_slice(&text.as_bytes()[..cut]);
    bytes
}

/// A text of a test.
///
/// # Safety
/// The pointer is valid and ends with a zero.
unsafe fn text(place: *const c_char) -> String {
    // SAFETY: by contract.
    unsafe { CStr::from_ptr(place) }.to_string_lossy().into_owned()
}

/// Sets what devices there are. After the first call of the driver their number, capability and memory do not change.
#[unsafe(no_mangle)]
extern "C" fn emulator_configure(config: &Config) {
    *lock(&driver().config) = config.clamped();
}

#[unsafe(no_mangle)]
extern "C" fn emulator_config(out: &mut Config) {
    *out = *lock(&driver().config);
}

#[unsafe(no_mangle)]
extern "C" fn emulator_live(out: &mut Live) {
    *out = driver().live();
}

/// The launch of this number; 0 if there is none.
#[unsafe(no_mangle)]
extern "C" fn emulator_launch(index: usize, out: &mut RawLaunch) -> u32 {
    let records = lock(&driver().records);
    let Some(record) = records.get(index) else { return 0 };
    *out = RawLaunch { kernel: words(&record.kernel), grid: record.grid, block: record.block, counts: record.counts };
    1
}

/// The finding of this number; 0 if there is none.
#[unsafe(no_mangle)]
extern "C" fn emulator_finding(index: usize, out: &mut RawFinding) -> u32 {
    let findings = lock(&driver().findings);
    let Some((fault, kernel, line)) = findings.get(index) else { return 0 };
    *out = RawFinding { fault: *fault, kernel: words(kernel), text: words(line) };
    1
}

/// Drops launches and findings.
#[unsafe(no_mangle)]
extern "C" fn emulator_forget() {
    lock(&driver().records).clear();
    lock(&driver().findings).clear();
}

/// Lets a call of the driver fail once, after so many that pass. Every call counts if the name is empty.
///
/// # Safety
/// The name is valid and ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulator_fail_call(name: *const c_char, after: u64, code: u32) {
    // SAFETY: by contract.
    driver().injected.add_call(unsafe { text(name) }, after, Code(code));
}

/// Lets a kernel fail once, after so many that pass; with code 0 it hangs.
///
/// # Safety
/// The name is valid and ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulator_fail_kernel(name: *const c_char, after: u64, code: u32) {
    let fault = if code == 0 { KernelFault::Hangs } else { KernelFault::Fails(Code(code)) };
    // SAFETY: by contract.
    driver().injected.add_kernel(unsafe { text(name) }, after, fault);
}

/// How often a call of the driver was made.
///
/// # Safety
/// The name is valid and ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulator_calls(name: *const c_char) -> u64 {
    // SAFETY: by contract.
    let name = unsafe { text(name) };
    lock(&driver().called).iter().find(|(called, _)| **called == name).map_or(0, |(_, count)| *count)
}

/// Drops faults that have not come yet.
#[unsafe(no_mangle)]
extern "C" fn emulator_clear_faults() {
    driver().injected.clear();
}

/// Says of device memory that nobody has written it, as of a piece that a program's own pool takes back; 0 if it is in no allocation.
#[unsafe(no_mangle)]
extern "C" fn emulator_uninitialise(address: u64, bytes: u64) -> u32 {
    let Some(region) = driver().memory.find(address, bytes) else { return 0 };
    region.set_written(address, bytes, false);
    1
}
