//! Deadlines and names of a client.

use std::time::Duration;

/// How a client connects and how long it waits.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name in the logs of servers.
    pub name: String,
    /// From the first packet to the answer to hello.
    pub connect_timeout: Duration,
    /// For an allocation, a compilation or a question about memory or supported ops.
    pub call_timeout: Duration,
    /// A server that was not heard for about this long is lost.
    pub dead_after: Duration,
    /// Lowest and highest protocol version to ask for.
    pub versions: (u32, u32),
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            name: format!("outboard {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id()),
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(60),
            dead_after: Duration::from_millis(1800),
            versions: (outboard_proto::MIN_VERSION, outboard_proto::MAX_VERSION),
        }
    }
}
