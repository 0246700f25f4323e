//! A device beside our CPU's that attacks and the fuzzer are let loose on, in this process: what reaches a library or a driver is what our own
//! checks have let pass, so that nothing ends it.

use outboard_core::{Device, Host};
use outboard_host::MemoryBudget;
use outboard_vulkan::OpenOptions;
use std::sync::Arc;

/// Set, it asks for the first Vulkan device.
pub const VULKAN: &str = "OUTBOARD_VULKAN";
/// Set, it asks for the first CUDA device: of a card, or of the emulator where that is loaded before (`LD_PRELOAD`).
pub const CUDA: &str = "OUTBOARD_CUDA";

/// The device under this name: Vulkan's where `OUTBOARD_VULKAN` asks for it, CUDA's where `OUTBOARD_CUDA` does, ggml's CPU where `OUTBOARD_GGML`
/// names the folder of its libraries.
pub fn second_device(host: &Arc<Host>, name: &str, budget: &Arc<MemoryBudget>) -> Option<Arc<dyn Device>> {
    if std::env::var_os(CUDA).is_some() {
        let found = outboard_cuda::find().first().expect("a CUDA device");
        let device = outboard_cuda::cuda_device(host, found, name, &outboard_cuda::OpenOptions::default());
        return Some(device.expect("a CUDA device that opens"));
    }
    if std::env::var_os(VULKAN).is_some() {
        let found = outboard_vulkan::find().first().expect("a Vulkan device");
        let device = outboard_vulkan::vulkan_device(host, found, name, budget, &OpenOptions::default());
        return Some(device.expect("a Vulkan device that opens"));
    }
    std::env::var_os(outboard_ggml::VARIABLE)?;
    let device = outboard_ggml::find().iter().find(|device| device.name == "CPU").expect("ggml's CPU device");
    Some(outboard_ggml::open(host, device, name, 2, budget))
}
