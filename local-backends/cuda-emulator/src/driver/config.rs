//! What devices there are and how kernels are run: by an environment variable, or by a call before the first of the driver.

/// The environment variable, as in `devices=2,cc=80,memory=1073741824,seed=7,threads=2,lenient=1,apart=1`.
pub const VARIABLE: &str = "OUTBOARD_CUDA_EMULATOR";

/// Devices of the emulator, and how it runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// How many devices there are, up to 16.
    pub devices: u32,
    /// Compute capability, as in 80.
    pub capability: u32,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Draws the order of blocks and warps.
    pub seed: u64,
    /// Threads that run the blocks of a kernel.
    pub threads: u32,
    /// 0: a kernel with a finding fails. 1: only one that cannot go on.
    pub lenient: u32,
    /// 1: no device may address another one's memory.
    pub apart: u32,
}

impl Default for Config {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        Self { devices: 1, capability: 80, memory: 4 << 30, seed: 1, threads, lenient: 0, apart: 0 }
    }
}

/// Devices that can be had, at most.
const MAX_DEVICES: u32 = 16;

impl Config {
    /// The same within what there can be.
    pub(crate) fn clamped(self) -> Self {
        Self { devices: self.devices.min(MAX_DEVICES), threads: self.threads.max(1), ..self }
    }

    /// What the environment says, over the default; words that mean nothing are told on standard error.
    pub(crate) fn from_environment() -> Self {
        let mut config = Self::default();
        let text = std::env::var(VARIABLE).unwrap_or_default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            if config.set(part).is_none() {
                super::log(&format!("{VARIABLE}: {part} means nothing"));
            }
        }
        config.clamped()
    }

    fn set(&mut self, part: &str) -> Option<()> {
        let (name, value) = part.split_once('=')?;
        let value: u64 = value.parse().ok()?;
        let small = u32::try_from(value).ok();
        match name {
            "devices" => self.devices = small?,
            "cc" => self.capability = small?,
            "memory" => self.memory = value,
            "seed" => self.seed = value,
            "threads" => self.threads = small?,
            "lenient" => self.lenient = small?,
            "apart" => self.apart = small?,
            _ => return None,
        }
        Some(())
    }
}
