//! GGUF files, versions 2 and 3 (the format's specification in ggml's `docs/gguf.md`), read and written.
//!
//! [`Gguf::open`] and [`Gguf::parse`] validate everything that they will ever hand out: counts against the bytes that are there, names,
//! types, and that every tensor lies inside its file. Tensor data stays where it is; [`Gguf::data`] gives slices of it. A model may be in
//! one file or, as llama.cpp's `gguf-split` makes them, in several. [`read_tensors`] reads the head of a file that may change meanwhile,
//! and says where its tensors are. [`GgufWriter`] writes files.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod array;
pub mod digests;
mod error;
mod file;
mod gguf;
mod head;
mod metadata;
mod reader;
mod split;
mod tensor;
mod value;
mod writer;

pub use array::{Array, Texts};
pub use digests::{Digests, FileKey};
pub use error::GgufError;
pub use gguf::Gguf;
pub use head::{MAX_HEAD, read_tensors};
pub use split::MAX_FILES;
pub use tensor::{FileRange, Part, TensorInfo, WeightRef};
pub use value::Value;
pub use writer::GgufWriter;

/// Longest key or tensor name in bytes; the format allows 65535 for keys, names in use have less than 100.
pub const MAX_NAME: usize = 1 << 16;
/// Longest text value in bytes: chat templates have some ten thousand.
pub const MAX_TEXT: usize = 1 << 24;
/// Most metadata entries: models have under a hundred.
pub const MAX_METADATA: usize = 1 << 16;
/// Most tensors: the largest models, with hundreds of experts stored one by one, have some ten thousand.
pub const MAX_TENSORS: usize = 1 << 16;
/// Largest `general.alignment` in bytes: more than a huge page has no use.
pub const MAX_ALIGNMENT: usize = 1 << 21;
/// Largest extent of a tensor in elements, and largest offset of one in bytes: sums and products of checked sizes cannot
/// overflow, and no file is that long.
pub const MAX_EXTENT: usize = 1 << 44;
/// See [`MAX_EXTENT`].
pub const MAX_OFFSET: usize = 1 << 48;

fn limited(value: u64, max: usize, what: &str) -> Result<usize, GgufError> {
    match usize::try_from(value) {
        Ok(v) if v <= max => Ok(v),
        _ => Err(GgufError::Limit { what: what.to_owned(), value, max: max as u64 }),
    }
}

/// A text from the file as it may stand in a message: on one line, without control characters, not longer than names in
/// use are.
pub fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests;
