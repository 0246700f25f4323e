//! The thread of a queue that waits for its results and sends them. Results come in the order of the queue.

use super::flight::{Flight, Load};
use super::queue::QueueState;
use bytes::Bytes;
use outboard_core::{Error, Pending};
use outboard_proto::error;
use outboard_proto::v1::{self, reply::Reply};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Status;

/// A queue that is dropped completes its results, so that this is never reached.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Replies of a queue's stream.
pub(crate) type Replies = mpsc::Sender<Result<v1::Reply, Status>>;

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

/// A result that is to come, and the room that is free again then.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pending: Pending<Bytes>,
    pub(crate) to: To,
    pub(crate) load: Load,
}

/// Starts the thread. It ends when the sender is gone.
pub(crate) fn start(
    state: Arc<QueueState>,
    flight: Arc<Flight>,
    replies: Replies,
    chunks: mpsc::Sender<v1::Chunk>,
) -> outboard_core::Result<Sender<Answer>> {
    let (sender, answers) = channel();
    std::thread::Builder::new()
        .name("answers".into())
        .spawn(move || run(&state, &flight, &replies, &chunks, answers))
        .map_err(|e| Error::Request(format!("no thread for a queue: {e}")))?;
    Ok(sender)
}

fn run(
    state: &QueueState,
    flight: &Flight,
    replies: &Replies,
    chunks: &mpsc::Sender<v1::Chunk>,
    answers: Receiver<Answer>,
) {
    for Answer { pending, to, load } in answers {
        let result = pending.wait(FOREVER);
        if let Err(error) = &result {
            state.note_failure(error);
        }
        // Streams that nobody reads any more are no error: the session ends.
        let _ = match (to, result) {
            (To::Data(request), Ok(data)) => {
                replies.blocking_send(reply(Reply::Data(v1::Data { request, data }))).map_err(drop)
            }
            (To::Chunk(transfer), Ok(data)) => chunks.blocking_send(v1::Chunk { transfer, data }).map_err(drop),
            (To::Done(request), result) => replies.blocking_send(done(request, result.err().as_ref())).map_err(drop),
            (To::Data(request) | To::Chunk(request), Err(e)) => {
                replies.blocking_send(done(request, Some(&e))).map_err(drop)
            }
            (To::Mark, _) => Ok(()),
        };
        flight.release(load);
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
