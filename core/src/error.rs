//! One error for everything that a device, a peer or a caller can get wrong, by blame.

use std::time::Duration;

/// Who is to blame, and what happened. Errors are plain data, because a poisoned timeline repeats its error to everyone
/// who waits on it, also over the wire.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A server or the way to it failed. The session with it is over unless it says otherwise.
    #[error("{endpoint}: {detail}")]
    Peer {
        /// The endpoint as the user wrote it.
        endpoint: String,
        /// What happened and what to do.
        detail: String,
    },
    /// What was asked for is wrong (a bad graph, a slice outside its buffer, an unknown handle); nothing was changed.
    #[error("{0}")]
    Request(String),
    /// A device failed while it worked; its queue is poisoned.
    #[error("{device}{}: {detail}", op.as_deref().map(|op| format!(", {op}")).unwrap_or_default())]
    Device {
        /// The device's id.
        device: String,
        /// The op and the node's name, where one is to blame.
        op: Option<String>,
        /// What happened.
        detail: String,
    },
    /// Not enough memory; nothing was allocated.
    #[error("{device}: not enough memory: {} needed, {} free", Bytes(*needed), Bytes(*free))]
    OutOfMemory {
        /// The device's id.
        device: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free then.
        free: u64,
    },
    /// A deadline passed.
    #[error("{}{what}", Waited(*after))]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long; zero if somebody else has waited, of whom `what` tells all.
        after: Duration,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// This program used an interface wrongly (a buffer of another device, say): a bug.
    #[error("misuse: {0}")]
    Misuse(String),
}

/// How long somebody has waited, in front of for what.
struct Waited(Duration);

impl std::fmt::Display for Waited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_zero() {
            return Ok(());
        }
        write!(f, "waited {:.1} s for ", self.0.as_secs_f64())
    }
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl From<crate::graph::GraphError> for Error {
    fn from(e: crate::graph::GraphError) -> Self {
        Error::Request(e.to_string())
    }
}

/// A size in bytes, printed for people: `512 B`, `1.5 MiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(Bytes(5).to_string(), "5 B");
        assert_eq!(Bytes(1536 * 1024).to_string(), "1.5 MiB");
        assert_eq!(format!("{:>9}", Bytes(2048)), "  2.0 KiB");
    }

    #[test]
    fn device_errors_name_the_op() {
        let e = Error::Device { device: "a:1/CPU0".into(), op: Some("MUL_MAT ffn".into()), detail: "lost".into() };
        assert_eq!(e.to_string(), "a:1/CPU0, MUL_MAT ffn: lost");
    }
}
