//! Messages of a client's stream, read by hand: each is as large as it may be at that moment, and one that is larger is left out
//! without being kept. A message may be a slice of the frame that it came in: who keeps parts of it copies them.

use super::UNDECODABLE;
use crate::http2::Incoming;
use crate::limits::{CALL_MESSAGE, MESSAGE_ROOM, SMALL_MESSAGE};
use crate::room::{Pool, Room};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Frame;
use outboard_proto::frame::HEADER;
use outboard_proto::limits::MAX_MESSAGE;
use tokio::time::Instant;
use tonic::Status;

/// The messages of a stream.
pub(crate) struct Messages {
    body: Incoming,
    input: Bytes,
    head: [u8; HEADER],
    state: State,
}

/// Where the stream is. Nothing is lost when a read is given up.
enum State {
    /// So many bytes of a head are there.
    Head(usize),
    /// A message of this length waits for room.
    NoRoom(usize),
    Message {
        bytes: BytesMut,
        len: usize,
        room: Option<Room>,
        /// When it has to be there, because its room is wanted by others.
        end: Option<Instant>,
    },
    /// A message that is too large, of which so many bytes are left.
    TooLarge { len: usize, left: usize },
}

/// What has come.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, encoded, and its room if it is a larger one.
    Message(Bytes, Option<Room>),
    /// One of this length, which is more than it may have.
    TooLarge(usize),
}

/// What a message needs before it is there.
enum Needs {
    Nothing(Received),
    /// For so many bytes.
    Room(usize),
    Input,
}

impl Messages {
    pub(crate) fn new(body: Incoming) -> Messages {
        Messages { body, input: Bytes::new(), head: [0; HEADER], state: State::Head(0) }
    }

    /// The next message, of up to `limit` bytes; `None` at the end of the stream. Larger ones than small ones take room from a
    /// pool, if there is one. An error ends the stream, and its connection if it is undecodable or out of range.
    pub(crate) async fn next(&mut self, limit: usize, pool: Option<&Pool>) -> Result<Option<Received>, Status> {
        loop {
            match self.advance(limit, pool.is_some())? {
                Needs::Nothing(received) => return Ok(Some(received)),
                Needs::Room(len) => self.take_room(len, pool).await?,
                Needs::Input => match self.frame().await? {
                    Some(Ok(frame)) => self.input = frame.into_data().unwrap_or_default(),
                    Some(Err(e)) => return Err(Status::cancelled(e.to_string())),
                    None if matches!(self.state, State::Head(0)) => return Ok(None),
                    None => return Err(Status::new(UNDECODABLE, "the stream ended in the middle of a message")),
                },
            }
        }
    }

    /// Takes what it can of the input. Says what is needed to get further.
    fn advance(&mut self, limit: usize, counted: bool) -> Result<Needs, Status> {
        if let State::Head(filled) = &mut self.state {
            for byte in self.head.iter_mut().skip(*filled) {
                if !self.input.has_remaining() {
                    return Ok(Needs::Input);
                }
                *byte = self.input.get_u8();
                *filled += 1;
            }
            self.state = begin(self.head, limit, counted)?;
        }
        let received = match &mut self.state {
            State::Head(_) => return Ok(Needs::Input),
            State::NoRoom(len) => return Ok(Needs::Room(*len)),
            State::Message { bytes, len, room, .. } if bytes.is_empty() && self.input.len() >= *len => {
                Received::Message(self.input.split_to(*len), room.take())
            }
            State::Message { bytes, len, room, .. } => {
                if bytes.capacity() == 0 {
                    // Address space: memory is taken as it is filled.
                    bytes.reserve(*len);
                }
                let more = self.input.split_to(self.input.len().min(*len - bytes.len()));
                bytes.extend_from_slice(&more);
                if bytes.len() < *len {
                    return Ok(Needs::Input);
                }
                Received::Message(std::mem::take(bytes).freeze(), room.take())
            }
            State::TooLarge { len, left } => {
                let more = self.input.len().min(*left);
                self.input.advance(more);
                *left -= more;
                if *left > 0 {
                    return Ok(Needs::Input);
                }
                Received::TooLarge(*len)
            }
        };
        self.state = State::Head(0);
        Ok(Needs::Nothing(received))
    }

    /// Waits for room for a message of so many bytes, from the pool if there is one.
    async fn take_room(&mut self, len: usize, pool: Option<&Pool>) -> Result<(), Status> {
        let room = match pool {
            Some(pool) => Some(room(pool, len).await?),
            None => None,
        };
        let end = room.as_ref().map(|_| Instant::now() + CALL_MESSAGE);
        self.state = State::Message { bytes: BytesMut::new(), len, room, end };
        Ok(())
    }

    /// The next frame, in time.
    async fn frame(&mut self) -> Result<Option<Result<Frame<Bytes>, h2::Error>>, Status> {
        let State::Message { end: Some(end), len, .. } = &self.state else { return Ok(self.body.frame().await) };
        let late =
            |_| Status::deadline_exceeded(format!("a message of {len} bytes did not come within {CALL_MESSAGE:?}"));
        tokio::time::timeout_at(*end, self.body.frame()).await.map_err(late)
    }
}

/// What a head announces.
fn begin([flag, a, b, c, d]: [u8; HEADER], limit: usize, counted: bool) -> Result<State, Status> {
    if flag != 0 {
        return Err(Status::new(UNDECODABLE, "a message that is compressed"));
    }
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > MAX_MESSAGE {
        return Err(Status::out_of_range(format!("a message of {len} bytes, {MAX_MESSAGE} at most")));
    }
    Ok(match len {
        _ if len > limit => State::TooLarge { len, left: len },
        _ if counted && len > SMALL_MESSAGE => State::NoRoom(len),
        _ => State::Message { bytes: BytesMut::new(), len, room: None, end: None },
    })
}

/// Room for a message of so many bytes.
pub(super) async fn room(pool: &Pool, bytes: usize) -> Result<Room, Status> {
    let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
    let room = tokio::time::timeout(MESSAGE_ROOM, pool.take(kib)).await;
    room.ok().and_then(Result::ok).ok_or_else(|| {
        Status::resource_exhausted(format!(
            "no room for a message of {bytes} bytes within {} s: this client, or all together, have too many larger ones under way; try \
             again later",
            MESSAGE_ROOM.as_secs()
        ))
    })
}
