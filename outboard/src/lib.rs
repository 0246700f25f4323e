#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod cluster;
pub mod devices;
mod digests;
mod embed;
mod error;
mod failover;
mod input;
mod model;
mod pending;
mod place;
mod request;
mod runner;
mod score;
mod text;
mod token;

pub use cluster::Cluster;
pub use devices::Devices;
pub use embed::{EmbedRequest, PendingEmbedding};
pub use error::{Error, Result};
pub use failover::{OnRecovery, Reconnect};
pub use model::{Model, open_gguf};
pub use pending::PendingResult;
pub use place::{DEFAULT_CONTEXT, Layout, PlaceOptions, Placed, Plan, Split};
pub use request::Request;
pub use runner::{RunOptions, Runner};
pub use score::{PendingScores, ScoreRequest};
pub use text::{Piece, Text, TextStream};
pub use token::read_token;

pub use outboard_core as core;
pub use outboard_llm as llm;

pub use outboard_core::op::{Penalties, Sampler};
pub use outboard_core::{DType, DeviceInfo, MemoryInfo};
pub use outboard_llm::chat::{Message, Tool, ToolCall, Variables};
pub use outboard_llm::{
    Constraint, DeviceLoad, Embedding, Finish, Form, Generation, Mmap, Overrides, Pooling, Prefixes, Recovery, Reuse,
    Room, Scale, Scores, Stall,
};
pub use outboard_rpc_client::{ClientOptions as ConnectOptions, ClientTls, Endpoint, NetStats, TlsFiles, Token};
