//! One GGUF file: its head is read, and everything in it checked.

use crate::metadata::Metadata;
use crate::reader::Reader;
use crate::tensor::{check_overlap, read_tensor};
use crate::{GgufError, MAX_ALIGNMENT, MAX_METADATA, MAX_TENSORS, TensorInfo, Value, limited, shown};
use bytes::Bytes;
use std::collections::HashSet;

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// The key of the alignment of tensor data, in bytes.
pub(crate) const ALIGNMENT: &str = "general.alignment";
/// Alignment of tensor data where the file does not say.
const DEFAULT_ALIGNMENT: usize = 32;

/// What a file has.
pub(crate) struct ParsedFile {
    /// All of it, or its first bytes.
    pub(crate) bytes: Bytes,
    pub(crate) metadata: Metadata,
    /// In the order of the table.
    pub(crate) tensors: Vec<TensorInfo>,
}

impl ParsedFile {
    /// Parses a whole file.
    pub(crate) fn parse(file: Bytes) -> Result<ParsedFile, GgufError> {
        let len = file.len();
        ParsedFile::parse_head(file, len)
    }

    /// Parses the head of a file of `file_len` bytes, of which `head` has the first ones. Where `head` ends too early, the error is
    /// [`GgufError::Truncated`] with its length.
    pub(crate) fn parse_head(head: Bytes, file_len: usize) -> Result<ParsedFile, GgufError> {
        if head.is_empty() {
            return Err(GgufError::NotGguf(": it is empty"));
        }
        let mut r = Reader::new(head.clone());
        read_version(&mut r)?;
        let n_tensors = limited(r.u64("the number of tensors")?, MAX_TENSORS, "the number of tensors")?;
        let n_metadata =
            limited(r.u64("the number of metadata entries")?, MAX_METADATA, "the number of metadata entries")?;
        let metadata = read_metadata(&mut r, n_metadata)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = Vec::new();
        for i in 0..n_tensors {
            tensors.push(read_tensor(&mut r, i)?);
        }
        let mut names = HashSet::new();
        if let Some(twice) = tensors.iter().find(|t| !names.insert(&t.name)) {
            return Err(GgufError::Invalid(format!("tensor {} is there twice", shown(&twice.name))));
        }
        let data_start = r.position().next_multiple_of(alignment);
        tensors.iter_mut().try_for_each(|t| place(t, data_start, alignment, file_len))?;
        check_overlap(&tensors)?;
        Ok(ParsedFile { bytes: head, metadata, tensors })
    }
}

fn read_version(r: &mut Reader) -> Result<(), GgufError> {
    let magic = r.bytes(MAGIC.len().min(r.remaining()), "the magic number")?;
    if !MAGIC.starts_with(&magic) {
        return Err(GgufError::NotGguf(""));
    }
    let version = r.u32("the version")?;
    if (2..=3).contains(&version) {
        return Ok(());
    }
    match version.swap_bytes() {
        2 | 3 => Err(GgufError::NotGguf(" for this byte order: it is big-endian")),
        _ => Err(GgufError::Version(version)),
    }
}

fn read_metadata(r: &mut Reader, entries: usize) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::default();
    for i in 0..entries {
        let key = r.name(&format!("the key of metadata entry {i}"))?;
        let value = Value::read(r, &key)?;
        if metadata.get(&key).is_some() {
            return Err(GgufError::Invalid(format!("metadata {} is there twice", shown(&key))));
        }
        metadata.set(key, value);
    }
    Ok(metadata)
}

/// Alignment of tensor data in a file with this metadata.
pub(crate) fn alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    let Some(value) = metadata.get(ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
    let value = value.as_u64().filter(|&a| a <= MAX_ALIGNMENT as u64 && a.is_power_of_two());
    let wrong = || GgufError::Invalid(format!("{ALIGNMENT} is not a power of two up to {MAX_ALIGNMENT}"));
    value.map(|a| a as usize).ok_or_else(wrong)
}

/// Makes a tensor's offset one from the start of the file, in which all of it must lie.
fn place(t: &mut TensorInfo, data_start: usize, alignment: usize, file_len: usize) -> Result<(), GgufError> {
    let relative = t.offset;
    if relative % alignment != 0 {
        let name = shown(&t.name);
        return Err(GgufError::Invalid(format!("tensor {name} starts at {relative}, not a multiple of {alignment}")));
    }
    let start = data_start.checked_add(relative);
    let end = start.and_then(|s| s.checked_add(t.layout.span()));
    match (start, end) {
        (Some(start), Some(end)) if end <= file_len => {
            t.offset = start;
            Ok(())
        }
        _ => {
            let what = format!("tensor {} of {} bytes", shown(&t.name), t.layout.span());
            Err(GgufError::Truncated { what, at: data_start.saturating_add(relative), len: file_len })
        }
    }
}
