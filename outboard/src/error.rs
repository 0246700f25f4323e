//! What can go wrong, by blame.

use outboard_llm::Room;
use outboard_llm::gguf::GgufError;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An error of this library. Variants say who is to blame, fields say what happened, and messages are one line. Errors are plain data, because
/// one that ends several texts is given to each of them.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}: {detail}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What kind of failure it is.
        kind: std::io::ErrorKind,
        /// What the system says.
        detail: String,
    },
    /// A model's file can be read, and does not hold a model that can be run.
    #[error("{}: {detail}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// What was asked for cannot be done, by anybody.
    #[error("{0}")]
    Request(String),
    /// There is no room for it now, beside what others have asked for: it may be asked again in a moment.
    #[error("{0}")]
    Busy(String),
    /// No device has the name, or several do.
    #[error("{detail}")]
    NoSuchDevice {
        /// The name.
        name: String,
        /// The ids that it may have meant: those of all devices if it means none.
        candidates: Vec<String>,
        /// What is wrong with it, for people.
        detail: String,
    },
    /// A split has not one part for each device.
    #[error("there are {parts} parts of a split for {devices} devices")]
    PartsOfSplit {
        /// Parts that were given.
        parts: usize,
        /// Devices.
        devices: usize,
    },
    /// A text would be longer than its context.
    #[error("{}", outboard_llm::error::context_full(*tokens, *used, *n_ctx))]
    ContextFull {
        /// Tokens that are to go in, one for the answer among them.
        tokens: usize,
        /// Tokens that are in it.
        used: usize,
        /// Tokens that it has room for in all.
        n_ctx: usize,
    },
    /// A context is wanted that the model cannot have.
    #[error("this {arch} model has a context of {most} tokens here")]
    ContextTooLarge {
        /// The model's architecture.
        arch: String,
        /// Most tokens.
        most: usize,
    },
    /// The cache has no room for a text. With a [`Runner`](crate::Runner), texts wait for others to end: it fails only for one that would not fit if it were alone.
    #[error("the cache has room for {total} tokens in all and {free} now, and {needed} are needed")]
    CacheFull {
        /// Tokens that the text may come to, in whole blocks.
        needed: usize,
        /// Tokens that there is room for now.
        free: usize,
        /// Tokens that there is room for if nothing else is there.
        total: usize,
    },
    /// There is not enough memory. Nothing was sent to a device.
    #[error("{detail}")]
    DoesNotFit {
        /// Bytes that are needed.
        needed: u64,
        /// The memories that were to hold them, with the devices that have them and what is free.
        rooms: Vec<Room>,
        /// What does not fit where, for people.
        detail: String,
    },
    /// A tensor is larger than the largest allocation of the device that was to have it. Nothing was sent to a device.
    #[error("{detail}")]
    TensorTooLarge {
        /// The tensor.
        tensor: String,
        /// The device's id.
        device: String,
        /// Bytes of the tensor.
        needed: u64,
        /// Bytes of the largest allocation.
        most: u64,
        /// The same for people.
        detail: String,
    },
    /// A device had no memory left, while a model was loaded or ran: others may have taken it since it was asked.
    #[error("{detail}")]
    OutOfMemory {
        /// The device's id.
        device: String,
        /// Bytes that were wanted.
        needed: u64,
        /// Bytes that were free.
        free: u64,
        /// The same for people.
        detail: String,
    },
    /// A server, or the helper process of a device of this host, or the way to it, has failed.
    #[error("{endpoint}: {detail}")]
    Peer {
        /// The server, as it was given, or the device's id.
        endpoint: String,
        /// What happened.
        detail: String,
    },
    /// A device has failed while it worked.
    #[error("{device}: {detail}")]
    Device {
        /// The device's id.
        device: String,
        /// What happened, with the op that it happened in.
        detail: String,
    },
    /// A wait took too long.
    #[error("waited {:.1} s for {what}", after.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The text was ended before it was complete.
    #[error("cancelled")]
    Cancelled,
    /// A bug, of this library or of its caller.
    #[error("bug: {0}")]
    Bug(String),
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error about a model's file, if it is the file that is to blame.
    pub(crate) fn of_model(path: &Path, error: outboard_llm::Error) -> Error {
        match error {
            outboard_llm::Error::Model(_) | outboard_llm::Error::UnknownArchitecture { .. } => {
                Error::Model { path: path.to_owned(), detail: error.to_string() }
            }
            other => other.into(),
        }
    }

    /// The same for the file's form.
    pub(crate) fn of_gguf(path: &Path, error: GgufError) -> Error {
        match error {
            GgufError::File { path, why } => Error::Model { path, detail: why.to_string() },
            why => Error::Model { path: path.to_owned(), detail: why.to_string() },
        }
    }
}

impl From<outboard_core::Error> for Error {
    fn from(error: outboard_core::Error) -> Error {
        use outboard_core::Error as Core;
        let detail = error.to_string();
        match error {
            Core::Peer { endpoint, detail } => Error::Peer { endpoint, detail },
            Core::Request(what) => Error::Request(what),
            Core::Device { device, op: None, detail } => Error::Device { device, detail },
            Core::Device { device, op: Some(op), detail } => {
                Error::Device { device, detail: format!("{op}: {detail}") }
            }
            Core::OutOfMemory { device, needed, free } => Error::OutOfMemory { device, needed, free, detail },
            Core::Timeout { what, after } => Error::Timeout { what, after },
            Core::Cancelled => Error::Cancelled,
            Core::Misuse(what) => Error::Bug(what),
        }
    }
}

impl From<outboard_llm::Error> for Error {
    fn from(error: outboard_llm::Error) -> Error {
        use outboard_llm::Error as Llm;
        let detail = error.to_string();
        match error {
            Llm::Core(e) => e.into(),
            Llm::ContextFull { tokens, used, n_ctx } => Error::ContextFull { tokens, used, n_ctx },
            Llm::ContextTooLarge { arch, most } => Error::ContextTooLarge { arch, most },
            Llm::CacheFull { needed, free, total } => Error::CacheFull { needed, free, total },
            Llm::DoesNotFit { needed, rooms } => Error::DoesNotFit { needed, rooms, detail },
            Llm::MemoryFull { room, weights, cache, results } => {
                Error::DoesNotFit { needed: weights + cache + results, rooms: vec![room], detail }
            }
            Llm::TensorTooLarge { tensor, device, needed, most } => {
                Error::TensorTooLarge { tensor, device, needed, most, detail }
            }
            Llm::PartsOfSplit { parts, devices } => Error::PartsOfSplit { parts, devices },
            Llm::Busy(_) => Error::Busy(detail),
            Llm::Internal(what) => Error::Bug(what),
            _ => Error::Request(detail),
        }
    }
}
