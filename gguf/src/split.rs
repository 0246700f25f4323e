//! Models in several files, as llama.cpp's `gguf-split` makes them: `NAME-00001-of-00003.gguf` and so on, in one folder.
//!
//! Each file is a GGUF file by itself, with tensors of its own. `split.no` says which of them it is, counted from 0, `split.count` how
//! many there are, `split.tensors.count` how many tensors they have together. The model's metadata is in the first file.

use crate::file::ParsedFile;
use crate::metadata::Metadata;
use crate::{Gguf, GgufError, MAX_TENSORS, limited};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

/// Most files of a model. The largest ones have some two hundred, of a few gigabytes each; every one of them is opened and stays mapped,
/// and a process usually may have 1024 open files.
pub const MAX_FILES: usize = 1024;

/// Which of a model's files one is, from 0 (u16).
pub(crate) const NO: &str = "split.no";
/// How many files there are (u16).
pub(crate) const COUNT: &str = "split.count";
/// How many tensors they have together (i32).
pub(crate) const TENSORS: &str = "split.tensors.count";

/// What a file says of those that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Split {
    pub(crate) no: usize,
    pub(crate) count: usize,
    tensors: usize,
}

impl Split {
    /// Of a file with this metadata; `None` if it is a whole model, as one file of one also is.
    pub(crate) fn of(metadata: &Metadata) -> Result<Option<Split>, GgufError> {
        let number = |key: &str, max: usize| {
            let value = metadata.get(key).ok_or_else(|| GgufError::Invalid(format!("{key} is missing")))?;
            let value = value.as_u64().ok_or_else(|| GgufError::Invalid(format!("{key} is not a whole number")))?;
            limited(value, max, key)
        };
        let count = if metadata.get(COUNT).is_some() { number(COUNT, MAX_FILES)? } else { 1 };
        if count <= 1 {
            return Ok(None);
        }
        Ok(Some(Split { no: number(NO, count - 1)?, count, tensors: number(TENSORS, MAX_TENSORS)? }))
    }

    /// How the name of a file ends, counted from 0.
    fn ending(&self, no: usize) -> String {
        format!("-{:05}-of-{:05}.gguf", no + 1, self.count)
    }

    /// The paths of all files, from that of one. Its name must be the one that it has by what it says of itself.
    fn paths(&self, path: &Path) -> Result<Vec<PathBuf>, GgufError> {
        let ending = self.ending(self.no);
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(&ending));
        let Some(name) = name else {
            return Err(GgufError::Invalid(format!(
                "it says that it is file {} of {} of a model ({NO}, {COUNT}), but its name does not end with {ending}; give all of \
                 them the names that they had where they come from",
                self.no + 1,
                self.count
            )));
        };
        Ok((0..self.count).map(|no| path.with_file_name(format!("{name}{}", self.ending(no)))).collect())
    }

    /// Checks that a file is number `no` of the same files.
    fn check(&self, file: &ParsedFile, no: usize) -> Result<(), GgufError> {
        let (this, all) = (no + 1, self.count);
        let wrong = |what: String| GgufError::Invalid(format!("{what}; download it again"));
        let Some(other) = Split::of(&file.metadata)? else {
            return Err(wrong(format!(
                "it has the name of file {this} of {all} of a model, but it is a model by itself"
            )));
        };
        if (other.no, other.count) != (no, all) {
            let (no, count) = (other.no + 1, other.count);
            return Err(wrong(format!(
                "it has the name of file {this} of {all} of a model, but says that it is file {no} of {count} ({NO}, {COUNT})"
            )));
        }
        if other.tensors != self.tensors {
            let (all, tensors) = (self.tensors, other.tensors);
            return Err(wrong(format!(
                "it is of a model of {tensors} tensors ({TENSORS}), and others beside it of one of {all}"
            )));
        }
        Ok(())
    }
}

/// Opens all files of a model, of which one has been opened.
pub(crate) fn open(
    path: &Path,
    opened: ParsedFile,
    split: Split,
    open: &mut dyn FnMut(&Path) -> io::Result<Bytes>,
) -> Result<Gguf, GgufError> {
    let paths = split.paths(path).map_err(|e| e.of(path))?;
    let mut opened = Some(opened);
    let mut gguf: Option<Gguf> = None;
    for (no, path) in paths.iter().enumerate() {
        let here = if no == split.no { opened.take() } else { None };
        let file = match here {
            Some(file) => file,
            None => read(path, split.count, open)?,
        };
        split.check(&file, no).map_err(|e| e.of(path))?;
        let gguf = gguf.get_or_insert_with(|| Gguf::new(file.metadata.without(&[NO, COUNT, TENSORS])));
        gguf.add(file.bytes, file.tensors).map_err(|e| e.of(path))?;
        if gguf.tensors().len() > split.tensors {
            return Err(wrong_number(gguf, &split).of(path));
        }
    }
    match gguf {
        Some(gguf) if gguf.tensors().len() == split.tensors => Ok(gguf.at(paths)),
        gguf => Err(wrong_number(&gguf.unwrap_or_else(|| Gguf::new(Metadata::default())), &split).of(path)),
    }
}

fn wrong_number(gguf: &Gguf, split: &Split) -> GgufError {
    let (files, count) = (gguf.files().len(), split.count);
    let (tensors, said) = (gguf.tensors().len(), split.tensors);
    GgufError::Invalid(format!(
        "files 1 to {files} of {count} have {tensors} tensors, {TENSORS} says {said} in all of them; download them again"
    ))
}

/// Reads a file that must lie beside another.
fn read(path: &Path, count: usize, open: &mut dyn FnMut(&Path) -> io::Result<Bytes>) -> Result<ParsedFile, GgufError> {
    let bytes = open(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => GgufError::Invalid(format!(
            "there is no such file, but the model is in {count} files, which must lie in one folder; download it, too"
        )),
        _ => GgufError::Unreadable(e.to_string()),
    });
    bytes.and_then(ParsedFile::parse).map_err(|e| e.of(path))
}

#[cfg(test)]
mod tests;
