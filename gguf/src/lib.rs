//! GGUF files, versions 2 and 3 (the format's specification in ggml's `docs/gguf.md`).
//!
//! [`Gguf::parse`] validates everything that it will ever hand out: counts against the bytes that are there, names, types, and that
//! every tensor lies inside the file. Tensor data stays where it is; [`Gguf::data`] gives slices of it. [`read_tensors`] reads
//! the head of a file that may change meanwhile, and says where its tensors are.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod digests;
mod head;
mod reader;
mod value;
mod writer;

pub use digests::{Digests, FileKey};
pub use head::{MAX_HEAD, read_tensors};
pub use value::{Array, Texts, Value};
pub use writer::GgufWriter;

use bytes::Bytes;
use outboard_core::{DIMS, DType, Layout};
use reader::Reader;
use std::collections::HashMap;

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
/// Alignment of tensor data where the file does not say.
const DEFAULT_ALIGNMENT: usize = 32;
const MAGIC: &[u8; 4] = b"GGUF";

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
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type, shape, contiguous strides.
    pub layout: Layout,
    /// First byte of its data in the file.
    pub offset: usize,
}

/// A parsed file.
#[derive(Clone, Debug)]
pub struct Gguf {
    file: Bytes,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Parses a whole file, usually a memory-mapped one.
    pub fn parse(file: Bytes) -> Result<Gguf, GgufError> {
        let len = file.len();
        Gguf::parse_head(file, len)
    }

    /// Parses the head of a file of `file_len` bytes, of which `head` has the first ones. Where `head` ends too early, the error is
    /// [`GgufError::Truncated`] with its length.
    fn parse_head(head: Bytes, file_len: usize) -> Result<Gguf, GgufError> {
        if head.is_empty() {
            return Err(GgufError::NotGguf(": it is empty"));
        }
        let mut r = Reader::new(head.clone());
        let magic = r.bytes(4.min(head.len()), "the magic number")?;
        if magic[..] != MAGIC[..magic.len()] {
            return Err(GgufError::NotGguf(""));
        }
        let version = r.u32("the version")?;
        if !(2..=3).contains(&version) {
            return match version.swap_bytes() {
                2 | 3 => Err(GgufError::NotGguf(" for this byte order: it is big-endian")),
                _ => Err(GgufError::Version(version)),
            };
        }
        let n_tensors = limited(r.u64("the number of tensors")?, MAX_TENSORS, "the number of tensors")?;
        let n_metadata =
            limited(r.u64("the number of metadata entries")?, MAX_METADATA, "the number of metadata entries")?;
        let mut metadata = HashMap::new();
        for i in 0..n_metadata {
            let key = r.name(&format!("the key of metadata entry {i}"))?;
            let value = Value::read(&mut r, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(GgufError::Invalid(format!("metadata {} is there twice", shown(&key))));
            }
        }
        if let Some(n) = metadata.get("split.count").and_then(Value::as_u64).filter(|&n| n > 1) {
            return Err(GgufError::Invalid(format!(
                "this is one of {n} parts of a model; join them into one file first (split models are not supported yet)"
            )));
        }
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(v) => {
                let a = v.as_u64().filter(|&a| a <= MAX_ALIGNMENT as u64 && a.is_power_of_two());
                let wrong = || format!("general.alignment is not a power of two up to {MAX_ALIGNMENT}");
                a.ok_or_else(|| GgufError::Invalid(wrong()))? as usize
            }
        };
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for i in 0..n_tensors {
            let tensor = read_tensor(&mut r, i)?;
            if by_name.insert(tensor.name.clone(), i).is_some() {
                return Err(GgufError::Invalid(format!("tensor {} is there twice", shown(&tensor.name))));
            }
            tensors.push(tensor);
        }
        let data_start = r.position().next_multiple_of(alignment);
        for t in &mut tensors {
            let relative = t.offset;
            if relative % alignment != 0 {
                return Err(GgufError::Invalid(format!(
                    "tensor {} starts at {relative}, not a multiple of {alignment}",
                    shown(&t.name)
                )));
            }
            let start = data_start.checked_add(relative);
            let end = start.and_then(|s| s.checked_add(t.layout.span()));
            match (start, end) {
                (Some(start), Some(end)) if end <= file_len => t.offset = start,
                _ => {
                    let what = format!("tensor {} of {} bytes", shown(&t.name), t.layout.span());
                    return Err(GgufError::Truncated { what, at: data_start.saturating_add(relative), len: file_len });
                }
            }
        }
        check_overlap(&tensors)?;
        Ok(Gguf { file: head, metadata, tensors, by_name })
    }

    /// The value of a metadata key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// A text value.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// An integer value of any width.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// Keys of all metadata, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// All tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }

    /// The bytes of a tensor of this file, without a copy.
    pub fn data(&self, tensor: &TensorInfo) -> Bytes {
        let end = (tensor.offset + tensor.layout.span()).min(self.file.len());
        self.file.slice(tensor.offset.min(end)..end)
    }

    /// The whole file.
    pub fn file(&self) -> &Bytes {
        &self.file
    }
}

fn limited(value: u64, max: usize, what: &str) -> Result<usize, GgufError> {
    match usize::try_from(value) {
        Ok(v) if v <= max => Ok(v),
        _ => Err(GgufError::Limit { what: what.to_owned(), value, max: max as u64 }),
    }
}

/// Reads one entry of the tensor table; its offset is still relative to the data.
fn read_tensor(r: &mut Reader, i: usize) -> Result<TensorInfo, GgufError> {
    let name = r.name(&format!("the name of tensor {i}"))?;
    let shown = shown(&name);
    let n_dims = r.u32(&shown)?;
    if n_dims as usize > DIMS {
        return Err(GgufError::Limit {
            what: format!("dimensions of tensor {shown}"),
            value: n_dims.into(),
            max: DIMS as u64,
        });
    }
    let mut ne = [1; DIMS];
    for extent in ne.iter_mut().take(n_dims as usize) {
        *extent = limited(r.u64(&shown)?, MAX_EXTENT, &format!("an extent of tensor {shown}"))?;
    }
    let kind = r.u32(&shown)?;
    let dtype = dtype_of(kind).map_err(|ty| {
        GgufError::Invalid(format!("tensor {shown} has type {ty} ({kind} in the file), which is not supported"))
    })?;
    let layout = Layout::contiguous(dtype, ne).map_err(|e| GgufError::Invalid(format!("tensor {shown}: {e}")))?;
    let offset = limited(r.u64(&shown)?, MAX_OFFSET, &format!("the offset of tensor {shown}"))?;
    Ok(TensorInfo { name, layout, offset })
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

/// No two tensors may share bytes: a file in which they do was not made by a converter.
fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.layout.span() > 0).collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if let [a, b] = pair
            && a.offset + a.layout.span() > b.offset
        {
            return Err(GgufError::Invalid(format!("tensors {} and {} overlap", shown(&a.name), shown(&b.name))));
        }
    }
    Ok(())
}

/// GGUF's numbers of types and the names of those that are not supported.
const TYPES: [(u32, Result<DType, &str>); 42] = [
    (0, Ok(DType::F32)),
    (1, Ok(DType::F16)),
    (2, Ok(DType::Q4_0)),
    (3, Ok(DType::Q4_1)),
    (4, Err("Q4_2")),
    (5, Err("Q4_3")),
    (6, Ok(DType::Q5_0)),
    (7, Ok(DType::Q5_1)),
    (8, Ok(DType::Q8_0)),
    (9, Err("Q8_1")),
    (10, Ok(DType::Q2_K)),
    (11, Ok(DType::Q3_K)),
    (12, Ok(DType::Q4_K)),
    (13, Ok(DType::Q5_K)),
    (14, Ok(DType::Q6_K)),
    (15, Err("Q8_K")),
    (16, Err("IQ2_XXS")),
    (17, Err("IQ2_XS")),
    (18, Err("IQ3_XXS")),
    (19, Err("IQ1_S")),
    (20, Ok(DType::IQ4_NL)),
    (21, Err("IQ3_S")),
    (22, Err("IQ2_S")),
    (23, Ok(DType::IQ4_XS)),
    (24, Err("I8")),
    (25, Err("I16")),
    (26, Ok(DType::I32)),
    (27, Err("I64")),
    (28, Err("F64")),
    (29, Err("IQ1_M")),
    (30, Ok(DType::BF16)),
    (31, Err("Q4_0_4_4")),
    (32, Err("Q4_0_4_8")),
    (33, Err("Q4_0_8_8")),
    (34, Err("TQ1_0")),
    (35, Err("TQ2_0")),
    (36, Err("IQ4_NL_4_4")),
    (37, Err("IQ4_NL_4_8")),
    (38, Err("IQ4_NL_8_8")),
    (39, Ok(DType::MXFP4)),
    (40, Err("NVFP4")),
    (41, Err("Q1_0")),
];

fn dtype_of(kind: u32) -> Result<DType, &'static str> {
    TYPES.iter().find(|(k, _)| *k == kind).map_or(Err("unknown"), |(_, d)| *d)
}

/// GGUF's number of a type that files can hold.
fn number_of(dtype: DType) -> Option<u32> {
    TYPES.iter().find(|(_, d)| *d == Ok(dtype)).map(|(k, _)| *k)
}

#[cfg(test)]
mod tests;
