//! A test device that is like a card: memory that the host cannot address, commands that are done some time after they were given, a
//! largest allocation, a large alignment, zeros that it wants behind weights, values found wrong when later commands are under way, and a
//! clock of its own. It computes what the reference computes. What runs on it and on the CPU device asks nothing that only host memory has.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod card;
mod clock;
mod memory;
mod stream;

use card::Card;
use outboard_core::local::{FixedPool, LocalDevice};
use outboard_core::{Costs, DeviceInfo, DeviceKind, Host, WeightTail};
use std::sync::Arc;
use std::time::Duration;

/// How the card is.
#[derive(Clone, Copy, Debug)]
pub struct DetachedOptions {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the largest allocation.
    pub max_alloc: u64,
    /// What it wants behind weights. It looks there whenever a graph runs, and fails if it does not find zeros.
    pub weight_tail: WeightTail,
    /// How long it takes from a command's being given to its beginning, at least.
    pub latency: Duration,
}

impl Default for DetachedOptions {
    fn default() -> DetachedOptions {
        DetachedOptions {
            memory: 4 << 30,
            max_alloc: 64 << 20,
            // 15 blocks of Q8_0, as ggml's CUDA devices.
            weight_tail: WeightTail(510),
            latency: Duration::from_micros(100),
        }
    }
}

/// Offsets of tensors are multiples of this: what the strictest drivers ask for.
const ALIGNMENT: usize = 256;

/// A card in `host`.
pub fn detached_device(host: &Arc<Host>, name: &str, options: DetachedOptions) -> Arc<LocalDevice> {
    let info = DeviceInfo {
        description: "test device with memory of its own (slow, exact)".into(),
        device_id: format!("detached:{name}"),
        max_alloc: options.max_alloc,
        weight_tail: options.weight_tail,
        alignment: ALIGNMENT,
        unified: false,
        costs: Costs { batch_rows: 256, run_rows: 32.0, uniform_rows: 1, attention: 1.0 },
        ..DeviceInfo::new(name, DeviceKind::Accelerator, "detached", options.memory)
    };
    LocalDevice::new(host, info, FixedPool::new(options.memory), Arc::new(Card::new(options.latency)))
}
