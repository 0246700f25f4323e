//! The stream of a device queue.

use super::call::place_of;
use super::messages::{Messages, Received};
use super::{Service, first, replies, undecodable};
use crate::http2::Incoming;
use crate::limits::{MAX_COMMAND, READ_AHEAD, READ_AHEAD_BYTES};
use crate::session::Session;
use crate::session::answers::{Replies as Sender, WithRoom, reply};
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
            let _ = out.send(WithRoom::new(Err(status), None));
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

/// Opens the queue and carries out its commands.
async fn commands(
    service: &Service,
    messages: Messages,
    session: &Arc<Session>,
    age: u64,
    open: v1::OpenQueue,
    out: &Sender,
) -> Result<(), Status> {
    let opened = QueueRunner::open(session, &service.shared, open.queue, &open.device, out.clone(), age).await;
    let mut queue = opened.map_err(|e| to_status(&e))?;
    let _ = out.send(WithRoom::new(reply(Reply::Opened(v1::Opened {})), None));
    let mut commands = Commands { service, session, messages, ahead: VecDeque::new(), ahead_bytes: 0, ended: false };
    while let Some(command) = commands.next().await {
        if carry_out(&mut queue, command, &mut commands).await.is_err() {
            break;
        }
    }
    queue.close().await;
    Ok(())
}

/// Carries out a command. While it waits for others, the stream is read on, to see whether its client is still there.
async fn carry_out(
    queue: &mut QueueRunner,
    command: Decoded,
    commands: &mut Commands<'_>,
) -> outboard_core::Result<()> {
    let left = queue.left();
    let mut work = std::pin::pin!(queue.command(command));
    loop {
        tokio::select! {
            biased;
            done = work.as_mut() => return done,
            () = commands.read_ahead(), if commands.may_read_ahead() => {
                if commands.ended {
                    left.store(true, Ordering::Release);
                    commands.session.progress.notify_waiters();
                }
            }
        }
    }
}

/// A command, or what is wrong with what came in its place.
type Decoded = outboard_core::Result<v1::Command>;

/// The commands of a stream, some of which are read before it is their turn.
struct Commands<'a> {
    service: &'a Service,
    session: &'a Session,
    messages: Messages,
    ahead: VecDeque<Decoded>,
    /// Bytes of those, encoded.
    ahead_bytes: usize,
    /// The stream was read to its end.
    ended: bool,
}

impl Commands<'_> {
    /// The next command; `None` at the end of the stream, when it breaks, or when the session ends.
    async fn next(&mut self) -> Option<Decoded> {
        match self.ahead.pop_front() {
            Some(command) => {
                self.ahead_bytes = self.ahead_bytes.saturating_sub(encoded_len(&command));
                Some(command)
            }
            None if self.ended => None,
            None => self.read().await,
        }
    }

    fn may_read_ahead(&self) -> bool {
        !self.ended && self.ahead.len() < READ_AHEAD && self.ahead_bytes < READ_AHEAD_BYTES
    }

    /// Reads one more command. Nothing is lost when this is given up.
    async fn read_ahead(&mut self) {
        match self.read().await {
            Some(command) => {
                self.ahead_bytes += encoded_len(&command);
                self.ahead.push_back(command);
            }
            None => self.ended = true,
        }
    }

    /// Reads the next command from the stream.
    async fn read(&mut self) -> Option<Decoded> {
        let received = tokio::select! {
            biased;
            received = self.messages.next(MAX_COMMAND, None) => received,
            () = self.session.until_closed() => return None,
        };
        match received {
            // From a slice, so that a command keeps copies of its payload, and not the larger buffer that it came in.
            Ok(Some(Received::Message(message, _))) => match v1::Command::decode(&message[..]) {
                Ok(command) => Some(Ok(command)),
                Err(e) => {
                    undecodable(self.service, Some(self.session), &e);
                    None
                }
            },
            Ok(Some(Received::TooLarge(len))) => {
                Some(Err(Error::Request(format!("a command of {len} bytes, {MAX_COMMAND} at most"))))
            }
            Ok(None) => None,
            Err(status) => {
                self.service.broken(Some(self.session), &status);
                None
            }
        }
    }
}

/// What a command counts as while it waits.
fn encoded_len(command: &Decoded) -> usize {
    command.as_ref().map_or(0, Message::encoded_len)
}
