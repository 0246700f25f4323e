//! The stream of a device queue.

use super::{Replies, Service, first, next};
use crate::limits::REPLIES;
use crate::session::answers::reply;
use crate::session::queue::QueueRunner;
use outboard_proto::error::to_status;
use outboard_proto::v1::{self, command::Command, reply::Reply};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

pub(super) fn start(service: &Service, stream: Streaming<v1::Command>) -> Replies<v1::Reply> {
    let (out, replies) = channel(REPLIES);
    let service = service.clone();
    tokio::spawn(async move {
        if let Err(status) = run(&service, stream, &out).await {
            service.complain(None, "queue refused", &status.message());
            let _ = out.send(Err(status)).await;
        }
    });
    ReceiverStream::new(replies)
}

async fn run(
    service: &Service,
    mut stream: Streaming<v1::Command>,
    out: &Sender<Result<v1::Reply, Status>>,
) -> Result<(), Status> {
    let Some(Command::Open(open)) = first(service, &mut stream).await?.command else {
        return Err(Status::invalid_argument("the first message must open the queue"));
    };
    let session = service.session(open.session.as_ref())?;
    service.conn.attach(&session);
    let shared = &service.shared;
    let opened = QueueRunner::open(&session, shared, open.queue, &open.device, out.clone()).await;
    let mut queue = opened.map_err(|e| to_status(&e))?;
    let _ = out.send(reply(Reply::Opened(v1::Opened {}))).await;
    while let Some(command) = next(service, &mut stream, &session).await {
        if queue.command(command).await.is_err() {
            break;
        }
    }
    Ok(())
}
