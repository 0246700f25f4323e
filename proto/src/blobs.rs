//! Blobs on the wire: which are asked for, and where they go.

use crate::limits::{MAX_BLOBS, MAX_BLOBS_BYTES};
use crate::v1;
use bytes::Bytes;
use outboard_core::{Digest, Error, Result};
use prost::Message;

/// A blob by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blob {
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Bytes.
    pub len: u64,
}

/// A blob and its place: the handle of a buffer, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What.
    pub blob: Blob,
    /// Handle of the buffer.
    pub buffer: u64,
    /// First byte in it.
    pub offset: u64,
}

fn columns<'b>(blobs: impl Iterator<Item = &'b Blob>) -> v1::Blobs {
    let mut out = v1::Blobs::default();
    let mut digests = Vec::new();
    for blob in blobs {
        digests.extend_from_slice(&blob.digest.0);
        out.lens.push(blob.len);
    }
    v1::Blobs { digests: digests.into(), ..out }
}

/// Encodes blobs that are asked for; at most [`MAX_BLOBS`].
pub fn encode_question(blobs: &[Blob]) -> Bytes {
    columns(blobs.iter()).encode_to_vec().into()
}

/// Encodes blobs with their places; at most [`MAX_BLOBS`].
pub fn encode_places(places: &[Place]) -> Bytes {
    let mut out = columns(places.iter().map(|p| &p.blob));
    out.buffers = places.iter().map(|p| p.buffer).collect();
    out.offsets = places.iter().map(|p| p.offset).collect();
    out.encode_to_vec().into()
}

/// Decodes blobs that are asked for.
pub fn decode_question(bytes: &[u8]) -> Result<Vec<Blob>> {
    let (blobs, rest) = decode(bytes)?;
    if rest.buffers.is_empty() && rest.offsets.is_empty() { Ok(blobs) } else { wrong("a question has places") }
}

/// Decodes blobs with their places. Whether the places are the session's, it alone knows.
pub fn decode_places(bytes: &[u8]) -> Result<Vec<Place>> {
    let (blobs, rest) = decode(bytes)?;
    if rest.buffers.len() != blobs.len() || rest.offsets.len() != blobs.len() {
        return wrong("columns of different lengths");
    }
    let places = blobs.into_iter().zip(rest.buffers.into_iter().zip(rest.offsets));
    Ok(places.map(|(blob, (buffer, offset))| Place { blob, buffer, offset }).collect())
}

fn decode(bytes: &[u8]) -> Result<(Vec<Blob>, v1::Blobs)> {
    if bytes.len() > MAX_BLOBS_BYTES {
        return wrong(&format!("{} bytes, {MAX_BLOBS_BYTES} at most", bytes.len()));
    }
    let message = v1::Blobs::decode(bytes).map_err(|e| Error::Request(format!("a list of blobs: {e}")))?;
    let (digests, rest) = message.digests.as_chunks::<{ Digest::BYTES }>();
    if !rest.is_empty() || digests.len() != message.lens.len() {
        return wrong("columns of different lengths");
    }
    if digests.len() > MAX_BLOBS {
        return wrong(&format!("{} of them, {MAX_BLOBS} at most", digests.len()));
    }
    let blobs = digests.iter().zip(&message.lens).map(|(d, &len)| Blob { digest: Digest(*d), len }).collect();
    Ok((blobs, message))
}

fn wrong<T>(why: &str) -> Result<T> {
    Err(Error::Request(format!("a list of blobs: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(n: usize) -> Vec<Place> {
        let blob = |i: usize| Blob { digest: Digest([i as u8; 32]), len: u64::MAX - i as u64 };
        (0..n).map(|i| Place { blob: blob(i), buffer: u64::MAX, offset: u64::MAX }).collect()
    }

    #[test]
    fn the_most_fit_and_come_back() {
        let all = places(MAX_BLOBS);
        assert_eq!(decode_places(&encode_places(&all)).unwrap(), all);
        let blobs: Vec<Blob> = all.iter().map(|p| p.blob).collect();
        assert_eq!(decode_question(&encode_question(&blobs)).unwrap(), blobs);
        assert!(decode_question(&encode_question(&[])).unwrap().is_empty());
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        assert!(decode_question(&encode_places(&places(1))).is_err());
        assert!(decode_places(&encode_question(&[places(1)[0].blob])).is_err());
        assert!(decode_places(&encode_places(&places(MAX_BLOBS + 1))).is_err());
        assert!(decode_question(&vec![0; MAX_BLOBS_BYTES + 1]).is_err());
        let short = v1::Blobs { digests: Bytes::from_static(&[1; 31]), lens: vec![1], ..Default::default() };
        assert!(decode_question(&short.encode_to_vec()).is_err());
        // Many small numbers in few bytes.
        let many = v1::Blobs { lens: vec![0; MAX_BLOBS_BYTES / 2], ..Default::default() };
        assert!(decode_question(&many.encode_to_vec()).is_err());
    }
}
