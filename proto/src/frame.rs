//! gRPC's framing of messages: a flag, the length, the message.

use crate::v1;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Bytes in front of each message: compression flag and length.
pub const HEADER: usize = 5;

/// Appends a framed message.
pub fn push(out: &mut BytesMut, message: &impl Message) {
    let len = message.encoded_len();
    out.reserve(HEADER + len);
    header(out, len);
    message.encode_raw(out);
}

pub(crate) fn header(out: &mut BytesMut, len: usize) {
    out.put_u8(0);
    // Messages are far below 4 GiB; see `limits`.
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// Gathers framed messages from the pieces of a stream, in whatever way it is cut.
#[derive(Debug)]
pub struct FrameReader {
    bytes: BytesMut,
    limit: usize,
}

/// A frame that is compressed or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFrames;

impl FrameReader {
    /// A reader of messages of at most `limit` bytes, at the start of a stream.
    pub fn new(limit: usize) -> FrameReader {
        FrameReader { bytes: BytesMut::new(), limit }
    }

    /// Adds what came.
    pub fn add(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
    }

    /// The next message that is complete, encoded.
    pub fn message(&mut self) -> Result<Option<Bytes>, NotFrames> {
        let Some(&[flag, a, b, c, d]) = self.bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if flag != 0 || len > self.limit {
            return Err(NotFrames);
        }
        if self.bytes.len() < HEADER + len {
            return Ok(None);
        }
        self.bytes.advance(HEADER);
        Ok(Some(self.bytes.split_to(len).freeze()))
    }
}

/// The control request that ends a session, framed.
pub fn goodbye() -> Bytes {
    let mut out = BytesMut::new();
    let request = v1::control_request::Request::Goodbye(v1::Goodbye {});
    push(&mut out, &v1::ControlRequest { request: Some(request) });
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_pieces() {
        let mut bytes = BytesMut::new();
        for len in [0, 3, 8] {
            push(&mut bytes, &v1::Data { request: 0, data: Bytes::from(vec![7; len]) });
        }
        let mut reader = FrameReader::new(10);
        let mut lens = Vec::new();
        for piece in bytes.chunks(3) {
            reader.add(piece);
            while let Some(message) = reader.message().unwrap() {
                lens.push(message.len());
            }
        }
        assert_eq!(lens, [0, 5, 10]);
        let mut small = FrameReader::new(9);
        small.add(&bytes);
        assert!(small.message().unwrap().is_some() && small.message().unwrap().is_some());
        assert_eq!(small.message(), Err(NotFrames));
        let mut compressed = FrameReader::new(9);
        compressed.add(&[1, 0, 0, 0, 0]);
        assert_eq!(compressed.message(), Err(NotFrames));
    }
}
