//! A cursor over bytes that a stranger wrote: every read is checked, nothing is allocated by a count in the file.

use super::GgufError;
use bytes::Bytes;

/// Where in the bytes the next value starts.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    data: Bytes,
    at: usize,
}

impl Reader {
    pub(super) fn new(data: Bytes) -> Reader {
        Reader { data, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    /// The next `len` bytes, without a copy. `what` is named if they are not there.
    pub(super) fn bytes(&mut self, len: usize, what: &str) -> Result<Bytes, GgufError> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.data.len());
        let Some(end) = end else {
            return Err(GgufError::Truncated { what: what.to_owned(), at: self.at, len: self.data.len() });
        };
        let bytes = self.data.slice(self.at..end);
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes(N, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A length-prefixed text as raw bytes.
    pub(super) fn text(&mut self, max: usize, what: &str) -> Result<Bytes, GgufError> {
        let len = self.u64(what)?;
        match usize::try_from(len) {
            Ok(len) if len <= max => self.bytes(len, what),
            _ => Err(GgufError::Limit { what: format!("the length of {what}"), value: len, max: max as u64 }),
        }
    }

    /// A short text that must be UTF-8: keys and names.
    pub(super) fn name(&mut self, what: &str) -> Result<String, GgufError> {
        let bytes = self.text(super::MAX_NAME, what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| GgufError::Invalid(format!("{what} is not UTF-8")))
    }
}
