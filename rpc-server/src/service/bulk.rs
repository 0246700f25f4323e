//! The bulk stream of a device queue: chunks on their way to the queue and from it. Spoken by hand: payloads go from the frames
//! of the connection to the queue, and back, without a copy.

use super::call::place_of;
use super::{Service, UNDECODABLE};
use crate::http2::Incoming;
use crate::limits::{BULK_CHUNKS, FIRST_MESSAGE};
use crate::lock;
use crate::session::Session;
use crate::session::answers::Held;
use crate::session::flight::Inlet;
use crate::session::queue::{BulkEnds, UpChunk};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame};
use outboard_proto::chunk::{self, ChunkReader, Direction, Piece};
use outboard_proto::error::to_status;
use outboard_proto::v1::{self, bulk_up::Part};
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::Status;
use tonic::body::Body;

/// A chunk for the client. It keeps its room in the queue until the connection takes it.
type Down = Result<Held<v1::Chunk>, Status>;

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
            if status.code() == UNDECODABLE {
                service.conn.give_up();
            }
            service.complain(None, "bulk stream refused", &status.message());
            let _ = out.send(Err(status)).await;
        }
    });
    let mut response = Response::new(Body::new(DownBody { chunks, payload: None, ended: false }));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    response
}

async fn run(service: &Service, body: Incoming, out: &Sender<Down>) -> Result<(), Status> {
    let mut pieces = Pieces { body, reader: ChunkReader::new(Direction::Up), input: Bytes::new(), frame: 0 };
    let first = tokio::time::timeout(FIRST_MESSAGE, pieces.next()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("the stream has said nothing"))??;
    let open = match first {
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
            piece = pieces.next() => piece?,
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

/// The pieces of a stream.
struct Pieces {
    body: Incoming,
    reader: ChunkReader,
    input: Bytes,
    /// Bytes of the frame that it was.
    frame: usize,
}

impl Pieces {
    /// The next piece; `None` at the end of the stream or when it breaks.
    async fn next(&mut self) -> Result<Option<Piece>, Status> {
        loop {
            let piece = self.reader.next(&mut self.input).map_err(|e| Status::new(UNDECODABLE, e.to_string()))?;
            match piece {
                // A copy, where it would keep much else that came in the same frame.
                Some(Piece::Data { transfer, data }) if data.len() < self.frame - self.frame / 8 => {
                    return Ok(Some(Piece::Data { transfer, data: Bytes::copy_from_slice(&data) }));
                }
                Some(piece) => return Ok(Some(piece)),
                None => {}
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.input = frame.into_data().unwrap_or_default(),
                Some(Err(_)) | None => return Ok(None),
            }
            self.frame = self.input.len();
        }
    }
}

/// Chunks on their way to the client, each as a head and its payload, and the status at the end.
struct DownBody {
    chunks: Receiver<Down>,
    payload: Option<Bytes>,
    ended: bool,
}

impl HttpBody for DownBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        let status = match self.chunks.poll_recv(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(Held { item: chunk, .. }))) => {
                let head = chunk::head(Direction::Down, chunk.transfer, &chunk.data);
                self.payload = Some(chunk.data);
                return Poll::Ready(Some(Ok(Frame::data(head))));
            }
            Poll::Ready(Some(Err(status))) => status,
            Poll::Ready(None) => Status::ok(""),
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        // Fails only for a message that cannot be a header; then the code alone has to do.
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", http::HeaderValue::from(status.code() as i32));
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}
