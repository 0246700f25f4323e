//! Exposes the devices of this host on one endpoint.
//!
//! A [`Server`] has a thread that accepts, and a thread with an event loop of its own for every connection (on QUIC, for every
//! stream), so that the bulk data of one never stands before the commands of another. Clients have sessions, which own buffers, executables and queues. Work
//! on devices is only ever enqueued by the event loops; what can block (allocation, compilation) runs on a thread of the
//! session, and what waits for a queue on a thread of that queue.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod accounts;
mod args;
mod blobs;
mod conn;
mod descriptors;
mod devices;
mod fair;
mod grpc;
mod guesses;
mod http2;
mod io;
mod limits;
mod logs;
mod metrics;
mod peer_list;
mod peers;
mod places;
mod reflection;
mod room;
mod server;
mod service;
mod session;
mod ticket;
mod trust;

pub use args::{LogFormat, ServerArgs, folder_or_nothing, main_with};
pub use blobs::{BlobOptions, Blobs};
pub use limits::{ClientLimits, Limits, PeerLimits, SessionLimits, worst};
pub use outboard_net::{ClientTls, ServerTls, TlsFiles, Tokens};
pub use peer_list::PeerList;
pub use server::{Server, ServerConfig};
pub use trust::Trust;

pub(crate) use outboard_core::lock;
