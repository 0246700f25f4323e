//! ggml's CPU device in this process: what reaches the library is what our own checks have let pass, so that nothing ends it.

use outboard_core::{Device, Host};
use outboard_host::MemoryBudget;
use std::sync::Arc;

/// The device under this name, where `OUTBOARD_GGML` names the folder of the libraries.
pub fn ggml_device(host: &Arc<Host>, name: &str, budget: &Arc<MemoryBudget>) -> Option<Arc<dyn Device>> {
    std::env::var_os(outboard_ggml::VARIABLE)?;
    let device = outboard_ggml::find().iter().find(|device| device.name == "CPU").expect("ggml's CPU device");
    Some(outboard_ggml::open(host, device, name, 2, budget))
}
