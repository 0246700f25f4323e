//! What a process and its helper say to each other: frames on a socket, each a protobuf message with bytes, behind it or in memory that both have.

use crate::shared::Lane;
use bytes::Bytes;
use outboard_core::{Error, Result};
use outboard_proto::limits::MAX_MESSAGE;
use outboard_proto::v1;
use prost::Message;
use std::io::{self, ErrorKind, Read, Write};

/// Bytes of a message, at most; longer writes and reads are several calls.
pub(crate) const PIECE: usize = 1 << 20;
/// Bytes up to this size are written to the socket, together with their message.
const SMALL: usize = 16 << 10;

/// What the helper is asked for, with a number.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Call {
    /// Its answer has the same number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Request", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17")]
    pub request: Option<Request>,
}

/// Handles are chosen by the caller and used once.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Request {
    /// Which nodes of an encoded graph can be computed?
    #[prost(bytes = "bytes", tag = "2")]
    Supports(Bytes),
    /// A context: what one client has.
    #[prost(uint64, tag = "3")]
    Open(u64),
    #[prost(uint64, tag = "4")]
    Close(u64),
    #[prost(message, tag = "5")]
    Alloc(Alloc),
    #[prost(uint64, tag = "6")]
    Free(u64),
    #[prost(message, tag = "7")]
    Compile(Compile),
    #[prost(uint64, tag = "8")]
    Forget(u64),
    #[prost(message, tag = "9")]
    Stream(OpenStream),
    /// Stops what a stream does; it takes no commands any more.
    #[prost(uint64, tag = "10")]
    Cancel(u64),
    /// The same, answered when nothing is under way.
    #[prost(uint64, tag = "11")]
    End(u64),
    /// The bytes come behind the message.
    #[prost(message, tag = "12")]
    Write(StreamSlice),
    /// The bytes come behind the answer.
    #[prost(message, tag = "13")]
    Read(StreamSlice),
    #[prost(message, tag = "14")]
    Copy(Copy),
    #[prost(message, tag = "15")]
    Fill(Fill),
    #[prost(message, tag = "16")]
    Execute(Execute),
    /// To [`Response::Pay`] of this call: paid for, or why not.
    #[prost(message, tag = "17")]
    Paid(Paid),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Alloc {
    #[prost(uint64, tag = "1")]
    pub context: u64,
    #[prost(uint64, tag = "2")]
    pub buffer: u64,
    #[prost(uint64, tag = "3")]
    pub size: u64,
    #[prost(string, tag = "4")]
    pub usage: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compile {
    #[prost(uint64, tag = "1")]
    pub context: u64,
    #[prost(uint64, tag = "2")]
    pub executable: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub graph: Bytes,
    /// One for each tensor; without a place, its buffer is 0.
    #[prost(message, repeated, tag = "4")]
    pub places: Vec<v1::Slice>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OpenStream {
    #[prost(uint64, tag = "1")]
    pub context: u64,
    #[prost(uint64, tag = "2")]
    pub stream: u64,
}

/// A part of memory that a stream reads or writes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamSlice {
    #[prost(uint64, tag = "1")]
    pub stream: u64,
    #[prost(message, optional, tag = "2")]
    pub slice: Option<v1::Slice>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Copy {
    #[prost(uint64, tag = "1")]
    pub stream: u64,
    #[prost(message, optional, tag = "2")]
    pub from: Option<v1::Slice>,
    #[prost(message, optional, tag = "3")]
    pub to: Option<v1::Slice>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Fill {
    #[prost(uint64, tag = "1")]
    pub stream: u64,
    #[prost(message, optional, tag = "2")]
    pub slice: Option<v1::Slice>,
    #[prost(uint32, tag = "3")]
    pub value: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Execute {
    #[prost(uint64, tag = "1")]
    pub stream: u64,
    #[prost(uint64, tag = "2")]
    pub executable: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Paid {
    #[prost(message, optional, tag = "1")]
    pub refused: Option<v1::Error>,
}

/// What the helper says, and to which call.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    /// Of the call; 0 for what nobody asked.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Response", tags = "2, 3, 4, 5, 6")]
    pub response: Option<Response>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Response {
    /// The first one: the devices that it has.
    #[prost(message, tag = "2")]
    Hello(Hello),
    #[prost(message, tag = "3")]
    Done(Done),
    #[prost(message, tag = "4")]
    Failed(v1::Error),
    /// May this call take so many bytes more of the device's memory?
    #[prost(uint64, tag = "5")]
    Pay(u64),
    #[prost(message, tag = "6")]
    State(State),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Hello {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Offered>,
    /// Why it has none.
    #[prost(message, optional, tag = "2")]
    pub refused: Option<v1::Error>,
    /// What its user should know.
    #[prost(string, repeated, tag = "3")]
    pub notes: Vec<String>,
    /// It has the memory that it was given (`shared`).
    #[prost(bool, tag = "4")]
    pub shares_memory: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Offered {
    #[prost(message, optional, tag = "1")]
    pub device: Option<v1::Device>,
    #[prost(bool, tag = "2")]
    pub software: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Done {
    /// For each tensor of a graph, whether it is supported.
    #[prost(bool, repeated, tag = "1")]
    pub supported: Vec<bool>,
    /// How long a graph took.
    #[prost(uint64, tag = "2")]
    pub nanos: u64,
}

/// How the device is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct State {
    #[prost(uint64, tag = "1")]
    pub progress: u64,
    #[prost(uint64, tag = "2")]
    pub free: u64,
}

/// Says that bytes are behind the message and in no slot.
const NO_SLOT: u32 = u32::MAX;

/// A frame that is ready to be written: what lies in a slot is there already.
pub(crate) struct Frame<'b> {
    /// The lengths of message and bytes, the slot of the lane that has the bytes, the message, and bytes that are short.
    head: Vec<u8>,
    /// Longer bytes that no slot has.
    behind: &'b [u8],
}

impl<'b> Frame<'b> {
    /// A message with bytes.
    pub(crate) fn new(lane: &Lane, message: &impl Message, bytes: &'b [u8]) -> io::Result<Frame<'b>> {
        let len = message.encoded_len();
        if len > MAX_MESSAGE || bytes.len() > PIECE {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a message that is too long"));
        }
        let is_small = bytes.len() <= SMALL;
        let slot = if is_small { None } else { lane.put(bytes) };
        let mut head = Vec::with_capacity(12 + len + if is_small { bytes.len() } else { 0 });
        for number in [len as u32, bytes.len() as u32, slot.unwrap_or(NO_SLOT)] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        message.encode_raw(&mut head);
        if is_small {
            head.extend_from_slice(bytes);
        }
        let behind = if is_small || slot.is_some() { &[] } else { bytes };
        Ok(Frame { head, behind })
    }

    /// Writes it.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.head)?;
        to.write_all(self.behind)
    }
}

/// Reads a frame; `None` at the end of the stream.
pub(crate) fn read<M: Message + Default>(from: &mut impl Read, lane: &Lane) -> io::Result<Option<(M, Bytes)>> {
    let mut head = [0; 12];
    match from.read_exact(&mut head) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let [message, bytes, slot] = [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| head[at + i])));
    let (message, len) = (message as usize, bytes as usize);
    if message > MAX_MESSAGE || len > PIECE {
        return Err(io::Error::new(ErrorKind::InvalidData, "a frame that is too long"));
    }
    let mut part = |len: usize| -> io::Result<Bytes> {
        let mut part = vec![0; len];
        from.read_exact(&mut part)?;
        Ok(part.into())
    };
    let message = M::decode(part(message)?).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
    let bytes = match slot {
        NO_SLOT => part(len)?,
        slot => lane.take(slot, len).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a slot without bytes"))?,
    };
    Ok(Some((message, bytes)))
}

/// An error as the other side has it: all of this is one host, and its devices have their names on both sides.
pub(crate) fn error(error: v1::Error) -> Error {
    let unknown = || Error::Request("an error of an unknown kind".into());
    outboard_proto::error::rebuilt(error).unwrap_or_else(unknown)
}

/// A part of a message that must be there.
pub(crate) fn given<T>(part: Option<T>) -> Result<T> {
    part.ok_or_else(|| Error::Request("a part of a message is missing".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Lanes;

    fn roundtrips(out: &Lane, back: &Lane) -> Vec<u8> {
        let call = Call { id: 7, request: Some(Request::Free(3)) };
        let mut wire = Vec::new();
        let all = [vec![], b"abc".to_vec(), vec![5; SMALL + 1], vec![6; PIECE]];
        for bytes in &all {
            Frame::new(out, &call, bytes).unwrap().write(&mut wire).unwrap();
        }
        assert!(Frame::new(out, &call, &vec![0; PIECE + 1]).is_err());
        let mut from = wire.as_slice();
        let frames: Vec<_> = std::iter::from_fn(|| read::<Call>(&mut from, back).unwrap()).collect();
        assert!(frames.iter().all(|(got, _)| *got == call));
        assert_eq!(frames.iter().map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>(), all);
        wire
    }

    #[test]
    fn frames_come_back_and_bad_ones_are_errors() {
        let wire = roundtrips(&Lane::NONE, &Lane::NONE);
        // Cut off, not a message, too long, in a slot that is not there.
        let read = |mut from: &[u8]| read::<Call>(&mut from, &Lane::NONE);
        let no_slot = [0xff; 4];
        assert!(read(&wire[..14]).is_err());
        assert!(read(&[&[1, 0, 0, 0, 0, 0, 0, 0], &no_slot[..], &[255]].concat()).is_err());
        assert!(read(&[255; 64]).is_err());
        assert!(read(&[0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]).is_err());
        assert!(read(&[]).unwrap().is_none());
    }

    #[test]
    fn long_bytes_cross_in_memory_that_both_have() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (ours, theirs) = (Lanes::offer(&ours).unwrap(), Lanes::accept(&theirs).unwrap());
        for _ in 0..100 {
            roundtrips(&ours.out, &theirs.back);
            roundtrips(&theirs.out, &ours.back);
        }
        if cfg!(target_os = "linux") {
            assert!(roundtrips(&ours.out, &theirs.back).len() < SMALL, "they went through the socket");
        }
        // Whoever keeps all slots makes the others go through the socket.
        let kept: Vec<_> = std::iter::from_fn(|| theirs.back.take(ours.out.put(b"kept")?, 4)).collect();
        assert!(roundtrips(&ours.out, &theirs.back).len() > PIECE);
        drop(kept);
    }
}
