//! Language models on Outboard: GGUF files, tokenizers, architectures, KV cache, sampling, generation. It does no I/O: a model
//! comes in as bytes, devices come in as arguments, text goes out through a callback.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod again;
mod ahead;
mod allocate;
pub mod arch;
mod batch;
mod begin;
mod blocks;
pub mod chat;
pub mod constraint;
mod describe;
pub mod division;
mod embed;
pub mod error;
mod eval;
mod failover;
pub mod generate;
mod health;
pub mod hparams;
pub mod model;
pub mod parts;
pub mod perplexity;
pub mod pipeline;
pub mod placed_model;
mod placement;
mod python_json;
mod reading;
pub mod route;
mod runs;
mod score;
mod sequence;
pub mod split;
pub mod stop;
mod text;
pub mod texts;
pub mod tokenizer;
mod turns;
mod upload;
mod watch;
pub mod work;

pub use outboard_core::op::{Penalties, Sampler};
pub use outboard_gguf as gguf;

pub use ahead::Token;
pub use arch::net::{Cache, LogProbs, N_TOP, Sampling};
pub use constraint::{Constraint, Form, FormedText, TokenSet, Vocabulary};
pub use describe::StepCopy;
pub use embed::{EmbedRequest, Embedding, Pooling, Scale};
pub use error::{Error, Result, Room};
pub use failover::{Failover, Recovery};
pub use generate::{Finish, GenerateOptions, Generation, Reuse, generate};
pub use model::Model;
pub use parts::{Part, Parts};
pub use perplexity::{Estimate, perplexity};
pub use placed_model::PlacedModel;
pub use placement::{DeviceLoad, LoadOptions, Mmap, Overrides, Prefixes, default_ubatch, mean_costs};
pub use route::Route;
pub use score::{ScoreRequest, Scores};
pub use sequence::Sequence;
pub use texts::{Capacity, TextEvent, TextRequest, Texts, Wanted, generate_many};
pub use watch::{Stall, Watch};
pub use work::Work;
