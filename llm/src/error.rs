//! What can go wrong between a file and a text.

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// A request that cannot be met, such as a prompt that is longer than the context.
    #[error("{0}")]
    Request(String),
    /// The cache has no room for a sequence now; it has when others have ended, if `needed` is no more than `total`.
    #[error(
        "the cache has room for {free} of the {needed} tokens that a sequence needs, and for {total} in all: wait until others have ended, or make it larger"
    )]
    CacheFull {
        /// Tokens that the sequence may come to, in whole blocks.
        needed: usize,
        /// Tokens that there is room for.
        free: usize,
        /// Tokens that there is room for if no other sequence is there.
        total: usize,
    },
    /// A device, a server or the graph.
    #[error(transparent)]
    Core(#[from] outboard_core::Error),
    /// The scheduler could not place the graph.
    #[error("{0}")]
    Plan(String),
}

impl From<outboard_core::GraphError> for Error {
    fn from(e: outboard_core::GraphError) -> Self {
        Error::Model(e.to_string())
    }
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
