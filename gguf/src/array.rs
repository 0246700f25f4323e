//! Arrays among the metadata.

use crate::value::{BOOL, TEXT, Value, decode, fixed_size};
use bytes::Bytes;

/// An array of numbers, truth values or texts. It stays as bytes, as in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub(crate) kind: u32,
    pub(crate) len: usize,
    /// The elements, one behind the other.
    pub(crate) bytes: Bytes,
}

impl From<&[bool]> for Array {
    fn from(values: &[bool]) -> Array {
        Array { kind: BOOL, len: values.len(), bytes: values.iter().map(|&v| u8::from(v)).collect() }
    }
}

impl Array {
    /// An array of texts, which should be UTF-8.
    pub fn of_texts<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Array {
        let (mut len, mut bytes) = (0, Vec::new());
        for text in texts {
            put_text(&mut bytes, text.as_ref());
            len += 1;
        }
        Array { kind: TEXT, len, bytes: bytes.into() }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of an array of numbers or truth values; `None` for texts.
    pub fn values(&self) -> Option<impl Iterator<Item = Value> + '_> {
        let size = fixed_size(self.kind)?;
        Some(self.bytes.chunks_exact(size).map(move |chunk| {
            let mut raw = [0u8; 8];
            raw[..size].copy_from_slice(chunk);
            decode(self.kind, raw)
        }))
    }

    /// The texts of an array of texts as bytes; `None` for others.
    pub fn texts(&self) -> Option<impl Iterator<Item = &[u8]> + '_> {
        if self.kind != TEXT {
            return None;
        }
        let mut rest: &[u8] = &self.bytes;
        Some(std::iter::from_fn(move || {
            let (len, tail) = rest.split_first_chunk::<8>()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let (text, tail) = tail.split_at_checked(len)?;
            rest = tail;
            Some(text)
        }))
    }

    /// The texts of an array of texts, with an index; `None` for others.
    pub fn indexed_texts(&self) -> Option<Texts> {
        let mut at = 0;
        let mut ranges = Vec::with_capacity(self.len);
        for text in self.texts()? {
            at += 8;
            ranges.push(at..at + text.len());
            at += text.len();
        }
        Some(Texts { bytes: self.bytes.clone(), ranges })
    }
}

/// Writes a text behind its length.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// An array of texts that stays in the file, with an index.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    bytes: Bytes,
    ranges: Vec<std::ops::Range<usize>>,
}

impl Texts {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The text at `i`.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        self.bytes.get(self.ranges.get(i)?.clone())
    }

    /// The text at `i` as a slice of its own.
    pub fn slice(&self, i: usize) -> Option<Bytes> {
        Some(self.bytes.slice_ref(self.get(i)?))
    }

    /// All texts in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}
