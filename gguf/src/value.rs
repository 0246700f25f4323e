//! Metadata values.

use super::reader::Reader;
use super::{GgufError, MAX_TEXT};
use bytes::Bytes;

/// A metadata value. Arrays stay as bytes in the file and are decoded when they are asked for: a vocabulary has 150,000
/// texts, which most callers never look at.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// 32- or 64-bit float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text that is UTF-8.
    Text(String),
    /// Elements of one type.
    Array(Array),
}

/// An array in the file.
#[derive(Clone, Debug)]
pub struct Array {
    kind: u32,
    len: usize,
    bytes: Bytes,
}

const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const I16: u32 = 3;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// Bytes of a value of a fixed size.
fn fixed_size(kind: u32) -> Option<usize> {
    match kind {
        U8 | I8 | BOOL => Some(1),
        U16 | I16 => Some(2),
        U32 | I32 | F32 => Some(4),
        U64 | I64 | F64 => Some(8),
        _ => None,
    }
}

impl Value {
    pub(super) fn read(reader: &mut Reader, key: &str) -> Result<Value, GgufError> {
        let key = &*super::shown(key);
        let kind = reader.u32(key)?;
        if kind != ARRAY {
            return Value::scalar(reader, kind, key);
        }
        let element = reader.u32(key)?;
        let len = reader.u64(key)?;
        let start = reader.clone();
        let size = match fixed_size(element) {
            Some(size) => usize::try_from(len).ok().and_then(|n| n.checked_mul(size)),
            None if element == TEXT => {
                // Each text has at least its length's 8 bytes, so that a count that lies ends here.
                if len > (reader.remaining() / 8) as u64 {
                    None
                } else {
                    for _ in 0..len {
                        reader.text(MAX_TEXT, key)?;
                    }
                    Some(reader.position() - start.position())
                }
            }
            None => return Err(GgufError::Invalid(format!("{key} is an array of unsupported type {element}"))),
        };
        let Some(size) = size.filter(|&s| s <= start.remaining()) else {
            return Err(GgufError::Truncated {
                what: format!("{key}, an array of {len} elements"),
                at: start.position(),
                len: start.position() + start.remaining(),
            });
        };
        *reader = start;
        let bytes = reader.bytes(size, key)?;
        Ok(Value::Array(Array { kind: element, len: len as usize, bytes }))
    }

    fn scalar(reader: &mut Reader, kind: u32, key: &str) -> Result<Value, GgufError> {
        if kind == TEXT {
            let bytes = reader.text(MAX_TEXT, key)?;
            let text = String::from_utf8(bytes.to_vec());
            return Ok(Value::Text(text.map_err(|_| GgufError::Invalid(format!("{key} is not UTF-8")))?));
        }
        let size = fixed_size(kind).ok_or_else(|| GgufError::Invalid(format!("{key} has unknown type {kind}")))?;
        let mut raw = [0u8; 8];
        raw[..size].copy_from_slice(&reader.bytes(size, key)?);
        Ok(decode(kind, raw))
    }

    /// As a whole number that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(v) => Some(v),
            Value::Signed(v) => u64::try_from(v).ok(),
            Value::Bool(v) => Some(u64::from(v)),
            _ => None,
        }
    }

    /// As a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(v) => Some(v),
            Value::Unsigned(v) => Some(v as f64),
            Value::Signed(v) => Some(v as f64),
            _ => None,
        }
    }

    /// As a truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// As a text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(v) => Some(v),
            _ => None,
        }
    }

    /// As an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }
}

/// Decodes a value of a fixed size from its bytes, padded with zeros.
fn decode(kind: u32, raw: [u8; 8]) -> Value {
    let [a, b, c, d, ..] = raw;
    match kind {
        U8 | U16 | U32 | U64 => Value::Unsigned(u64::from_le_bytes(raw)),
        I8 => Value::Signed(i64::from(a as i8)),
        I16 => Value::Signed(i64::from(i16::from_le_bytes([a, b]))),
        I32 => Value::Signed(i64::from(i32::from_le_bytes([a, b, c, d]))),
        I64 => Value::Signed(i64::from_le_bytes(raw)),
        F32 => Value::Float(f64::from(f32::from_le_bytes([a, b, c, d]))),
        F64 => Value::Float(f64::from_le_bytes(raw)),
        _ => Value::Bool(a != 0),
    }
}

impl Array {
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
