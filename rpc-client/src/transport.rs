//! Connections: HTTP/2 and gRPC streams on what a dialer opens.

use crate::io::Counters;
use crate::lane::{Lane, LaneBody};
use crate::timer::LooksAgain;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outboard_core::Error;
use outboard_net::{Dialer, Fault};
use outboard_proto::limits::{HTTP2_BULK_STREAM_WINDOW, HTTP2_BULK_WINDOW, HTTP2_FRAME, MAX_MESSAGE};
use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codec::{Codec, Streaming};
use tonic::codegen::Service;
use tonic_prost::ProstCodec;

/// Bytes in flight on one stream of a command connection: a thousand commands, or some graphs.
const COMMAND_STREAM_WINDOW: u32 = 2 << 20;
/// Bytes in flight on a command connection.
const COMMAND_WINDOW: u32 = 8 << 20;

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Commands, with a heartbeat: the server is dead if it is not heard for this long.
    Commands(Duration),
    /// Bulk data. Its heartbeat would stand behind the data; that of the commands speaks for it.
    Bulk,
}

/// An open connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    http: SendRequest<Body>,
    origin: Uri,
}

/// Drives a connection until it ends, and says why it did.
pub(crate) type Driver = Pin<Box<dyn Future<Output = String> + Send>>;

/// An event loop for one thread.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A connection that has just been opened.
pub(crate) struct Opened {
    pub(crate) conn: Conn,
    pub(crate) driver: Driver,
    /// What TLS or QUIC did not like, which says more than the error of the call that it broke.
    pub(crate) fault: Fault,
    /// Whether secrets may be sent.
    pub(crate) private: bool,
}

/// Opens a connection. Has no deadline of its own.
pub(crate) async fn open(dialer: &Dialer, counters: &Arc<Counters>, purpose: Purpose) -> Result<Opened, Error> {
    let endpoint = dialer.endpoint();
    let lost = |detail: String| Error::Peer { endpoint: endpoint.to_string(), detail };
    let stream = dialer.open(counters.clone()).await.map_err(lost)?;
    let (fault, private) = (stream.fault(), stream.is_private());
    let io = TokioIo::new(stream);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(LooksAgain).max_frame_size(HTTP2_FRAME);
    match purpose {
        Purpose::Commands(dead_after) => builder
            .initial_stream_window_size(COMMAND_STREAM_WINDOW)
            .initial_connection_window_size(COMMAND_WINDOW)
            .keep_alive_interval(dead_after / 4)
            .keep_alive_timeout(dead_after - dead_after / 4)
            .keep_alive_while_idle(true),
        Purpose::Bulk => builder
            .initial_stream_window_size(HTTP2_BULK_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_BULK_WINDOW),
    };
    let reason = fault.clone();
    let why = move |e: &hyper::Error| reason.reason().unwrap_or_else(|| describe(e));
    let (http, connection) = builder.handshake(io).await.map_err(|e| lost(why(&e)))?;
    let scheme = if endpoint.carrier().is_encrypted() { "https" } else { "http" };
    let origin = Uri::builder().scheme(scheme).authority(endpoint.authority()).path_and_query("/").build();
    let origin = origin.map_err(|e| lost(format!("not a usable address: {e}")))?;
    let driver = Box::pin(async move {
        match connection.await {
            Ok(()) => "the server closed the connection".to_owned(),
            Err(e) => why(&e),
        }
    });
    Ok(Opened { conn: Conn { http, origin }, driver, fault, private })
}

/// What a failure of HTTP/2 means for the user.
pub(crate) fn describe(e: &hyper::Error) -> String {
    let cause = e.source().map(ToString::to_string).unwrap_or_default();
    if e.is_timeout() || cause.contains("timed out") {
        return "the server has stopped answering (it hangs, or the network is cut)".to_owned();
    }
    let h2: Option<&(dyn std::error::Error + 'static)> = e.source();
    let not_http2 = ["frame with invalid size", "PROTOCOL_ERROR", "FRAME_SIZE_ERROR", "invalid"];
    if h2.is_some() && not_http2.iter().any(|text| cause.contains(text)) {
        return "it does not speak gRPC".to_owned();
    }
    if cause.is_empty() { format!("the connection was lost: {e}") } else { format!("the connection was lost: {cause}") }
}

impl Conn {
    /// The address that requests go to.
    pub(crate) fn origin(&self) -> Uri {
        self.origin.clone()
    }

    /// Calls a streaming method with what comes through `lane`.
    pub(crate) async fn stream<T>(&self, method: &str, lane: Arc<Lane>) -> Result<Streaming<T>, String>
    where
        T: prost::Message + Default + Send + 'static,
    {
        let response = self.open(&format!("/outboard.v1.Outboard/{method}"), lane).await?;
        let status = response.status();
        let decoder = ProstCodec::<T, T>::default().decoder();
        Ok(Streaming::new_response(decoder, response.into_body(), status, None, Some(MAX_MESSAGE)))
    }

    /// Sends what comes through `lane` to a method; its answer has begun.
    pub(crate) async fn open(&self, path: &str, lane: Arc<Lane>) -> Result<Response<Incoming>, String> {
        let mut to = self.origin.clone().into_parts();
        to.path_and_query = path.parse().ok();
        let request = Request::post(Uri::from_parts(to).unwrap_or_default())
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(LaneBody(lane)))
            .map_err(|e| e.to_string())?;
        let response = self.http.clone().send_request(request).await.map_err(|e| describe(&e))?;
        // An answer that is refused at once has its status among the headers.
        match tonic::Status::from_header_map(response.headers()).filter(|s| s.code() != tonic::Code::Ok) {
            Some(status) => Err(status.message().to_owned()),
            None => Ok(response),
        }
    }
}

/// For the generated client's unary calls.
impl Service<Request<Body>> for Conn {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.http.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.http.send_request(request))
    }
}
