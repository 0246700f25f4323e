//! Weights as content: large constant tensors go to a device by what they are, not only as bytes.
//!
//! A device behind a network may have a tensor's bytes already, from an earlier run or in a file of its own, or may get them from
//! a neighbour. [`ContentUpload`] gives it the choice; devices without it are written to through their queues.

use crate::device::{Bytes, Device, Slice};
use crate::error::Result;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

/// The BLAKE3 hash of a tensor's bytes. Printed and parsed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; Digest::BYTES]);

impl Digest {
    /// Its size.
    pub const BYTES: usize = 32;

    /// From bytes that must be as many as a digest has.
    pub fn from_slice(bytes: &[u8]) -> Option<Digest> {
        bytes.try_into().ok().map(Digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// The text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotADigest;

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> std::result::Result<Digest, NotADigest> {
        let mut out = [0; Digest::BYTES];
        let digit = |c: u8| (c as char).to_digit(16).filter(|_| !c.is_ascii_uppercase());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != out.len() || !rest.is_empty() {
            return Err(NotADigest);
        }
        for (byte, [high, low]) in out.iter_mut().zip(pairs) {
            let value = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low);
            *byte = value.and_then(|v| u8::try_from(v).ok()).ok_or(NotADigest)?;
        }
        Ok(Digest(out))
    }
}

/// One tensor's bytes and where they go.
#[derive(Clone, Debug)]
pub struct Content {
    /// Memory of the device, as long as `data`.
    pub dst: Slice,
    /// The bytes, usually of a mapped file.
    pub data: Bytes,
    /// Their digest if it is known. Whoever has to compute it leaves it here, for the next time.
    pub digest: Arc<OnceLock<Digest>>,
}

/// The contents that one device is to have.
#[derive(Clone, Debug)]
pub struct DeviceContents {
    /// The device, which the slices belong to.
    pub device: Arc<dyn Device>,
    /// What it is to have.
    pub contents: Vec<Content>,
}

/// How large constant tensors get to a device other than through a queue.
pub trait ContentUpload: Send + Sync {
    /// Whether contents of `other` may be in one batch with this device's: what both need then travels once.
    fn together(&self, other: &dyn Device) -> bool;
    /// Puts all contents in their places and returns when they are there. `progress` is called with the number of bytes that
    /// have been dealt with since its last call, from several threads; they add up to the bytes of all contents. Fails as a
    /// whole; memory may have been written then.
    fn upload(&self, batch: &[DeviceContents], progress: &(dyn Fn(u64) + Sync)) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_as_text() {
        let digest = Digest(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in ["", "0", &"A".repeat(64), &"g".repeat(64), &"0".repeat(63), &"0".repeat(66), &"\u{e9}".repeat(32)]
        {
            assert_eq!(wrong.parse::<Digest>(), Err(NotADigest), "{wrong}");
        }
    }
}
