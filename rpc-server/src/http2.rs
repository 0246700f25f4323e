//! HTTP/2 of a connection, on h2 itself: how much may be in flight depends on who the client has shown to be, and a server of hyper
//! says that once, before it knows.

use crate::conn::{Calls, Conn, Width};
use crate::io::Traffic;
use crate::limits::{HEADER_VALUE, HEADERS, SEND_BUFFER, STREAM_WINDOW, STREAMS};
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame};
use outboard_net::Stream;
use outboard_proto::limits::HTTP2_FRAME;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::body::Body;

type Http = Connection<Stream<Arc<Traffic>>, Bytes>;

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Incoming(RecvStream);

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.0.poll_data(cx)) {
            Some(Ok(bytes)) => {
                // What is taken is not in flight any more. It fails only for more than has come.
                let _ = self.0.flow_control().release_capacity(bytes.len());
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            // A client that has gone has said all that it will.
            Some(Err(e)) if matches!(e.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => Poll::Ready(None),
            Some(Err(e)) => Poll::Ready(Some(Err(e))),
            // gRPC has no trailers in requests.
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// Serves calls until the connection ends.
pub(crate) async fn serve(stream: Stream<Arc<Traffic>>, conn: &Arc<Conn>, calls: &Calls) -> Result<(), h2::Error> {
    let mut builder = Builder::new();
    builder
        .max_frame_size(HTTP2_FRAME)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(Width::Early.connection())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .max_send_buffer_size(SEND_BUFFER);
    let mut http: Http = builder.handshake(stream).await?;
    let mut windows = Windows { stream: STREAM_WINDOW, connection: Width::Early.connection() };
    let mut width = conn.width();
    loop {
        let now = *width.borrow_and_update();
        let accepted = tokio::select! {
            biased;
            accepted = poll_fn(|cx| windows.poll_accept(&mut http, now, cx)) => accepted,
            // The sender is the connection's, which is here.
            _ = width.changed() => continue,
        };
        match accepted {
            Some(Ok((request, respond))) => drop(tokio::spawn(answer(calls.clone(), slim(request), respond))),
            Some(Err(e)) => return Err(e),
            None => return Ok(()),
        }
    }
}

type Accepted = Option<Result<(Request<RecvStream>, SendResponse<Bytes>), h2::Error>>;

/// What the client was told that may be in flight.
struct Windows {
    stream: u32,
    connection: u32,
}

impl Windows {
    /// The next call; windows are widened as soon as that can be said.
    fn poll_accept(&mut self, http: &mut Http, width: Width, cx: &mut Context<'_>) -> Poll<Accepted> {
        loop {
            self.widen(http, width);
            if let Poll::Ready(accepted) = http.poll_accept(cx) {
                return Poll::Ready(accepted);
            }
            // What has just come may allow to say it.
            if !self.widen(http, width) {
                return Poll::Pending;
            }
        }
    }

    /// Whether there is something new to be said.
    fn widen(&mut self, http: &mut Http, width: Width) -> bool {
        let mut news = false;
        if width.connection() > self.connection {
            self.connection = width.connection();
            http.set_target_window_size(self.connection);
            news = true;
        }
        // Settings can be changed once the client has acknowledged those before.
        if width.stream() > self.stream && http.set_initial_window_size(width.stream()).is_ok() {
            self.stream = width.stream();
            news = true;
        }
        news
    }
}

/// Headers that matter to a call.
const HEADERS_KEPT: [&str; 5] = ["content-type", "te", "grpc-timeout", "grpc-encoding", "authorization"];

/// A request with copies of the headers that matter: the others, hundreds perhaps, are not kept while it waits.
fn slim(request: Request<RecvStream>) -> Request<RecvStream> {
    let (mut head, body) = request.into_parts();
    let all = std::mem::take(&mut head.headers);
    let kept = HEADERS_KEPT.iter().filter_map(|&name| {
        let value = all.get(name).filter(|value| value.len() <= HEADER_VALUE)?;
        Some((HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).ok()?))
    });
    head.headers = kept.collect();
    head.uri = head.uri.path().parse().unwrap_or_default();
    Request::from_parts(head, body)
}

/// Carries out one call and sends what it answers, unless its client gives it up.
async fn answer(calls: Calls, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (response, _place) = tokio::select! {
        biased;
        answered = calls.call(request.map(Incoming)) => answered,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    let (head, body) = response.into_parts();
    let ended = body.is_end_stream();
    let Ok(stream) = respond.send_response(Response::from_parts(head, ()), ended) else { return };
    if !ended {
        // Whoever does not take an answer has gone.
        let _ = send(body, stream).await;
    }
}

/// Sends the frames of a body, each when there is room in the window.
async fn send(mut body: Body, mut stream: SendStream<Bytes>) -> Result<(), h2::Error> {
    loop {
        stream.reserve_capacity(1);
        while stream.capacity() == 0 {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(room) => drop(room?),
                None => return Ok(()),
            }
        }
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return Ok(()),
        };
        match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                let ended = body.is_end_stream();
                stream.send_data(data, ended)?;
                if ended {
                    return Ok(());
                }
            }
            Some(Ok(Err(frame))) => {
                stream.reserve_capacity(0);
                return stream.send_trailers(frame.into_trailers().unwrap_or_default());
            }
            Some(Err(_)) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            None => return stream.send_data(Bytes::new(), true),
        }
    }
}
