//! The bulk stream of a device queue: chunks on their way to the queue and from it. Payloads go from the frames of the connection to the
//! queue, and back, without a copy.

use super::call::place_of;
use super::{Service, in_time};
use crate::grpc::{Broken, Outgoing, Pieces, detach, response};
use crate::http2::Incoming;
use crate::limits::{BULK_CHUNKS, FIRST_MESSAGE};
use crate::lock;
use crate::session::Session;
use crate::session::answers::WithRoom;
use crate::session::flight::Inlet;
use crate::session::queue::{BulkEnds, UpChunk};
use bytes::Bytes;
use http::{Request, Response};
use outboard_proto::chunk::{self, ChunkReader, Direction, Piece};
use outboard_proto::error::to_status;
use outboard_proto::v1::{self, bulk_up::Part};
use prost::Message;
use tokio::sync::mpsc::{Sender, channel};
use tonic::Status;
use tonic::body::Body;

/// A chunk for the client. It keeps its room in the queue until the connection takes it.
type Down = Result<WithRoom<v1::Chunk>, Status>;

pub(crate) fn transfer(service: Service, request: Request<Incoming>) -> Response<Body> {
    let (out, chunks) = channel(BULK_CHUNKS);
    tokio::spawn(async move {
        let _place = place_of(&request);
        let run = run(&service, request.into_body(), &out);
        let ended = tokio::select! {
            ended = run => ended,
            // The client has reset the stream.
            () = out.closed() => return,
        };
        if let Err(status) = ended {
            service.refused("bulk stream refused", &status);
            let _ = out.send(Err(status)).await;
        }
    });
    response(chunks)
}

async fn run(service: &Service, body: Incoming, out: &Sender<Down>) -> Result<(), Status> {
    let mut pieces = Pieces::new(body, ChunkReader::new(Direction::Up));
    let open = match in_time(next(&mut pieces)).await?? {
        Some(Piece::Message(bytes)) => v1::BulkUp::decode(bytes).ok().and_then(|m| m.part),
        _ => None,
    };
    let Some(Part::Open(open)) = open else {
        return Err(Status::invalid_argument("the first message must name the queue"));
    };
    let (session, age) = service.stream(open.session.as_ref())?;
    service.conn.attach(&service.shared, &session);
    service.conn.carries_bulk();
    // The queue is opened on another connection, so that it may come later.
    let queue = session.until(|| lock(&session.queues).get(&open.queue).cloned());
    let queue = match tokio::time::timeout(FIRST_MESSAGE, queue).await {
        Ok(Ok(queue)) => queue,
        _ => return Err(Status::not_found(format!("queue {} is unknown in this session", open.queue))),
    };
    let ends = lock(&queue.bulk).take();
    drop(queue);
    let ends = ends.ok_or_else(|| Status::already_exists("the queue has a bulk stream already"))?;
    let BulkEnds { up, room, mut down } = ends;
    let results = out.clone();
    tokio::spawn(async move {
        while let Some(chunk) = down.recv().await {
            if results.send(Ok(chunk)).await.is_err() {
                return;
            }
        }
    });
    tokio::select! {
        biased;
        () = session.keys.until_renewed(age) => Ok(()),
        done = forward(&session, &mut pieces, &up, &room) => done,
    }
}

/// Hands chunks to the queue; one that is full makes the client wait.
async fn forward(session: &Session, pieces: &mut Pieces, up: &Sender<UpChunk>, inlet: &Inlet) -> Result<(), Status> {
    loop {
        let room = tokio::select! {
            room = inlet.take() => room.map_err(|e| to_status(&e))?,
            () = session.until_closed() => return Ok(()),
        };
        let piece = tokio::select! {
            piece = next(pieces) => piece?,
            () = session.until_closed() => return Ok(()),
        };
        let (transfer, data) = match piece {
            Some(Piece::Data { transfer, data }) => (transfer, data),
            Some(Piece::Message(_)) => return Err(Status::invalid_argument("a part that this release does not know")),
            None => return Ok(()),
        };
        tokio::select! {
            sent = up.send((v1::Chunk { transfer, data }, room)) => if sent.is_err() { return Ok(()) },
            () = session.until_closed() => return Ok(()),
        }
    }
}

/// The next piece; `None` at the end of the stream or when the connection is lost.
async fn next(pieces: &mut Pieces) -> Result<Option<Piece>, Status> {
    match pieces.next().await {
        Ok(Some(Piece::Data { transfer, data })) => {
            let frame = pieces.frame();
            Ok(Some(Piece::Data { transfer, data: detach(data, frame - frame / 8) }))
        }
        Ok(piece) => Ok(piece),
        Err(Broken::Lost(_)) => Ok(None),
        Err(Broken::Undecodable(status)) => Err(status),
    }
}

impl Outgoing for WithRoom<v1::Chunk> {
    fn into_frames(self) -> (Bytes, Option<Bytes>) {
        let v1::Chunk { transfer, data } = self.item;
        (chunk::head(Direction::Down, transfer, &data), Some(data))
    }
}
