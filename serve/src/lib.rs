#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod access;
mod api;
mod body;
mod connection;
mod embed;
mod error;
mod form;
mod kept;
mod limits;
mod metrics;
mod models;
mod page;
mod params;
mod patient;
mod queue;
mod room;
mod server;
mod service;
mod settings;
mod split;
mod stream;
mod style;
mod texts;
mod tools;
mod work;

pub use limits::Limits;
pub use models::ServedModel;
pub use outboard_net::{ServerTls, Tokens, warn_if_readable};
pub use page::Page;
pub use server::Server;
pub use service::{Hosts, ServeOptions, Service};
