//! What can be wrong with a file.

use std::path::{Path, PathBuf};

/// Why a file is not a usable GGUF file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GgufError {
    /// Another kind of file.
    #[error("not a GGUF file{0}")]
    NotGguf(&'static str),
    /// A version that is not known.
    #[error("GGUF version {0} is not supported (2 and 3 are)")]
    Version(u32),
    /// The file ends too early.
    #[error("the file is cut off: {what} should follow at byte {at}, but the file has {len} bytes; download it again")]
    Truncated {
        /// What should be there.
        what: String,
        /// Where.
        at: usize,
        /// The file's length.
        len: usize,
    },
    /// The system does not give the file's bytes.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A number that cannot be meant.
    #[error("{what} is {value}, at most {max} is possible")]
    Limit {
        /// Of what.
        what: String,
        /// What the file says.
        value: u64,
        /// What is possible.
        max: u64,
    },
    /// Anything else.
    #[error("{0}")]
    Invalid(String),
    /// Something is wrong with a file whose name is known.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: Box<GgufError>,
    },
}

impl GgufError {
    /// The same, with the name of the file.
    pub(crate) fn of(self, path: &Path) -> GgufError {
        GgufError::File { path: path.to_owned(), why: Box::new(self) }
    }
}
