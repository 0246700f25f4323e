#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod access;
mod answer_parser;
mod api;
mod blocking;
mod body;
mod chat;
mod connection;
mod counted_body;
mod departure;
mod engine;
mod error;
mod form;
mod form_process;
mod limits;
mod metrics;
mod models;
mod options;
mod page;
mod params;
mod queue;
mod reading;
mod room;
mod server;
mod service;
mod settings;
mod stream;
mod style;
mod template;
mod tools;
mod write_timeout;

pub use form_process::{FormLimits, FormProcesses, follow_forms, form_processes_of};
pub use limits::Limits;
pub use models::ServedModel;
pub use options::{Beginnings, Hosts, ServeOptions};
pub use outboard_net::{ServerTls, Tokens, warn_if_readable};
pub use page::Page;
pub use server::Server;
pub use service::Service;
