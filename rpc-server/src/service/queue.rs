//! The stream of a device queue.

use super::call::place_of;
use super::messages::{Came, Messages};
use super::{Service, first, replies, undecodable};
use crate::http2::Incoming;
use crate::limits::{MAX_COMMAND, READ_AHEAD, READ_AHEAD_BYTES};
use crate::session::Session;
use crate::session::answers::{Held, Replies as Sender, reply};
use crate::session::queue::QueueRunner;
use http::{Request, Response};
use outboard_core::Error;
use outboard_proto::error::to_status;
use outboard_proto::v1::{self, command::Command, reply::Reply};
use prost::Message;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;

pub(super) fn start(service: Service, request: Request<Incoming>) -> Response<Body> {
    let (out, answers) = unbounded_channel();
    tokio::spawn(async move {
        let _place = place_of(&request);
        if let Err(status) = run(&service, Messages::new(request.into_body()), &out).await {
            service.complain(None, "queue refused", &status.message());
            let _ = out.send(Held::new(Err(status), None));
        }
    });
    // Taken by the connection, a reply makes room for further commands.
    replies(UnboundedReceiverStream::new(answers).map(|held| held.item))
}

async fn run(service: &Service, mut messages: Messages, out: &Sender) -> Result<(), Status> {
    let message = first(service, &mut messages, MAX_COMMAND).await?;
    let command = v1::Command::decode(&message[..]).map_err(|e| undecodable(service, None, &e))?;
    drop(message);
    let Some(Command::Open(open)) = command.command else {
        return Err(Status::invalid_argument("the first message must open the queue"));
    };
    let (session, age) = service.stream(open.session.as_ref())?;
    service.conn.attach(&service.shared, &session);
    tokio::select! {
        biased;
        () = session.keys.until_renewed(age) => Ok(()),
        done = commands(service, messages, &session, age, open, out) => done,
    }
}

/// The next command, or what is wrong with what came in its place; `None` at the end of the stream, when it breaks, or when the
/// session ends.
async fn next(
    service: &Service,
    messages: &mut Messages,
    session: &Session,
) -> Option<outboard_core::Result<v1::Command>> {
    let came = tokio::select! {
        biased;
        came = messages.next(MAX_COMMAND, None) => came,
        () = session.until_closed() => return None,
    };
    match came {
        // From a slice, so that a command keeps copies of its payload, and not the larger buffer that it came in.
        Ok(Some(Came::Message(message, _))) => match v1::Command::decode(&message[..]) {
            Ok(command) => Some(Ok(command)),
            Err(e) => {
                undecodable(service, Some(session), &e);
                None
            }
        },
        Ok(Some(Came::TooLarge(len))) => {
            Some(Err(Error::Request(format!("a command of {len} bytes, {MAX_COMMAND} at most"))))
        }
        Ok(None) => None,
        Err(status) => {
            service.broken(Some(session), &status);
            None
        }
    }
}

/// What a command counts as while it waits.
fn bytes_of(command: &outboard_core::Result<v1::Command>) -> usize {
    command.as_ref().map_or(0, Message::encoded_len)
}

/// Opens the queue and carries out its commands.
async fn commands(
    service: &Service,
    mut messages: Messages,
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
            None => next(service, &mut messages, session).await,
            command => command,
        };
        let Some(command) = command else { break };
        ahead_bytes -= bytes_of(&command).min(ahead_bytes);
        let mut work = std::pin::pin!(queue.command(command));
        // While a command waits for others, the stream is read on, to see whether its client is still there.
        let done = loop {
            tokio::select! {
                biased;
                done = work.as_mut() => break done,
                more = next(service, &mut messages, session),
                    if !ended && ahead.len() < READ_AHEAD && ahead_bytes < READ_AHEAD_BYTES => match more {
                    Some(command) => {
                        ahead_bytes += bytes_of(&command);
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
