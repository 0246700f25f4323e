//! Hostile input for everything that reads bytes of a stranger.
//!
//! Each [`Target`] takes any bytes and may do anything with them but panic, hang, or take memory without bound. `fuzz/run` looks for
//! inputs that make one do so (coverage-guided, by libFuzzer), and `cargo test` runs what is kept in `corpus/` and `regressions/`.
#![forbid(unsafe_code)]
// What fails here fails a fuzzer: a panic is how it says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

pub mod blobs;
mod gguf;
mod graph;
mod messages;
pub mod mutate;
pub mod random;
pub mod raw;
mod second;
mod seeds;
mod session;
mod tokens;

pub use messages::check as check_message;
pub use second::{CUDA, VULKAN, second_device};
pub use seeds::seeds;

use rand::rngs::StdRng;

/// Makes another input of one.
pub type Mutate = fn(&[u8], &mut StdRng) -> Vec<u8>;

/// Something that reads hostile bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its folders in `corpus/` and `regressions/`, too.
    pub name: &'static str,
    /// Feeds it.
    pub run: fn(&[u8]),
    /// Changes an input with knowledge of its structure, if there is more to know than bytes.
    pub mutate: Option<Mutate>,
}

/// Every target.
pub const TARGETS: [Target; 5] = [
    Target { name: "messages", run: messages::run, mutate: Some(messages::mutate) },
    Target { name: "graph", run: graph::run, mutate: Some(graph::mutate) },
    Target { name: "session", run: session::run, mutate: None },
    Target { name: "gguf", run: gguf::run, mutate: None },
    Target { name: "tokens", run: tokens::run, mutate: None },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    static ALL: [Target; 5] = TARGETS;
    ALL.iter().find(|t| t.name == name)
}
