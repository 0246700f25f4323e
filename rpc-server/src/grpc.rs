//! gRPC streams that are spoken by hand, so that payloads are copied neither into messages nor out of them: the bulk streams of queues, and
//! the links of other servers.

use crate::http2::Incoming;
use crate::service::UNDECODABLE;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame};
use outboard_proto::chunk::{ChunkReader, Piece};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::Receiver;
use tonic::Status;
use tonic::body::Body;

/// What comes on a stream.
pub(crate) struct Pieces {
    body: Incoming,
    reader: ChunkReader,
    /// What is left of the frame that came last, and how large that was.
    rest: Bytes,
    frame: usize,
}

/// Why nothing more comes on a stream.
pub(crate) enum Broken {
    /// The connection was lost.
    Lost(String),
    /// What came cannot be decoded.
    Undecodable(Status),
}

impl Pieces {
    pub(crate) fn new(body: Incoming, reader: ChunkReader) -> Pieces {
        Pieces { body, reader, rest: Bytes::new(), frame: 0 }
    }

    /// The next piece; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, Broken> {
        loop {
            let piece = self.reader.next(&mut self.rest);
            let piece = piece.map_err(|e| Broken::Undecodable(Status::new(UNDECODABLE, e.to_string())))?;
            if piece.is_some() {
                return Ok(piece);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(e)) => return Err(Broken::Lost(e.to_string())),
                None => return Ok(None),
            }
            self.frame = self.rest.len();
        }
    }

    /// Bytes of the frame that the last piece came in.
    pub(crate) fn frame(&self) -> usize {
        self.frame
    }
}

/// Bytes of a frame that are to be kept: as they are if there are at least so many, else as a copy, so that the rest of the frame does not
/// stay in memory with them.
pub(crate) fn detach(data: Bytes, least: usize) -> Bytes {
    if data.len() < least { Bytes::copy_from_slice(&data) } else { data }
}

/// Something on its way to the other side.
pub(crate) trait Outgoing: Send + 'static {
    /// Its bytes: a message, or the head of one and its payload.
    fn into_frames(self) -> (Bytes, Option<Bytes>);
}

impl Outgoing for Bytes {
    fn into_frames(self) -> (Bytes, Option<Bytes>) {
        (self, None)
    }
}

/// The response that says what comes out of a channel, and then the status: that of the error, or a good one.
pub(crate) fn response<M: Outgoing>(messages: Receiver<Result<M, Status>>) -> Response<Body> {
    let mut response = Response::new(Body::new(DownBody { messages, payload: None, ended: false }));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

struct DownBody<M> {
    messages: Receiver<Result<M, Status>>,
    /// That of the message whose head was the last frame.
    payload: Option<Bytes>,
    ended: bool,
}

impl<M: Outgoing> HttpBody for DownBody<M> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        let status = match self.messages.poll_recv(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(message))) => {
                let (first, payload) = message.into_frames();
                self.payload = payload;
                return Poll::Ready(Some(Ok(Frame::data(first))));
            }
            Poll::Ready(Some(Err(status))) => status,
            Poll::Ready(None) => Status::ok(""),
        };
        self.ended = true;
        Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))))
    }
}

/// A status at the end of a stream.
fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // Fails only for a message that cannot be a header; then the code alone has to do.
    if status.add_header(&mut trailers).is_err() {
        trailers.insert("grpc-status", HeaderValue::from(status.code() as i32));
    }
    trailers
}
