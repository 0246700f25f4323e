//! A program that takes connections on a port of its own, on a thread of its own.
// Each test file uses some of it.
#![allow(dead_code, unreachable_pub, missing_docs)]

use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Listens until it is dropped.
pub struct Listening {
    pub addr: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Listening {
    /// Gives every connection to `each`, on an event loop.
    pub fn start(each: impl Fn(TcpStream) + Send + 'static) -> Listening {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, mut stopped) = watch::channel(false);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let accept = async {
                    while let Ok((socket, _)) = listener.accept().await {
                        each(socket);
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped.wait_for(|&stop| stop) => {}
                }
            });
        });
        Listening { addr, stop }
    }

    /// Listens for as long as this process lives.
    pub fn for_ever(self) -> SocketAddr {
        let addr = self.addr;
        std::mem::forget(self);
        addr
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// What speaks HTTP/2 on a connection, and the connection as it wants it.
pub fn http2(socket: TcpStream) -> (hyper::server::conn::http2::Builder<TokioExecutor>, TokioIo<TcpStream>) {
    (hyper::server::conn::http2::Builder::new(TokioExecutor::new()), TokioIo::new(socket))
}
