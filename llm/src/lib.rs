//! Language models on Outboard: GGUF files, tokenizers, architectures, KV cache, sampling, generation. It does no I/O: a model
//! comes in as bytes, devices come in as arguments, text goes out through a callback.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod allocate;
pub mod arch;
pub mod chat;
mod decode;
mod describe;
pub mod division;
pub mod engine;
pub mod error;
mod failover;
pub mod generate;
pub mod hparams;
pub mod model;
pub mod parts;
pub mod perplexity;
pub mod pipeline;
mod placement;
pub mod route;
mod runs;
pub mod split;
pub mod stop;
mod text;
pub mod tokenizer;
mod upload;
mod watch;
pub mod work;

pub use outboard_core::op::{Penalties, Sampler};
pub use outboard_gguf as gguf;

pub use arch::net::Sampling;
pub use describe::StepCopy;
pub use engine::Engine;
pub use error::{Error, Result};
pub use failover::{Failover, Recovery};
pub use generate::{Finish, GenerateOptions, Generation, generate};
pub use model::Model;
pub use parts::{Part, Parts};
pub use perplexity::{Estimate, perplexity};
pub use placement::{DeviceLoad, LoadOptions, Mmap, Overrides, attention_cost, default_ubatch};
pub use route::Route;
pub use watch::{Stall, Watch};
pub use work::Work;
