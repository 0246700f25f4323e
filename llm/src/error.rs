//! What can go wrong between a file and a text.

use outboard_core::error::Bytes;
use std::fmt;

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's file is readable, but what it says does not make a model.
    #[error("the model is not usable: {0}")]
    Model(String),
    /// The file is of a kind of model that is not known.
    #[error("architecture \"{name}\" is not supported (supported: {known})")]
    UnknownArchitecture {
        /// What the file says.
        name: String,
        /// What there is.
        known: String,
    },
    /// A request that cannot be met, such as one for a token that the model does not have.
    #[error("{0}")]
    Request(String),
    /// A sequence would be longer than its context.
    #[error("{}", context_full(*tokens, *used, *n_ctx))]
    ContextFull {
        /// Tokens that are to go in; behind a prompt, one for the answer is among them.
        tokens: usize,
        /// Tokens that are in it.
        used: usize,
        /// Tokens that it has room for in all.
        n_ctx: usize,
    },
    /// A context is wanted that the model cannot have here.
    #[error("this {arch} model has a context of {most} tokens here")]
    ContextTooLarge {
        /// The architecture.
        arch: String,
        /// Most tokens.
        most: usize,
    },
    /// Chunks of a text are so short that none of their tokens counts.
    #[error("a chunk of {size} tokens has none to score")]
    ChunkTooShort {
        /// Tokens of a chunk.
        size: usize,
    },
    /// A text is shorter than a chunk of it.
    #[error("the text has {tokens} tokens, less than a chunk of {size}")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        size: usize,
    },
    /// A result is infinite, or no number at all.
    #[error("{what} is {value}: either the model's weights are broken, or a device computes wrongly")]
    NotFinite {
        /// Which result.
        what: String,
        /// What it is.
        value: f32,
    },
    /// The parts of a split are not as many as the devices.
    #[error("there are {parts} parts of a split for {devices} devices")]
    PartsOfSplit {
        /// Parts that were given.
        parts: usize,
        /// Devices.
        devices: usize,
    },
    /// A tensor is larger than what its device allocates at once.
    #[error("{tensor} is {} large, and {device} allocates {} at once at most", Bytes(*needed), Bytes(*most))]
    TensorTooLarge {
        /// The tensor.
        tensor: String,
        /// Its device's id.
        device: String,
        /// Its size in bytes.
        needed: u64,
        /// The largest allocation in bytes.
        most: u64,
    },
    /// A model does not fit on its devices, however it is divided.
    #[error("the model needs {} of memory and does not fit on its devices ({})", Bytes(*needed), listed(rooms))]
    DoesNotFit {
        /// Bytes of weights and cache.
        needed: u64,
        /// What there is.
        rooms: Vec<Room>,
    },
    /// What one memory is to hold does not fit into it.
    #[error(
        "{}: not enough memory: {} needed (weights {}, KV cache {}, results {}), {} free",
        room.devices.join(" and "), Bytes(weights + cache + results), Bytes(*weights), Bytes(*cache), Bytes(*results), Bytes(room.free)
    )]
    MemoryFull {
        /// The memory.
        room: Room,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of the KV cache.
        cache: u64,
        /// Bytes of intermediate results.
        results: u64,
    },
    /// The cache has no room for a sequence now; it has when others have ended, if `needed` is no more than `total`.
    #[error("the cache has room for {free} of the {needed} tokens that a sequence needs, and for {total} in all")]
    CacheFull {
        /// Tokens that the sequence may come to, in whole blocks.
        needed: usize,
        /// Tokens that there is room for.
        free: usize,
        /// Tokens that there is room for if no other sequence is there.
        total: usize,
    },
    /// There is no room for it now, beside what others have asked for.
    #[error("{0}; ask again in a moment")]
    Busy(String),
    /// A device, a server or the graph.
    #[error(transparent)]
    Core(#[from] outboard_core::Error),
    /// What cannot be: a bug.
    #[error("{0}; this is a bug of Outboard: please report it, with what was done")]
    Internal(String),
}

impl Error {
    /// Whether a server, or the process of a device, was lost with what it held.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Error::Core(outboard_core::Error::Peer { .. }))
    }

    /// Whether devices have no room for what they were to hold.
    pub(crate) fn is_about_room(&self) -> bool {
        matches!(
            self,
            Error::DoesNotFit { .. }
                | Error::MemoryFull { .. }
                | Error::TensorTooLarge { .. }
                | Error::Core(outboard_core::Error::OutOfMemory { .. })
        )
    }
}

/// A memory, and what is free of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Ids of the devices that have it: several if they share it.
    pub devices: Vec<String>,
    /// Bytes that are free.
    pub free: u64,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.devices.join(" and "), Bytes(self.free))
    }
}

/// That `tokens` do not fit into a context of `n_ctx` of which `used` are taken.
pub fn context_full(tokens: usize, used: usize, n_ctx: usize) -> String {
    match used {
        0 => format!("the prompt needs {tokens} tokens, with one for the answer, and the context has {n_ctx} in all"),
        _ => format!("{tokens} tokens more are needed, and {used} of the context's {n_ctx} are taken"),
    }
}

fn listed(rooms: &[Room]) -> String {
    rooms.iter().map(Room::to_string).collect::<Vec<_>>().join(", ")
}

impl From<outboard_core::GraphError> for Error {
    fn from(e: outboard_core::GraphError) -> Self {
        Error::Model(e.to_string())
    }
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
