//! What waits to be sent on a link, and how it goes onto the stream: by turns, a piece of each tensor at a time.

use super::wire::{PIECE, Sender};
use crate::metrics::Timer;
use crate::session::flight::Hold;
use crate::session::queue::SendingQueue;
use bytes::{BufMut, Bytes, BytesMut};
use outboard_core::Ticket;
use outboard_proto::chunk::{self, Direction};
use outboard_proto::frame;
use outboard_proto::v1::{self, peer_up::Part};
use std::collections::{HashMap, VecDeque};

/// Payloads up to this many bytes go out in one piece with their heads.
const ONE_WRITE: usize = 16 << 10;

/// What is said of a tensor before its bytes.
pub(crate) struct Head {
    pub(crate) session: u64,
    pub(crate) ticket: Ticket,
    pub(crate) size: u64,
    /// Which queue sends it. It is told if it comes to nothing.
    pub(crate) queue: SendingQueue,
    pub(crate) _timer: Timer,
}

/// A tensor to send.
pub(crate) struct Push {
    pub(crate) head: Head,
    pub(crate) data: Bytes,
    /// Number on the stream, once it has begun.
    transfer: Option<u64>,
    /// Given back when the bytes are on their way.
    _hold: Hold,
}

/// A tensor that is read from its device in parts.
struct Stream {
    head: Head,
    /// Number on the stream, once it has begun.
    transfer: Option<u64>,
    /// What was read and not sent, with the room that each part has in its queue.
    parts: VecDeque<(Bytes, Hold)>,
    /// Bytes that are not sent yet.
    left: u64,
}

enum Item {
    Push(Push),
    /// Some of a tensor that is read in parts.
    Stream(u64),
    /// A message by itself.
    Message(Bytes),
}

/// What waits.
#[derive(Default)]
pub(super) struct Lane {
    /// What has something to send, in turns.
    items: VecDeque<Item>,
    bytes: u64,
    messages: usize,
    /// Tensors that are read from their device in parts.
    streams: HashMap<u64, Stream>,
    last_stream: u64,
    /// Transfers that have begun on this connection.
    transfers: u64,
}

impl Lane {
    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Messages that wait.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    /// The bytes of what waits, if that is one thing.
    pub(super) fn only_item(&self) -> Option<usize> {
        self.items.front().filter(|_| self.items.len() == 1).map(Item::len)
    }

    pub(super) fn add_push(&mut self, push: Push) {
        self.add(Item::Push(push));
    }

    pub(super) fn add_message(&mut self, message: Bytes) {
        self.messages += 1;
        self.add(Item::Message(message));
    }

    fn add(&mut self, item: Item) {
        self.bytes += item.len() as u64;
        self.items.push_back(item);
    }

    /// A tensor whose parts will be added; gives its number here.
    pub(super) fn add_stream(&mut self, head: Head) -> u64 {
        self.last_stream += 1;
        let left = head.size;
        self.streams.insert(self.last_stream, Stream { head, transfer: None, parts: VecDeque::new(), left });
        self.last_stream
    }

    /// Adds the next part of such a tensor; `false` if that is not there any more.
    pub(super) fn add_part(&mut self, stream: u64, data: Bytes, hold: Hold) -> bool {
        let Some(of) = self.streams.get_mut(&stream) else { return false };
        let waits = !of.parts.is_empty();
        self.bytes += data.len() as u64;
        of.parts.push_back((data, hold));
        if !waits {
            self.add(Item::Stream(stream));
        }
        true
    }

    /// Takes such a tensor out, with what waits of it.
    pub(super) fn remove_stream(&mut self, stream: u64) -> Option<Head> {
        let Stream { head, parts, .. } = self.streams.remove(&stream)?;
        let waiting: u64 = parts.iter().map(|(data, _)| data.len() as u64).sum();
        self.bytes = self.bytes.saturating_sub(waiting);
        Some(head)
    }

    /// Takes out everything. Transfers are counted anew, as on a new connection.
    pub(super) fn take(&mut self) -> Lane {
        let last_stream = self.last_stream;
        std::mem::replace(self, Lane { last_stream, ..Lane::default() })
    }

    /// The tensors that wait.
    pub(super) fn into_heads(self) -> impl Iterator<Item = Head> {
        let pushes = self.items.into_iter().filter_map(|item| match item {
            Item::Push(push) => Some(push.head),
            Item::Stream(_) | Item::Message(_) => None,
        });
        pushes.chain(self.streams.into_values().map(|stream| stream.head))
    }

    /// Puts on the stream what it takes; gives how many bytes those were.
    pub(super) fn send(&mut self, sender: &mut Sender<'_, '_>) -> u64 {
        let mut sent = 0;
        while let Some(item) = self.items.front_mut() {
            let (turn, bytes) = match item {
                Item::Push(push) => push.send(sender, &mut self.transfers),
                // One that is not there any more was refused.
                Item::Stream(stream) => match self.streams.get_mut(stream) {
                    Some(stream) => stream.send(sender, &mut self.transfers),
                    None => (Turn::Over, 0),
                },
                Item::Message(message) => send_message(message, sender, &mut self.messages),
            };
            self.bytes = self.bytes.saturating_sub(bytes as u64);
            sent += bytes as u64;
            match turn {
                Turn::NoRoom => break,
                Turn::More => self.items.rotate_left(1),
                Turn::Over => self.drop_first(),
            }
        }
        sent
    }

    /// Drops what is at the front, and the tensor whose last part that was.
    fn drop_first(&mut self) {
        if let Some(Item::Stream(stream)) = self.items.pop_front()
            && self.streams.get(&stream).is_some_and(|stream| stream.left == 0)
        {
            self.streams.remove(&stream);
        }
    }
}

impl Item {
    /// Bytes in the lane; those of a stream count when they come.
    fn len(&self) -> usize {
        match self {
            Item::Push(push) => push.data.len(),
            Item::Stream(_) => 0,
            Item::Message(bytes) => bytes.len(),
        }
    }
}

/// What became of a turn, and how many bytes were sent in it.
type Sent = (Turn, usize);

enum Turn {
    /// Nothing more can be sent now.
    NoRoom,
    /// There is more, but others have their turn.
    More,
    /// That was all of it, or all that is there.
    Over,
}

fn send_message(message: &mut Bytes, sender: &mut Sender<'_, '_>, messages: &mut usize) -> Sent {
    let len = message.len();
    if sender.room(len) == 0 {
        return (Turn::NoRoom, 0);
    }
    sender.send(std::mem::take(message));
    *messages = messages.saturating_sub(1);
    (Turn::Over, len)
}

impl Push {
    pub(crate) fn new(head: Head, data: Bytes, hold: Hold) -> Push {
        Push { head, data, transfer: None, _hold: hold }
    }

    /// Sends some of it.
    fn send(&mut self, sender: &mut Sender<'_, '_>, transfers: &mut u64) -> Sent {
        let len = self.data.len();
        let room = sender.room(len.clamp(1, PIECE));
        if room == 0 {
            return (Turn::NoRoom, 0);
        }
        if let Some(transfer) = self.transfer {
            return send_piece(&mut self.data, transfer, sender, room);
        }
        let (transfer, head) = self.head.begin(transfers);
        self.transfer = Some(transfer);
        if len > ONE_WRITE {
            sender.send(head.freeze());
            return send_piece(&mut self.data, transfer, sender, room);
        }
        let data = std::mem::take(&mut self.data);
        sender.send(joined(head, transfer, data));
        (Turn::Over, len)
    }
}

/// The head of a tensor, and all its bytes behind it as one chunk, if it has any.
fn joined(head: BytesMut, transfer: u64, data: Bytes) -> Bytes {
    let mut all = head;
    if !data.is_empty() {
        let chunk = chunk::head(Direction::Up, transfer, &data);
        all.reserve(chunk.len() + data.len());
        all.put(chunk);
        all.put(data);
    }
    all.freeze()
}

impl Stream {
    /// Sends some of what was read.
    fn send(&mut self, sender: &mut Sender<'_, '_>, transfers: &mut u64) -> Sent {
        let Some((data, _)) = self.parts.front_mut() else { return (Turn::Over, 0) };
        let room = sender.room(data.len().clamp(1, PIECE));
        if room == 0 {
            return (Turn::NoRoom, 0);
        }
        let transfer = match self.transfer {
            Some(transfer) => transfer,
            None => {
                let (transfer, head) = self.head.begin(transfers);
                sender.send(head.freeze());
                *self.transfer.insert(transfer)
            }
        };
        let (turn, bytes) = send_piece(data, transfer, sender, room);
        self.left = self.left.saturating_sub(bytes as u64);
        if let Turn::Over = turn {
            self.parts.pop_front();
        }
        (if self.parts.is_empty() { Turn::Over } else { Turn::More }, bytes)
    }
}

impl Head {
    /// Gives the tensor its number on the stream, and what is sent before its bytes.
    fn begin(&self, transfers: &mut u64) -> (u64, BytesMut) {
        *transfers += 1;
        let push = v1::Push {
            transfer: *transfers,
            session: self.session,
            ticket: Bytes::copy_from_slice(&self.ticket.0),
            size: self.size,
            queue: self.queue.number,
        };
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(Part::Push(push)) });
        self.queue.sent(out.len() as u64 + self.size);
        (*transfers, out)
    }
}

/// Sends as much of `data` as there is room for.
fn send_piece(data: &mut Bytes, transfer: u64, sender: &mut Sender<'_, '_>, room: usize) -> Sent {
    let piece = data.split_to(room.min(data.len()));
    let bytes = piece.len();
    sender.chunk(transfer, piece);
    (if data.is_empty() { Turn::Over } else { Turn::More }, bytes)
}
