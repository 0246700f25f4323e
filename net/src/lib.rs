//! Connections between hosts, and who is at their ends.
//!
//! A [`Stream`] is an ordered, reliable stream of bytes, whatever carries it: TCP, TLS 1.3 on TCP, or a stream of a QUIC connection.
//! What is spoken on it (HTTP/2) is the business of its users; the same bytes go over all three. A [`Dialer`] opens the streams
//! to one [`Endpoint`]; a server takes TCP sockets through [`accept`] and QUIC connections through [`QuicListener`].
//!
//! Certificates and keys are read from PEM files by [`ClientTls`] and [`ServerTls`]. Errors say which file is wrong and how, or
//! what the other end did not like, and what to do about it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod dial;
mod endpoint;
mod explain;
pub mod limits;
mod listen;
mod pem;
mod quic;
mod stream;
mod tls;
mod tokens;

pub use dial::{Dialer, REFUSED};
pub use endpoint::{Carrier, Endpoint, EndpointError};
pub use listen::{Accepted, QuicConnection, QuicIncoming, QuicListener, Windows, accept};
pub use pem::warn_if_readable;
pub use stream::{Fault, Meter, Stream};
pub use tls::{ClientTls, ServerTls, TlsFiles};
pub use tokens::Tokens;
