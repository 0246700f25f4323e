//! Chunks of bulk payloads, framed and unframed by hand so that the payload is never copied into or out of a message.

use crate::frame::{HEADER, header};
use crate::limits::{CHUNK, MAX_BULK_OPEN};
use bytes::{Buf, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Direction of a bulk stream: the field of the message that holds the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the server, in a `BulkUp`.
    Up = 2,
    /// From the server, in a `BulkDown`.
    Down = 1,
}

const TRANSFER_TAG: u32 = 1;
const DATA_TAG: u32 = 2;
/// Most bytes before the payload: header, three keys, and varints of a message, a chunk, a transfer and a length.
const MAX_HEAD: usize = HEADER + 3 + 5 + 10 + 5;

/// The bytes that go before `data` so that both together are a framed message with one chunk.
pub fn head(direction: Direction, transfer: u64, data: &Bytes) -> Bytes {
    let chunk_tag = direction as u32;
    let transfer_len = match transfer {
        0 => 0,
        n => key_len(TRANSFER_TAG) + encoded_len_varint(n),
    };
    let data_head = key_len(DATA_TAG) + encoded_len_varint(data.len() as u64);
    let chunk_len = transfer_len + data_head + data.len();
    let message_len = key_len(chunk_tag) + encoded_len_varint(chunk_len as u64) + chunk_len;
    let mut out = BytesMut::with_capacity(MAX_HEAD);
    header(&mut out, message_len);
    encode_key(chunk_tag, WireType::LengthDelimited, &mut out);
    encode_varint(chunk_len as u64, &mut out);
    if transfer != 0 {
        encode_key(TRANSFER_TAG, WireType::Varint, &mut out);
        encode_varint(transfer, &mut out);
    }
    encode_key(DATA_TAG, WireType::LengthDelimited, &mut out);
    encode_varint(data.len() as u64, &mut out);
    out.freeze()
}

/// A part of a bulk stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The next bytes of a transfer: a chunk, or as much of it as has come.
    Data {
        /// Which transfer.
        transfer: u64,
        /// Never empty.
        data: Bytes,
    },
    /// A message that is not a chunk, encoded.
    Message(Bytes),
}

/// What is wrong with a bulk stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotChunks(&'static str);

impl std::fmt::Display for NotChunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a stream of chunks: {}", self.0)
    }
}

impl std::error::Error for NotChunks {}

/// Takes a bulk stream apart as its bytes come, however they are cut.
#[derive(Debug)]
pub struct ChunkReader {
    direction: Direction,
    /// Largest message that is no chunk, in bytes.
    messages: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Bytes of a head that is not complete.
    Head(Vec<u8>),
    Data {
        transfer: u64,
        left: usize,
    },
    Message {
        bytes: BytesMut,
        left: usize,
    },
}

/// What the first bytes of a message are.
enum Parsed {
    Incomplete,
    Chunk { head: usize, transfer: u64, len: usize },
    Message { len: usize },
}

impl ChunkReader {
    /// A reader at the start of a stream.
    pub fn new(direction: Direction) -> ChunkReader {
        ChunkReader::with_messages(direction, MAX_BULK_OPEN)
    }

    /// A reader at the start of a stream on which other messages may have up to `messages` bytes.
    pub fn with_messages(direction: Direction, messages: usize) -> ChunkReader {
        ChunkReader { direction, messages, state: State::Head(Vec::new()) }
    }

    /// The next piece of `input`, which is advanced; `None` when it is used up.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Piece>, NotChunks> {
        while !input.is_empty() {
            match &mut self.state {
                State::Data { transfer, left } => {
                    let data = input.split_to(input.len().min(*left));
                    let transfer = *transfer;
                    *left -= data.len();
                    if *left == 0 {
                        self.state = State::Head(Vec::new());
                    }
                    return Ok(Some(Piece::Data { transfer, data }));
                }
                State::Message { bytes, left } => {
                    let more = input.split_to(input.len().min(*left));
                    bytes.extend_from_slice(&more);
                    *left -= more.len();
                    if *left == 0 {
                        let message = std::mem::take(bytes).freeze();
                        self.state = State::Head(Vec::new());
                        return Ok(Some(Piece::Message(message)));
                    }
                }
                State::Head(head) => {
                    let before = head.len();
                    head.extend(input.iter().take(MAX_HEAD - before));
                    match parse(self.direction, self.messages, head)? {
                        Parsed::Incomplete if head.len() == MAX_HEAD => return Err(NotChunks("a head without an end")),
                        Parsed::Incomplete => input.advance(head.len() - before),
                        Parsed::Chunk { head, transfer, len } => {
                            input.advance(head - before);
                            self.state = match len {
                                0 => State::Head(Vec::new()),
                                left => State::Data { transfer, left },
                            };
                        }
                        Parsed::Message { len: 0 } => {
                            input.advance(HEADER - before.min(HEADER));
                            self.state = State::Head(Vec::new());
                            return Ok(Some(Piece::Message(Bytes::new())));
                        }
                        Parsed::Message { len } => {
                            // Bytes of it that were taken for a head belong to it.
                            let mut bytes = BytesMut::with_capacity(len);
                            bytes.extend(head.iter().take(before).skip(HEADER));
                            input.advance(HEADER.saturating_sub(before));
                            let left = len - bytes.len();
                            self.state = State::Message { bytes, left };
                        }
                    }
                }
            }
        }
        Ok(None)
    }
}

fn parse(direction: Direction, messages: usize, bytes: &[u8]) -> Result<Parsed, NotChunks> {
    let Some((&[flag, a, b, c, d], rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(Parsed::Incomplete) };
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if flag != 0 {
        return Err(NotChunks("it is compressed"));
    }
    if len > CHUNK + MAX_HEAD {
        return Err(NotChunks("a message is too large"));
    }
    let key = |tag: u32, wire: u32| (tag << 3 | wire) as u8;
    match rest.first() {
        _ if len == 0 => return Ok(Parsed::Message { len }),
        None => return Ok(Parsed::Incomplete),
        Some(&first) if first == key(direction as u32, 2) => {}
        Some(_) if len <= messages => return Ok(Parsed::Message { len }),
        Some(_) => return Err(NotChunks("a message that is no chunk is too large")),
    }
    // From here on everything is the head of a chunk.
    let mut at = 1;
    let Some(chunk_len) = varint(rest, &mut at)? else { return Ok(Parsed::Incomplete) };
    if chunk_len as usize != len.wrapping_sub(at) {
        return Err(NotChunks("a chunk does not fill its message"));
    }
    let mut transfer = 0;
    if rest.get(at) == Some(&key(TRANSFER_TAG, 0)) {
        at += 1;
        let Some(number) = varint(rest, &mut at)? else { return Ok(Parsed::Incomplete) };
        transfer = number;
    }
    match rest.get(at) {
        // A chunk without data.
        _ if at == len => return Ok(Parsed::Chunk { head: HEADER + at, transfer, len: 0 }),
        None => return Ok(Parsed::Incomplete),
        Some(&k) if k == key(DATA_TAG, 2) => at += 1,
        Some(_) => return Err(NotChunks("a chunk has unknown fields")),
    }
    let Some(data_len) = varint(rest, &mut at)? else { return Ok(Parsed::Incomplete) };
    if data_len as usize != len.wrapping_sub(at) {
        return Err(NotChunks("data does not fill its chunk"));
    }
    Ok(Parsed::Chunk { head: HEADER + at, transfer, len: len - at })
}

/// A varint at `at`, which is advanced; `None` if it is cut off.
fn varint(bytes: &[u8], at: &mut usize) -> Result<Option<u64>, NotChunks> {
    let mut value = 0u64;
    for i in 0..10 {
        let Some(&byte) = bytes.get(*at + i) else { return Ok(None) };
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *at += i + 1;
            return Ok(Some(value));
        }
    }
    Err(NotChunks("a number is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::v1;
    use prost::Message;
    use v1::bulk_up::Part;

    #[test]
    fn chunks_are_what_protobuf_would_write() {
        for (transfer, len) in [(0, 1), (1, 1), (300, 127), (u64::MAX, 128), (7, CHUNK)] {
            let data = Bytes::from(vec![5u8; len]);
            let mut up = head(Direction::Up, transfer, &data).to_vec();
            up.extend_from_slice(&data);
            let mut down = head(Direction::Down, transfer, &data).to_vec();
            down.extend_from_slice(&data);
            let chunk = v1::Chunk { transfer, data };
            let mut theirs = BytesMut::new();
            frame::push(&mut theirs, &v1::BulkUp { part: Some(Part::Chunk(chunk.clone())) });
            assert_eq!(up, theirs);
            theirs.clear();
            frame::push(&mut theirs, &v1::BulkDown { chunk: Some(chunk) });
            assert_eq!(down, theirs);
        }
    }

    /// A stream of an opening, chunks, an empty chunk and an empty message.
    fn stream() -> (Bytes, Bytes) {
        let open = v1::OpenBulk { session: None, queue: 70000 };
        let open = v1::BulkUp { part: Some(Part::Open(open)) };
        let mut out = BytesMut::new();
        frame::push(&mut out, &open);
        for (transfer, len) in [(1, 3), (u64::MAX, 200), (0, 1), (9, 0), (2, 30)] {
            frame::push(&mut out, &v1::BulkUp { part: Some(Part::Chunk(chunk(transfer, len))) });
        }
        frame::push(&mut out, &v1::BulkUp { part: None });
        (out.freeze(), open.encode_to_vec().into())
    }

    fn chunk(transfer: u64, len: usize) -> v1::Chunk {
        v1::Chunk { transfer, data: (0..len).map(|i| i as u8).collect::<Vec<_>>().into() }
    }

    #[test]
    fn streams_come_apart_however_they_are_cut() {
        let (bytes, open) = stream();
        for size in 1..=bytes.len() {
            let mut reader = ChunkReader::new(Direction::Up);
            let (mut data, mut messages) = (Vec::<(u64, Vec<u8>)>::new(), Vec::new());
            for part in bytes.chunks(size) {
                let mut part = Bytes::copy_from_slice(part);
                while let Some(piece) = reader.next(&mut part).unwrap() {
                    match piece {
                        Piece::Message(m) => messages.push(m),
                        Piece::Data { transfer, data: more } => match data.last_mut() {
                            Some((last, so_far)) if *last == transfer => so_far.extend_from_slice(&more),
                            _ => data.push((transfer, more.to_vec())),
                        },
                    }
                }
                assert!(part.is_empty());
            }
            assert_eq!(messages, [open.clone(), Bytes::new()], "{size}");
            let want = [(1, 3), (u64::MAX, 200), (0, 1), (2, 30)].map(|(t, n)| (t, chunk(t, n).data.to_vec()));
            assert_eq!(data, want, "{size}");
        }
    }

    #[test]
    fn anything_is_an_error_and_no_panic() {
        let (bytes, _) = stream();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bent = bytes.to_vec();
                bent[at] ^= 1 << bit;
                let mut bent = Bytes::from(bent);
                let mut reader = ChunkReader::new(Direction::Up);
                while let Ok(Some(_)) = reader.next(&mut bent) {}
            }
        }
        for bad in [&[1, 0, 0, 0, 1, 0][..], &[0, 255, 255, 255, 255, 0x12], &[0, 0, 0, 2, 0, 0x1a, 5]] {
            let mut reader = ChunkReader::new(Direction::Up);
            assert!(reader.next(&mut Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }
}
