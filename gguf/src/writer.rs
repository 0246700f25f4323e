//! GGUF files, written.

use crate::file::{ALIGNMENT, MAGIC, alignment};
use crate::metadata::Metadata;
use crate::tensor::number_of;
use crate::{Array, Gguf, GgufError, MAX_METADATA, MAX_NAME, MAX_OFFSET, MAX_TENSORS, MAX_TEXT, Value, limited, shown};
use outboard_core::shape::dims;
use outboard_core::{DType, Layout};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, Cursor, Read, Write};

/// Collects metadata and tensors, then writes a file of version 3, which [`Gguf`] reads.
///
/// What is written has the order in which it was given, and is padded as ggml does it: behind the head and behind each tensor.
#[derive(Default)]
pub struct GgufWriter<'r> {
    metadata: Metadata,
    tensors: Vec<Tensor<'r>>,
    names: HashSet<String>,
}

struct Tensor<'r> {
    name: String,
    layout: Layout,
    data: Box<dyn Read + 'r>,
}

impl fmt::Debug for GgufWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufWriter").field("metadata", &self.metadata).field("tensors", &self.names).finish()
    }
}

/// All that a model has, to be written into one file, also where it was in several.
impl From<&Gguf> for GgufWriter<'_> {
    fn from(gguf: &Gguf) -> Self {
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata() {
            writer.value(key, value.clone());
        }
        for tensor in gguf.tensors() {
            writer.push(&tensor.name, tensor.layout, Cursor::new(gguf.data(tensor)));
        }
        writer
    }
}

impl<'r> GgufWriter<'r> {
    /// An empty file.
    pub fn new() -> GgufWriter<'r> {
        GgufWriter::default()
    }

    /// A metadata value of any type. A key that is there already gets the new one.
    pub fn value(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.metadata.set(key.to_owned(), value.into());
        self
    }

    /// Where data of tensors begins: a multiple of so many bytes, a power of two (`general.alignment`; 32 if nothing is said).
    pub fn alignment(&mut self, bytes: u32) -> &mut Self {
        self.value(ALIGNMENT, bytes)
    }

    /// A 32-bit unsigned number.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.value(key, value)
    }

    /// A 32-bit float.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.value(key, value)
    }

    /// A truth value.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.value(key, value)
    }

    /// A text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.value(key, value)
    }

    /// An array of texts.
    pub fn texts<T: AsRef<[u8]>>(&mut self, key: &str, values: &[T]) -> &mut Self {
        self.value(key, Array::of_texts(values))
    }

    /// An array of 32-bit signed numbers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.value(key, Array::from(values))
    }

    /// An array of 32-bit floats.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.value(key, Array::from(values))
    }

    /// A tensor with a copy of its data, which must have the size that type and shape give. Extents are in elements, that of a row first.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> Result<&mut Self, GgufError> {
        let layout = self.layout(name, dtype, shape)?;
        if layout.span() != data.len() {
            let name = shown(name);
            return Err(GgufError::Invalid(format!("tensor {name}: {} bytes do not make {layout}", data.len())));
        }
        Ok(self.push(name, layout, Cursor::new(data.to_vec())))
    }

    /// A tensor whose data is read when the file is written (a slice is a reader, too). No more is read than type and shape say, and
    /// less is an error then.
    pub fn tensor_from(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        data: impl Read + 'r,
    ) -> Result<&mut Self, GgufError> {
        let layout = self.layout(name, dtype, shape)?;
        Ok(self.push(name, layout, data))
    }

    /// The layout of a tensor that can be added.
    fn layout(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Layout, GgufError> {
        let wrong = |why: String| GgufError::Invalid(format!("tensor {}: {why}", shown(name)));
        let ne =
            dims(shape).ok_or_else(|| wrong(format!("it has {} dimensions, at most 4 are possible", shape.len())))?;
        if number_of(dtype).is_none() {
            return Err(wrong(format!("{dtype} is no type of files")));
        }
        if self.names.contains(name) {
            return Err(wrong("it is there already".into()));
        }
        Layout::contiguous(dtype, ne).map_err(|e| wrong(e.to_string()))
    }

    fn push(&mut self, name: &str, layout: Layout, data: impl Read + 'r) -> &mut Self {
        self.names.insert(name.to_owned());
        self.tensors.push(Tensor { name: name.to_owned(), layout, data: Box::new(data) });
        self
    }

    /// Writes the file. What [`Gguf`] would refuse is an error of kind [`io::ErrorKind::InvalidInput`], before anything is written.
    pub fn write(self, mut out: impl Write) -> io::Result<()> {
        let invalid = |e: GgufError| io::Error::new(io::ErrorKind::InvalidInput, e);
        let alignment = alignment(&self.metadata).map_err(invalid)? as u64;
        let head = self.head(alignment).map_err(invalid)?;
        out.write_all(&head)?;
        pad(&mut out, head.len() as u64, alignment)?;
        for tensor in self.tensors {
            let len = tensor.layout.span() as u64;
            let read = io::copy(&mut tensor.data.take(len), &mut out)?;
            if read < len {
                let what = format!("tensor {}: its data ends after {read} of {len} bytes", shown(&tensor.name));
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            pad(&mut out, len, alignment)?;
        }
        out.flush()
    }

    /// The bytes of the file; errors as of [`GgufWriter::write`].
    pub fn finish(self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    /// All that comes before the data of tensors.
    fn head(&self, alignment: u64) -> Result<Vec<u8>, GgufError> {
        limited(self.tensors.len() as u64, MAX_TENSORS, "the number of tensors")?;
        limited(self.metadata.len() as u64, MAX_METADATA, "the number of metadata entries")?;
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_name(&mut out, key)?;
            check_texts(key, value)?;
            out.extend(value.encode());
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            let name = put_name(&mut out, &tensor.name)?;
            let used = tensor.layout.ne().iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
            out.extend((used as u32).to_le_bytes());
            tensor.layout.ne().iter().take(used).for_each(|&n| out.extend((n as u64).to_le_bytes()));
            let kind = number_of(tensor.layout.dtype());
            let kind = kind.ok_or_else(|| GgufError::Invalid(format!("tensor {name} has no type of files")))?;
            out.extend(kind.to_le_bytes());
            limited(offset, MAX_OFFSET, &format!("the offset of tensor {name}"))?;
            out.extend(offset.to_le_bytes());
            offset += (tensor.layout.span() as u64).next_multiple_of(alignment);
        }
        Ok(out)
    }
}

/// Writes a key or the name of a tensor, and gives it as it may stand in a message.
fn put_name(out: &mut Vec<u8>, name: &str) -> Result<String, GgufError> {
    let shown = shown(name);
    limited(name.len() as u64, MAX_NAME, &format!("the length of {shown}"))?;
    crate::array::put_text(out, name.as_bytes());
    Ok(shown)
}

fn check_texts(key: &str, value: &Value) -> Result<(), GgufError> {
    let check = |len: usize| limited(len as u64, MAX_TEXT, &format!("the length of {}", shown(key))).map(drop);
    match value {
        Value::Text(text) => check(text.len()),
        Value::Array(array) => array.texts().into_iter().flatten().try_for_each(|text| check(text.len())),
        _ => Ok(()),
    }
}

/// Writes zeros behind `len` bytes, up to the next multiple of `alignment`.
fn pad(out: &mut impl Write, len: u64, alignment: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(len.next_multiple_of(alignment) - len), out).map(drop)
}

#[cfg(test)]
mod tests;
