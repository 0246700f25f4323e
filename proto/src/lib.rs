//! The wire: messages and service generated from the `.proto` files, conversions between them and the types of
//! [`outboard_core`], limits. No sockets here.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod blobs;
pub mod chunk;
pub mod device;
pub mod error;
pub mod frame;
pub mod grant;
pub mod graph;
pub mod limits;
pub mod places;

/// Messages and service of package `outboard.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::expect_used, rustdoc::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/outboard.v1.rs"));
}

/// The lowest protocol version that this release speaks.
pub const MIN_VERSION: u32 = 1;
/// The highest protocol version that this release speaks.
pub const MAX_VERSION: u32 = 1;
/// Bytes of a session's secret and of a ticket.
pub const SECRET_BYTES: usize = 32;
/// The port of an endpoint that names none.
pub const DEFAULT_PORT: u16 = 50052;

/// The feature of a server that keeps blobs.
pub const FEATURE_BLOBS: &str = "blobs";
/// The feature of a server whose sessions can be taken up again after their connection was lost.
pub const FEATURE_RESUME: &str = "resume";

/// The `.proto` files as an encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The version that both sides speak, the highest one, if there is one.
pub fn pick_version(min: u32, max: u32) -> Option<u32> {
    let version = max.min(MAX_VERSION);
    (version >= min.max(MIN_VERSION)).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(pick_version(1, 1), Some(1));
        assert_eq!(pick_version(0, 9), Some(MAX_VERSION));
        assert_eq!(pick_version(MAX_VERSION + 1, MAX_VERSION + 3), None);
        assert_eq!(pick_version(0, 0), None);
        assert_eq!(pick_version(3, 1), None);
    }
}
