//! Metadata values.

use crate::array::{Array, put_text};
use crate::reader::Reader;
use crate::{GgufError, MAX_TEXT, shown};

/// A metadata value with the type that it has in the file. Arrays stay as bytes in the file and are decoded when they are asked for: a
/// vocabulary has 150,000 texts, which most callers never look at. Floats are equal if their bits are.
#[derive(Clone, Debug)]
pub enum Value {
    /// 8-bit unsigned integer.
    U8(u8),
    /// 8-bit signed integer.
    I8(i8),
    /// 16-bit unsigned integer.
    U16(u16),
    /// 16-bit signed integer.
    I16(i16),
    /// 32-bit unsigned integer.
    U32(u32),
    /// 32-bit signed integer.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A text that is UTF-8.
    Text(String),
    /// Elements of one type.
    Array(Array),
    /// 64-bit unsigned integer.
    U64(u64),
    /// 64-bit signed integer.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const I16: u32 = 3;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// Bytes of a value of a fixed size.
pub(crate) fn fixed_size(kind: u32) -> Option<usize> {
    match kind {
        U8 | I8 | BOOL => Some(1),
        U16 | I16 => Some(2),
        U32 | I32 | F32 => Some(4),
        U64 | I64 | F64 => Some(8),
        _ => None,
    }
}

/// Values and arrays of a type of numbers.
macro_rules! numbers {
    ($($variant:ident $number:ty = $kind:ident),*) => {$(
        impl From<$number> for Value {
            fn from(value: $number) -> Value {
                Value::$variant(value)
            }
        }

        impl From<&[$number]> for Array {
            fn from(values: &[$number]) -> Array {
                let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                Array { kind: $kind, len: values.len(), bytes }
            }
        }
    )*};
}

numbers!(U8 u8 = U8, I8 i8 = I8, U16 u16 = U16, I16 i16 = I16, U32 u32 = U32, I32 i32 = I32, F32 f32 = F32);
numbers!(U64 u64 = U64, I64 i64 = I64, F64 f64 = F64);

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(value)
    }
}

impl From<Array> for Value {
    fn from(value: Array) -> Value {
        Value::Array(value)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Array(a), Value::Array(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => a == b,
            (a, b) => a.encode() == b.encode(),
        }
    }
}

impl Eq for Value {}

impl Value {
    pub(crate) fn read(reader: &mut Reader, key: &str) -> Result<Value, GgufError> {
        let key = &*shown(key);
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

    /// Its type and itself, as in a file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let with = |kind: u32, bytes: &[u8]| [&kind.to_le_bytes()[..], bytes].concat();
        match self {
            Value::U8(v) => with(U8, &v.to_le_bytes()),
            Value::I8(v) => with(I8, &v.to_le_bytes()),
            Value::U16(v) => with(U16, &v.to_le_bytes()),
            Value::I16(v) => with(I16, &v.to_le_bytes()),
            Value::U32(v) => with(U32, &v.to_le_bytes()),
            Value::I32(v) => with(I32, &v.to_le_bytes()),
            Value::F32(v) => with(F32, &v.to_le_bytes()),
            Value::Bool(v) => with(BOOL, &[u8::from(*v)]),
            Value::Text(v) => {
                let mut out = TEXT.to_le_bytes().to_vec();
                put_text(&mut out, v.as_bytes());
                out
            }
            Value::Array(v) => {
                let len = (v.len as u64).to_le_bytes();
                [&ARRAY.to_le_bytes()[..], &v.kind.to_le_bytes(), &len, &v.bytes].concat()
            }
            Value::U64(v) => with(U64, &v.to_le_bytes()),
            Value::I64(v) => with(I64, &v.to_le_bytes()),
            Value::F64(v) => with(F64, &v.to_le_bytes()),
        }
    }

    /// As a whole number that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Bool(v) => Some(u64::from(v)),
            _ => u64::try_from(self.integer()?).ok(),
        }
    }

    /// As a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(f64::from(v)),
            Value::F64(v) => Some(v),
            _ => self.integer().map(|v| v as f64),
        }
    }

    /// An integer of any width.
    fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            Value::F32(_) | Value::Bool(_) | Value::Text(_) | Value::Array(_) | Value::F64(_) => None,
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
pub(crate) fn decode(kind: u32, raw: [u8; 8]) -> Value {
    let [a, b, c, d, ..] = raw;
    match kind {
        U8 => Value::U8(a),
        I8 => Value::I8(i8::from_le_bytes([a])),
        U16 => Value::U16(u16::from_le_bytes([a, b])),
        I16 => Value::I16(i16::from_le_bytes([a, b])),
        U32 => Value::U32(u32::from_le_bytes([a, b, c, d])),
        I32 => Value::I32(i32::from_le_bytes([a, b, c, d])),
        F32 => Value::F32(f32::from_le_bytes([a, b, c, d])),
        U64 => Value::U64(u64::from_le_bytes(raw)),
        I64 => Value::I64(i64::from_le_bytes(raw)),
        F64 => Value::F64(f64::from_le_bytes(raw)),
        _ => Value::Bool(a != 0),
    }
}
