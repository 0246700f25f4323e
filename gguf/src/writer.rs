//! Writes small GGUF files in memory: for tests, tools and fuzzing.

use super::{MAGIC, number_of};
use outboard_core::{DType, Layout};

/// Collects metadata and tensors, then gives the file's bytes (version 3, alignment 32).
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<u8>,
    n_metadata: u64,
    tensors: Vec<(String, Layout, Vec<u8>)>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    fn text_into(out: &mut Vec<u8>, text: &[u8]) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text);
    }

    fn entry(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        Self::text_into(&mut self.metadata, key.as_bytes());
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend(value);
        self.n_metadata += 1;
        self
    }

    /// A 32-bit unsigned number.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    /// A 32-bit float.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    /// A truth value.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.entry(key, 7, &[u8::from(value)])
    }

    /// A text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut out = Vec::new();
        Self::text_into(&mut out, value.as_bytes());
        self.entry(key, 8, &out)
    }

    /// An array of texts.
    pub fn texts<T: AsRef<[u8]>>(&mut self, key: &str, values: &[T]) -> &mut Self {
        let mut out = 8u32.to_le_bytes().to_vec();
        out.extend((values.len() as u64).to_le_bytes());
        for v in values {
            Self::text_into(&mut out, v.as_ref());
        }
        self.entry(key, 9, &out)
    }

    /// An array of 32-bit signed numbers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let mut out = 5u32.to_le_bytes().to_vec();
        out.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        self.entry(key, 9, &out)
    }

    /// An array of 32-bit floats.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        let mut out = 6u32.to_le_bytes().to_vec();
        out.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        self.entry(key, 9, &out)
    }

    /// A tensor with its data, which must have the size that type and shape give.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> Result<&mut Self, String> {
        let ne = outboard_core::shape::dims(shape).ok_or("more than four dimensions")?;
        let layout = Layout::contiguous(dtype, ne).map_err(|e| e.to_string())?;
        if layout.span() != data.len() || number_of(dtype).is_none() {
            return Err(format!("{name}: {} bytes do not make {layout}", data.len()));
        }
        self.tensors.push((name.to_owned(), layout, data.to_vec()));
        Ok(self)
    }

    /// The file.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_metadata.to_le_bytes());
        out.extend(&self.metadata);
        let mut offset = 0u64;
        for (name, layout, data) in &self.tensors {
            Self::text_into(&mut out, name.as_bytes());
            out.extend(4u32.to_le_bytes());
            layout.ne().iter().for_each(|&n| out.extend((n as u64).to_le_bytes()));
            out.extend(number_of(layout.dtype()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (data.len() as u64).next_multiple_of(32);
        }
        for (_, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }
}
