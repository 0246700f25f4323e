//! A model's file, or its files, as one.

use crate::file::ParsedFile;
use crate::metadata::Metadata;
use crate::split::{self, Split};
use crate::{FileRange, GgufError, Part, TensorInfo, Value, WeightRef, shown};
use bytes::Bytes;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// A parsed model: one file, or several that `gguf-split` has made of one.
#[derive(Clone, Debug)]
pub struct Gguf {
    files: Vec<Bytes>,
    paths: Vec<PathBuf>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Opens a model's file. If that is one of several (`NAME-00001-of-00003.gguf`; whichever of them), opens all, which must lie beside
    /// it. `open` gives the bytes of a file, usually by mapping it. Errors name the file.
    pub fn open(path: &Path, mut open: impl FnMut(&Path) -> io::Result<Bytes>) -> Result<Gguf, GgufError> {
        let bytes = open(path).map_err(|e| GgufError::Unreadable(e.to_string()).of(path))?;
        let file = ParsedFile::parse(bytes).map_err(|e| e.of(path))?;
        match Split::of(&file.metadata).map_err(|e| e.of(path))? {
            None => Gguf::whole(file, vec![path.to_owned()]),
            Some(split) => split::open(path, file, split, &mut open),
        }
    }

    /// Parses a model that is in one file, usually a memory-mapped one.
    pub fn parse(file: Bytes) -> Result<Gguf, GgufError> {
        let file = ParsedFile::parse(file)?;
        match Split::of(&file.metadata)? {
            None => Gguf::whole(file, Vec::new()),
            Some(split) => Err(GgufError::Invalid(format!(
                "this is file {} of {} of a model; open it by its name, with the others beside it",
                split.no + 1,
                split.count
            ))),
        }
    }

    fn whole(file: ParsedFile, paths: Vec<PathBuf>) -> Result<Gguf, GgufError> {
        let mut gguf = Gguf::new(file.metadata);
        gguf.add(file.bytes, file.tensors)?;
        gguf.paths = paths;
        Ok(gguf)
    }

    /// A model without files.
    pub(crate) fn new(metadata: Metadata) -> Gguf {
        let (files, paths) = (Vec::new(), Vec::new());
        Gguf { files, paths, metadata, tensors: Vec::new(), by_name: HashMap::new() }
    }

    /// Adds a file's tensors. One of a name that is there already is an error.
    pub(crate) fn add(&mut self, bytes: Bytes, tensors: Vec<TensorInfo>) -> Result<(), GgufError> {
        let file = self.files.len();
        self.files.push(bytes);
        for tensor in tensors {
            if let Some(other) = self.by_name.insert(tensor.name.clone(), self.tensors.len()) {
                let other = self.tensors.get(other).map_or(0, |t| t.file) + 1;
                let (name, this) = (shown(&tensor.name), file + 1);
                return Err(GgufError::Invalid(format!(
                    "tensor {name} is in file {this} and in file {other}: they are not of one model; download them again"
                )));
            }
            self.tensors.push(TensorInfo { file, ..tensor });
        }
        Ok(())
    }

    /// Notes where its files are.
    pub(crate) fn at(self, paths: Vec<PathBuf>) -> Gguf {
        Gguf { paths, ..self }
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

    /// Keys and values of all metadata in the order of the file. Of several files it is that of the first, without what they say of one
    /// another (`split.no`, `split.count`, `split.tensors.count`).
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter()
    }

    /// All tensors in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }

    /// The tensor of that name as weights.
    pub fn weight(&self, name: &str) -> Option<WeightRef> {
        let tensor = *self.by_name.get(name)?;
        Some(WeightRef { file: self.tensors.get(tensor)?.file, tensor, part: Part::Whole })
    }

    /// Which bytes weights have; `None` if they are not this model's.
    pub fn range(&self, weight: WeightRef) -> Option<FileRange> {
        let tensor = self.tensors.get(weight.tensor).filter(|tensor| tensor.file == weight.file)?;
        tensor.range_of(weight.part)
    }

    /// The bytes of a tensor of this model, without a copy.
    pub fn data(&self, tensor: &TensorInfo) -> Bytes {
        self.bytes(tensor.range())
    }

    /// Bytes of one of its files, without a copy; as many of them as the file has.
    pub fn bytes(&self, range: FileRange) -> Bytes {
        let Some(file) = self.files.get(range.file) else { return Bytes::new() };
        let within = |at: u64| usize::try_from(at).map_or(file.len(), |at| at.min(file.len()));
        file.slice(within(range.offset)..within(range.offset.saturating_add(range.len)))
    }

    /// Its files, each of them whole.
    pub fn files(&self) -> &[Bytes] {
        &self.files
    }

    /// Where its files are, in their order; none of a model that was not opened by a path.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Length of all files together in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }
}
