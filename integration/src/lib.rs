//! What the cluster tests share: the programs under test as real processes, model files, reference texts.
//!
//! The tests start their own servers on free ports of the loopback interface, and end only what they have started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod client;
mod models;
mod programs;
mod reference;
mod server;
mod serving;
mod small;
mod texts;

pub use client::{Client, Finished, RunReport};
pub use models::{model, skip};
pub use programs::program;
pub use reference::{Case, Comparison, Forced, Step, cases};
pub use server::Server;
pub use serving::Serving;
pub use small::small_model;
pub use texts::{texts_on, texts_together};

/// How often a test repeats a fault: `OUTBOARD_FAULT_TRIES`, or so many times.
pub fn fault_tries(default: usize) -> usize {
    std::env::var("OUTBOARD_FAULT_TRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
