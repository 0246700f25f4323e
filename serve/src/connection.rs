//! One connection: HTTP/1.1, with deadlines for all that its client can delay.

use crate::departure::Departure;
use crate::limits::{HEAD, HEADERS, Limits, PROBE, PROBE_EVERY};
use crate::write_timeout::Patient;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outboard_net::{Meter, ServerTls, accept};
use socket2::{SockRef, TcpKeepalive};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::Service as _;

/// How long answers may take to be sent when the server ends.
const GOODBYE: Duration = Duration::from_millis(500);

/// How far a server is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It takes connections and requests.
    Open,
    /// It takes no connections, and ends those that it has behind their request.
    Draining,
    /// It ends.
    Ended,
}

/// Nobody counts these bytes.
#[derive(Debug)]
struct Unmetered;

impl Meter for Unmetered {
    fn sent(&self, _: usize) {}
    fn received(&self, _: usize) {}
}

/// Serves a connection until its end. The error is for the log.
pub(crate) async fn serve(
    router: Router,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<&ServerTls>,
    limits: &Limits,
    mut phase: watch::Receiver<Phase>,
) -> Result<(), String> {
    // A client that is gone without a word is noticed by what its system does not answer.
    let probes = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE_EVERY);
    let _ = socket.set_nodelay(true).and_then(|()| SockRef::from(&socket).set_tcp_keepalive(&probes));
    let mut left = pin!(Departure::of(&socket).wait());
    let stream = tokio::select! {
        accepted = accept(socket, tls, Unmetered) => accepted?.stream,
        _ = phase.wait_for(|&phase| phase > Phase::Open) => return Ok(()),
    };
    let answer = |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().call(request.map(Body::new))
    };
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(Patient::new(stream, limits.write_time)), service_fn(answer));
    let mut http = pin!(http);
    let told = |e: hyper::Error| e.to_string();
    tokio::select! {
        ended = http.as_mut() => return ended.map_err(told),
        () = left.as_mut() => return Ok(()),
        _ = phase.wait_for(|&phase| phase > Phase::Open) => http.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        ended = http.as_mut() => return ended.map_err(told),
        () = left => return Ok(()),
        _ = phase.wait_for(|&phase| phase == Phase::Ended) => {}
    }
    match tokio::time::timeout(GOODBYE, http).await {
        Ok(ended) => ended.map_err(told),
        Err(_) => Err("cut off in the middle of an answer, because the server ends".into()),
    }
}
