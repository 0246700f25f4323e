//! The generated client, and whatever else speaks gRPC, on a plain connection: what another program would use.
#![allow(dead_code, unreachable_pub, missing_docs)]

use hyper_util::rt::{TokioExecutor, TokioIo};
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_rpc_server::Server;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;

pub type Http = hyper::client::conn::http2::SendRequest<Body>;

#[derive(Clone)]
pub struct Conn(pub Http);

impl tonic::codegen::Service<http::Request<Body>> for Conn {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

pub async fn http(addr: SocketAddr) -> Http {
    over(tokio::net::TcpStream::connect(addr).await.unwrap()).await
}

/// From one of this host's addresses.
pub async fn http_from(ip: &str, addr: SocketAddr) -> Http {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
    over(socket.connect(addr).await.unwrap()).await
}

async fn over(socket: tokio::net::TcpStream) -> Http {
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (http, driver) = builder.handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(driver);
    http
}

pub async fn client(server: &Server) -> OutboardClient<Conn> {
    let conn = Conn(http(server.local_addr()).await);
    OutboardClient::with_origin(conn, format!("http://{}", server.local_addr()).parse().unwrap())
}
