//! The generated client, and whatever else speaks gRPC, on a plain connection: what another program would use.
#![allow(dead_code, unreachable_pub, missing_docs)]

use hyper_util::rt::{TokioExecutor, TokioIo};
use outboard_proto::v1;
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_rpc_server::Server;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;

pub type Client = OutboardClient<Conn>;
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

/// HTTP/2 over a connection.
pub async fn over<S, B>(stream: S) -> hyper::client::conn::http2::SendRequest<B>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: hyper::body::Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (http, driver) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(driver);
    http
}

/// Where a server is, for generated clients.
pub fn origin(addr: SocketAddr) -> http::Uri {
    format!("http://{addr}").parse().unwrap()
}

/// What a server answers to hello.
pub async fn hello(client: &mut Client) -> v1::HelloResponse {
    let request = v1::HelloRequest { min_version: 1, max_version: 1, client: "test".into() };
    client.hello(request).await.unwrap().into_inner()
}

pub async fn client(server: &Server) -> Client {
    OutboardClient::with_origin(Conn(http(server.local_addr()).await), origin(server.local_addr()))
}
