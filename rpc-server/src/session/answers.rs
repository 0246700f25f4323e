//! Results of a queue on their way to its streams: put there by the device's thread in the moment that they are there, in the
//! order of the queue.

use super::flight::Hold;
use super::queue::QueueState;
use bytes::Bytes;
use outboard_core::{Error, Pending};
use outboard_proto::error;
use outboard_proto::v1::{self, reply::Reply};
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use tonic::Status;

/// Something for a stream, and the room that is free again when the stream has taken it: what waits is bounded by that room.
#[derive(Debug)]
pub(crate) struct WithRoom<T> {
    pub(crate) item: T,
    _hold: Option<Hold>,
}

impl<T> WithRoom<T> {
    pub(crate) fn new(item: T, hold: Option<Hold>) -> WithRoom<T> {
        WithRoom { item, _hold: hold }
    }
}

/// Replies of a queue's stream.
pub(crate) type Replies = UnboundedSender<WithRoom<Result<v1::Reply, Status>>>;
/// The same, without keeping the stream open.
pub(crate) type WeakReplies = WeakUnboundedSender<WithRoom<Result<v1::Reply, Status>>>;
/// Chunks of a queue's bulk stream.
pub(crate) type Chunks = UnboundedSender<WithRoom<v1::Chunk>>;

/// What to do with a result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    /// A reply with the bytes.
    Data(u64),
    /// The next chunk on the bulk stream.
    Chunk(u64),
    /// A reply that says done.
    Done(u64),
    /// Nothing: only how far the device is was asked.
    Mark,
}

/// Where the results of a queue go.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) state: Arc<QueueState>,
    pub(crate) replies: Replies,
    pub(crate) chunks: Chunks,
}

impl Answers {
    /// Sends a result when it is there.
    pub(crate) fn when(&self, pending: Pending<Bytes>, to: To, hold: Hold) {
        let answers = self.clone();
        pending.then(move |result| answers.give(result, to, hold));
    }

    fn give(&self, result: outboard_core::Result<Bytes>, to: To, hold: Hold) {
        if let Err(error) = &result {
            self.state.note_failure(error);
        }
        let hold = Some(hold);
        // Streams that nobody reads any more are no error: the session ends.
        let _ = match (to, result) {
            (To::Data(request), Ok(data)) => {
                self.replies.send(WithRoom::new(reply(Reply::Data(v1::Data { request, data })), hold)).map_err(drop)
            }
            (To::Chunk(transfer), Ok(data)) => {
                self.chunks.send(WithRoom::new(v1::Chunk { transfer, data }, hold)).map_err(drop)
            }
            (To::Done(request), result) => {
                self.replies.send(WithRoom::new(done(request, result.err().as_ref()), hold)).map_err(drop)
            }
            (To::Data(request) | To::Chunk(request), Err(e)) => {
                self.replies.send(WithRoom::new(done(request, Some(&e)), hold)).map_err(drop)
            }
            (To::Mark, _) => Ok(()),
        };
    }
}

/// A message of the stream.
pub(crate) fn reply(reply: Reply) -> Result<v1::Reply, Status> {
    Ok(v1::Reply { reply: Some(reply) })
}

/// The answer that a request is done, or has failed.
pub(crate) fn done(request: u64, failed: Option<&Error>) -> Result<v1::Reply, Status> {
    reply(Reply::Done(v1::Done { request, error: failed.map(error::to_wire) }))
}
