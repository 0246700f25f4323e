//! The service: one file per call or stream.

mod blobs;
pub(crate) mod bulk;
pub(crate) mod call;
mod control;
mod devices;
mod hello;
mod memory;
pub(crate) mod messages;
mod peers;
mod progress;
mod queue;
mod resume;
mod supports;
mod trace;

use crate::accounts::Account;
use crate::conn::{Conn, too_much};
use crate::limits::{FIRST_MESSAGE, LAST_ANSWER, WRONG_TOKENS, graph_bytes};
use crate::lock;
use crate::logs::limited;
use crate::server::Shared;
use crate::session::Session;
use crate::trust::Denied;
use call::CallRoom;
use messages::{Messages, Received};
use outboard_core::Error;
use outboard_core::graph::MAX_TENSORS;
use outboard_proto::error::to_status;
use outboard_proto::limits::MAX_MESSAGE;
use outboard_proto::v1;
use std::sync::Arc;
use std::time::Instant;
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBody, SingleMessageCompressionOverride};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// What one connection can call.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) conn: Arc<Conn>,
}

impl Service {
    /// The session that a message names, if it proves that it may.
    fn session(&self, session: Option<&v1::Session>) -> Result<Arc<Session>, Status> {
        self.is_no_link()?;
        let found = session.and_then(|s| {
            let found = lock(&self.shared.sessions).get(&s.id).cloned();
            found.filter(|found| found.has_secret(&s.secret))
        });
        let found = found.ok_or_else(|| self.no_session())?;
        self.authorise(&found.account)?;
        found.hear(&self.conn.traffic);
        Ok(found)
    }

    /// Notes that the client of this connection has shown who it is.
    pub(crate) fn authorise(&self, account: &Arc<Account>) -> Result<(), Status> {
        self.conn.authorise(account).map_err(|e| {
            self.complain(None, "a connection was refused", &e);
            too_much(&e)
        })
    }

    /// Notes that another server has shown that a client of this account wants it to send on this connection.
    pub(crate) fn authorise_link(&self, account: &Arc<Account>) -> Result<(), Status> {
        self.conn.authorise_link(account).map_err(|e| {
            self.complain(None, "a link was refused", &e);
            too_much(&e)
        })
    }

    /// The answer to who names a session that there is not, or with another secret.
    fn no_session(&self) -> Status {
        let lease = self.shared.limits.lease.as_secs_f64();
        Status::unauthenticated(format!(
            "there is no such session: it has ended, or its client was not heard for {lease} s, or the server was restarted"
        ))
    }

    /// The session of a stream, and its age: when it has another one, its client has taken it up again on other streams.
    fn stream(&self, session: Option<&v1::Session>) -> Result<(Arc<Session>, u64), Status> {
        let found = self.session(session)?;
        let age = session.and_then(|s| found.keys.age(&s.secret));
        age.map(|age| (found, age)).ok_or_else(|| Status::unauthenticated("the session was taken up again elsewhere"))
    }

    /// The account of the client at the other end.
    fn account(&self) -> Arc<Account> {
        self.conn.account(&self.shared, None)
    }

    /// Whether a call that names no session may be made: by anybody where no token is needed, and else by a client that has been
    /// let in before, or shows a token now.
    async fn may(&self, metadata: &MetadataMap) -> Result<(), Status> {
        self.is_no_link()?;
        if self.conn.is_authorised() || self.shared.trust.tokens.is_none() {
            Ok(())
        } else {
            self.admit(metadata).await
        }
    }

    /// Fails on a link between servers: what lets that stay is no right of its client.
    fn is_no_link(&self) -> Result<(), Status> {
        if self.conn.only_links() {
            let why = "this connection is a link between servers; calls need one of their own";
            return Err(Status::permission_denied(why));
        }
        Ok(())
    }

    /// Checks the token of a call, if one is needed, and keeps the name that it stands for. After a wrong one, answers to further
    /// ones from the same address wait.
    async fn admit(&self, metadata: &MetadataMap) -> Result<(), Status> {
        self.is_no_link()?;
        let (shared, address) = (&self.shared, self.conn.peer.ip());
        if self.conn.wrong_tokens() >= WRONG_TOKENS {
            return Err(Status::unauthenticated("too many wrong tokens on this connection"));
        }
        match shared.trust.check(metadata) {
            Ok(name) => {
                // At once, so that it makes no room for others while it waits.
                self.authorise(&self.conn.account(shared, name.as_deref()))?;
                if name.is_some() {
                    tokio::time::sleep(shared.guesses.delay(Instant::now(), address)).await;
                }
                Ok(())
            }
            Err(denied) => {
                let status = denied.status();
                self.complain(None, "a client was not let in", &status.message());
                match denied {
                    Denied::Missing => shared.metrics.refused("missing token"),
                    Denied::Wrong => self.wrong_token().await,
                }
                Err(status)
            }
        }
    }

    /// A wrong token: its answer waits, and the connection ends with the last one that is looked at.
    async fn wrong_token(&self) {
        self.shared.metrics.refused("token");
        let count = self.conn.wrong_token();
        let delay = self.shared.guesses.wrong(Instant::now(), self.conn.peer.ip());
        tokio::time::sleep(delay).await;
        if count >= WRONG_TOKENS {
            let conn = self.conn.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LAST_ANSWER).await;
                conn.give_up();
            });
        }
    }

    /// A stream broke. If that is because of what came on it, the connection ends.
    fn broken(&self, session: Option<&Session>, status: &Status) {
        if matches!(status.code(), UNDECODABLE | Code::OutOfRange) {
            self.shared.metrics.undecodable();
            self.complain(session, "connection closed, its bytes cannot be decoded", &status.message());
            self.conn.give_up();
        }
    }

    /// A stream that is spoken by hand was refused. If that is because of what came on it, the connection ends.
    pub(crate) fn refused(&self, what: &str, status: &Status) {
        if status.code() == UNDECODABLE {
            self.conn.give_up();
        }
        self.complain(None, what, &status.message());
    }

    /// A line about a client that does not keep to the protocol.
    pub(crate) fn complain(&self, session: Option<&Session>, what: &str, why: &dyn std::fmt::Display) {
        let session = session.map(|s| s.tag.clone()).or_else(|| self.conn.session_tag());
        limited!(warn, peer = %self.conn.peer, session, "{what}: {why}");
    }
}

/// The code of a message that cannot be decoded.
pub(crate) const UNDECODABLE: Code = Code::Internal;

/// The first message of a stream, of up to `limit` bytes.
async fn first(service: &Service, messages: &mut Messages, limit: usize) -> Result<bytes::Bytes, Status> {
    match in_time(messages.next(limit, None)).await? {
        Ok(Some(Received::Message(message, _))) => Ok(message),
        Ok(Some(Received::TooLarge(len))) => Err(Status::invalid_argument(format!(
            "a message of {len} bytes; the first one of a stream has {limit} at most"
        ))),
        Ok(None) => Err(Status::invalid_argument("the stream ended before its first message")),
        Err(status) => {
            service.broken(None, &status);
            Err(status)
        }
    }
}

/// Waits for what a stream says first, no longer than that may take.
pub(crate) async fn in_time<T>(first: impl Future<Output = T>) -> Result<T, Status> {
    let first = tokio::time::timeout(FIRST_MESSAGE, first).await;
    first.map_err(|_| Status::deadline_exceeded("the stream has said nothing"))
}

/// A message that cannot be decoded ends its connection.
fn undecodable(service: &Service, session: Option<&Session>, error: &prost::DecodeError) -> Status {
    let status = Status::new(UNDECODABLE, error.to_string());
    service.broken(session, &status);
    status
}

/// An answer that is a stream of messages.
fn replies<T, S>(stream: S) -> http::Response<Body>
where
    T: prost::Message + Default + 'static,
    S: tokio_stream::Stream<Item = Result<T, Status>> + Send + 'static,
{
    let encoder = ProstCodec::<T, T>::default().encoder();
    let plain = SingleMessageCompressionOverride::default();
    let body = EncodeBody::new_server(encoder, stream, None, plain, Some(MAX_MESSAGE));
    let mut response = http::Response::new(Body::new(body));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    response
}

/// What a stream that is read by hand answers to who comes by another way.
fn by_hand<T>() -> Result<Response<EmptyReplies<T>>, Status> {
    Err(Status::internal("this stream is not served here; this is a bug of Outboard"))
}

/// Nothing; see [`by_hand`].
type EmptyReplies<T> = tokio_stream::Empty<Result<T, Status>>;

/// The room of a call's message, for its work.
fn room_of<T>(request: &Request<T>) -> Option<CallRoom> {
    request.extensions().get::<CallRoom>().cloned()
}

/// Bytes that an encoded graph takes in memory. What is wrong with it, its decoder says.
fn takes(graph: &[u8]) -> u64 {
    graph_bytes(outboard_proto::graph::count(graph).unwrap_or(MAX_TENSORS), graph.len())
}

fn status(error: Error) -> Status {
    to_status(&error)
}

#[tonic::async_trait]
impl v1::outboard_server::Outboard for Service {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        self.admit(request.metadata()).await?;
        hello::hello(self, request.into_inner()).map(Response::new)
    }

    async fn devices(&self, request: Request<v1::DevicesRequest>) -> Result<Response<v1::DevicesResponse>, Status> {
        self.may(request.metadata()).await?;
        devices::devices(self).map(Response::new)
    }

    async fn memory(&self, request: Request<v1::MemoryRequest>) -> Result<Response<v1::MemoryResponse>, Status> {
        self.may(request.metadata()).await?;
        memory::memory(self, &request.into_inner()).map(Response::new)
    }

    async fn supports(&self, request: Request<v1::SupportsRequest>) -> Result<Response<v1::SupportsResponse>, Status> {
        let room = room_of(&request);
        supports::supports(self, request.into_inner(), room).await.map(Response::new)
    }

    async fn progress(&self, request: Request<v1::ProgressRequest>) -> Result<Response<v1::ProgressResponse>, Status> {
        progress::progress(self, &request.into_inner()).map(Response::new)
    }

    async fn trace(&self, request: Request<v1::TraceRequest>) -> Result<Response<v1::TraceResponse>, Status> {
        trace::trace(self, &request.into_inner()).map(Response::new)
    }

    async fn have_blobs(
        &self,
        request: Request<v1::HaveBlobsRequest>,
    ) -> Result<Response<v1::HaveBlobsResponse>, Status> {
        let room = room_of(&request);
        blobs::have(self, request.into_inner(), room).await.map(Response::new)
    }

    async fn place_blobs(
        &self,
        request: Request<v1::PlaceBlobsRequest>,
    ) -> Result<Response<v1::PlaceBlobsResponse>, Status> {
        blobs::place_all(self, request.into_inner()).await.map(Response::new)
    }

    async fn check_blobs(
        &self,
        request: Request<v1::CheckBlobsRequest>,
    ) -> Result<Response<v1::CheckBlobsResponse>, Status> {
        blobs::check_all(self, request.into_inner()).await.map(Response::new)
    }

    type ControlStream = EmptyReplies<v1::ControlReply>;

    async fn control(
        &self,
        _: Request<Streaming<v1::ControlRequest>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        by_hand()
    }

    type QueueStream = EmptyReplies<v1::Reply>;

    async fn queue(&self, _: Request<Streaming<v1::Command>>) -> Result<Response<Self::QueueStream>, Status> {
        by_hand()
    }
}

impl Clone for Service {
    fn clone(&self) -> Self {
        Service { shared: self.shared.clone(), conn: self.conn.clone() }
    }
}
