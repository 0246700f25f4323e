//! gRPC's framing of messages: a flag, the length, the message.

use crate::v1;
use bytes::{BufMut, Bytes, BytesMut};
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

/// The control request that ends a session, framed.
pub fn goodbye() -> Bytes {
    let mut out = BytesMut::new();
    let request = v1::control_request::Request::Goodbye(v1::Goodbye {});
    push(&mut out, &v1::ControlRequest { request: Some(request) });
    out.freeze()
}
