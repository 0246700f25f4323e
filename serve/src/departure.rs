//! Whether a client has left, where bytes of it are left to read as well.
//!
//! While HTTP/1 answers a request it reads no further than what it has not understood yet (a line end behind a body, another request), and does not see
//! the end of the connection behind that.

use socket2::SockRef;
use std::future::pending;
use std::io;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// An answer that is about to end is sent all the same.
const GRACE: Duration = Duration::from_millis(300);

/// Watches a socket for the end of what its client sends.
#[derive(Debug)]
pub(crate) struct Departure(Option<TcpStream>);

impl Departure {
    /// Of the client of this socket, by another handle of it: the first one is watched by whoever reads from it.
    pub(crate) fn of(socket: &TcpStream) -> Departure {
        let again = SockRef::from(socket).try_clone();
        Departure(again.and_then(|socket| TcpStream::from_std(socket.into())).ok())
    }

    /// Waits until the client has left, and a little longer.
    pub(crate) async fn wait(self) {
        let Some(socket) = self.0 else { return pending().await };
        loop {
            match socket.ready(Interest::READABLE).await {
                Ok(ready) if ready.is_read_closed() => break,
                // Bytes for others: the next news is waited for.
                Ok(_) => {
                    let read = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
                    let _ = socket.try_io(Interest::READABLE, read);
                }
                Err(_) => return pending().await,
            }
        }
        tokio::time::sleep(GRACE).await;
    }
}
