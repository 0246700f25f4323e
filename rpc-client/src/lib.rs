//! The devices of rpc-servers as devices of this process.
//!
//! [`connect`] opens a session with each endpoint and gives its devices. Per endpoint there is one thread with the connection for
//! commands and, once large payloads are moved, one or two with connections for these; callers put encoded commands into bounded
//! lines and never wait for an event loop. A caller waits for the network only where it asks for a result: reads, `finish`,
//! allocation, compilation.
//!
//! When an endpoint is lost, everything that waits for it fails at once with [`outboard_core::Error::Peer`], which names it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod buffer;
mod bulk;
mod command;
mod connection;
mod content;
mod device;
mod io;
mod lane;
mod options;
mod peers;
mod queue;
mod replies;
mod resume;
mod session;
mod stall;
mod timer;
mod trace;
mod transport;

pub use device::{RemoteDevice, connect};
pub use io::NetStats;
pub use options::{ClientOptions, Token};
pub use outboard_net::{Carrier, ClientTls, Endpoint, EndpointError, TlsFiles};
pub use peers::PeerPath;
pub use trace::{RemoteSpan, RemoteTrace, Tracing};

pub(crate) use outboard_core::lock;
