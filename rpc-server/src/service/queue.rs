//! The stream of a device queue.

use super::{Service, first, next};
use crate::limits::{READ_AHEAD, READ_AHEAD_BYTES};
use crate::session::Session;
use crate::session::answers::{Held, Replies as Sender, reply};
use crate::session::queue::QueueRunner;
use outboard_proto::error::to_status;
use outboard_proto::v1::{self, command::Command, reply::Reply};
use prost::Message;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

/// What the client is sent.
pub(super) type Replies = Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::Reply, Status>> + Send>>;

pub(super) fn start(service: &Service, stream: Streaming<v1::Command>) -> Replies {
    let (out, replies) = unbounded_channel();
    let service = service.clone();
    tokio::spawn(async move {
        if let Err(status) = run(&service, stream, &out).await {
            service.complain(None, "queue refused", &status.message());
            let _ = out.send(Held::new(Err(status), None));
        }
    });
    // Taken by the connection, a reply makes room for further commands.
    Box::pin(UnboundedReceiverStream::new(replies).map(|held| held.item))
}

async fn run(service: &Service, mut stream: Streaming<v1::Command>, out: &Sender) -> Result<(), Status> {
    let Some(Command::Open(open)) = first(service, &mut stream).await?.command else {
        return Err(Status::invalid_argument("the first message must open the queue"));
    };
    let (session, age) = service.stream(open.session.as_ref())?;
    service.conn.attach(&service.shared, &session);
    tokio::select! {
        biased;
        done = commands(service, stream, &session, age, open, out) => done,
        () = session.keys.until_renewed(age) => Ok(()),
    }
}

/// Opens the queue and carries out its commands.
async fn commands(
    service: &Service,
    mut stream: Streaming<v1::Command>,
    session: &Arc<Session>,
    age: u64,
    open: v1::OpenQueue,
    out: &Sender,
) -> Result<(), Status> {
    let opened = QueueRunner::open(session, &service.shared, open.queue, &open.device, out.clone(), age).await;
    let mut queue = opened.map_err(|e| to_status(&e))?;
    let _ = out.send(Held::new(reply(Reply::Opened(v1::Opened {})), None));
    let left = queue.left();
    let (mut ahead, mut ahead_bytes, mut ended) = (VecDeque::new(), 0, false);
    loop {
        let command = match ahead.pop_front() {
            None if ended => break,
            None => next(service, &mut stream, session).await,
            command => command,
        };
        let Some(command) = command else { break };
        ahead_bytes -= command.encoded_len().min(ahead_bytes);
        let mut work = std::pin::pin!(queue.command(command));
        // While a command waits for others, the stream is read on, to see whether its client is still there.
        let done = loop {
            tokio::select! {
                biased;
                done = work.as_mut() => break done,
                more = next(service, &mut stream, session),
                    if !ended && ahead.len() < READ_AHEAD && ahead_bytes < READ_AHEAD_BYTES => match more {
                    Some(command) => {
                        ahead_bytes += command.encoded_len();
                        ahead.push_back(command);
                    }
                    None => {
                        ended = true;
                        left.store(true, Ordering::Release);
                        session.progress.notify_waiters();
                    }
                },
            }
        };
        if done.is_err() {
            break;
        }
    }
    queue.close().await;
    Ok(())
}
