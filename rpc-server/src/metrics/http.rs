//! The address for metrics: `/metrics`, `/healthz`, `/readyz` over HTTP, on a thread of its own.
//!
//! Whoever reaches it may ask. It tells nothing secret and takes nothing but the head of a request.

use crate::conn::{Stopped, runtime};
use crate::limits::{METRICS_CONNECTIONS, METRICS_HEAD, METRICS_TIMEOUT};
use crate::logs::limited;
use crate::server::Shared;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outboard_core::{Error, Result};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Starts to listen, until the server stops. Gives the address, whose port may have been 0.
pub(crate) fn start(shared: &Arc<Shared>, addr: SocketAddr, stopped: Stopped) -> Result<(SocketAddr, JoinHandle<()>)> {
    let fail = |e: std::io::Error| Error::Request(format!("cannot listen for metrics on {addr}: {e}"));
    let listener = TcpListener::bind(addr).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    let runtime = runtime().map_err(fail)?;
    let shared = shared.clone();
    let work = move || {
        runtime.block_on(accept(&shared, listener, stopped));
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("metrics".into()).spawn(work).map_err(fail)?;
    Ok((bound, thread))
}

async fn accept(shared: &Arc<Shared>, listener: TcpListener, mut stopped: Stopped) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot accept connections for metrics: {e}"),
    };
    let room = Arc::new(Semaphore::new(METRICS_CONNECTIONS));
    let next = async || {
        let room = room.clone().acquire_owned().await;
        (room, listener.accept().await)
    };
    loop {
        tokio::select! {
            _ = stopped.wait_for(|&s| s) => return,
            (room, accepted) = next() => match accepted {
                Ok((socket, peer)) => {
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        let _room = room;
                        // Too slow is too slow: who asks for metrics is near.
                        let _ = tokio::time::timeout(METRICS_TIMEOUT, serve(&shared, socket, peer)).await;
                    });
                }
                Err(e) => {
                    limited!(warn, "a connection for metrics was not accepted: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}

async fn serve(shared: &Arc<Shared>, socket: TcpStream, peer: SocketAddr) {
    let service = |request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(shared, &request)) };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(METRICS_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(METRICS_HEAD)
        .serve_connection(TokioIo::new(socket), service_fn(service))
        .await;
    if let Err(e) = served {
        limited!(debug, %peer, "a request for metrics came to nothing: {e}");
    }
}

fn answer<B>(shared: &Shared, request: &Request<B>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match shared.metrics.render(shared) {
            Ok(text) => {
                let mut response = Response::new(Full::new(text.into()));
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
                response
            }
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n"),
        },
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" if shared.draining.load(Ordering::Acquire) => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "draining: it stops soon and takes no new sessions\n")
        }
        "/readyz" => plain(StatusCode::OK, "ok\n"),
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
