//! The service: one file per call or stream.

mod blobs;
pub(crate) mod bulk;
mod control;
mod devices;
mod hello;
mod memory;
mod peers;
mod progress;
mod queue;
mod resume;
mod supports;
mod trace;

use crate::accounts::Account;
use crate::conn::Conn;
use crate::limits::FIRST_MESSAGE;
use crate::lock;
use crate::logs::limited;
use crate::server::Shared;
use crate::session::Session;
use outboard_core::Error;
use outboard_proto::error::to_status;
use outboard_proto::v1;
use std::sync::Arc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

type Replies<T> = ReceiverStream<Result<T, Status>>;

/// What one connection can call.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) conn: Arc<Conn>,
}

impl Service {
    /// The session that a message names, if it proves that it may.
    fn session(&self, session: Option<&v1::Session>) -> Result<Arc<Session>, Status> {
        let found = session.and_then(|s| {
            let found = lock(&self.shared.sessions).get(&s.id).cloned();
            found.filter(|found| found.has_secret(&s.secret))
        });
        let found = found.ok_or_else(|| self.no_session())?;
        found.hear(&self.conn.traffic);
        self.conn.authorise();
        Ok(found)
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
        self.shared.accounts.of(self.conn.who(), self.conn.peer.ip())
    }

    /// Whether a call that names no session may be made: its client has been let in before, or shows a token now.
    fn may(&self, metadata: &MetadataMap) -> Result<(), Status> {
        match self.conn.is_authorised() {
            true => Ok(()),
            false => self.admit(metadata),
        }
    }

    /// Checks the token of a call, if one is needed, and keeps the name that it stands for.
    fn admit(&self, metadata: &MetadataMap) -> Result<(), Status> {
        match self.shared.trust.check(metadata) {
            Ok(name) => {
                let counted = self.conn.is(&self.shared, name.map(|name| name.to_string()));
                counted.map_err(|e| Status::resource_exhausted(e.to_string()))?;
                self.conn.authorise();
                Ok(())
            }
            Err(status) => {
                self.shared.metrics.refused("token");
                self.complain(None, "a client was not let in", &status.message());
                Err(status)
            }
        }
    }

    /// A stream broke. If that is because of what came on it, the connection ends.
    fn broken(&self, session: Option<&Session>, status: &Status) {
        if matches!(status.code(), UNDECODABLE | Code::OutOfRange | Code::ResourceExhausted) {
            self.shared.metrics.undecodable();
            self.complain(session, "connection closed, its bytes cannot be decoded", &status.message());
            self.conn.give_up();
        }
    }

    /// A line about a client that does not keep to the protocol.
    pub(crate) fn complain(&self, session: Option<&Session>, what: &str, why: &dyn std::fmt::Display) {
        let session = session.map(|s| s.tag.clone()).or_else(|| self.conn.session_tag());
        limited!(warn, peer = %self.conn.peer, session, "{what}: {why}");
    }
}

/// The code of a message that cannot be decoded.
pub(crate) const UNDECODABLE: Code = Code::Internal;

/// The first message of a stream.
async fn first<T>(service: &Service, stream: &mut Streaming<T>) -> Result<T, Status> {
    match tokio::time::timeout(FIRST_MESSAGE, stream.message()).await {
        Ok(message) => message
            .inspect_err(|status| service.broken(None, status))?
            .ok_or_else(|| Status::invalid_argument("the stream ended before its first message")),
        Err(_) => Err(Status::deadline_exceeded("the stream has said nothing")),
    }
}

/// The next message of a stream of a session: `None` at its end, when it breaks, or when the session ends.
async fn next<T>(service: &Service, stream: &mut Streaming<T>, session: &Session) -> Option<T> {
    tokio::select! {
        biased;
        message = stream.message() => message.unwrap_or_else(|status| {
            service.broken(Some(session), &status);
            None
        }),
        () = session.until_closed() => None,
    }
}

fn status(error: Error) -> Status {
    to_status(&error)
}

#[tonic::async_trait]
impl v1::outboard_server::Outboard for Service {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        self.admit(request.metadata())?;
        hello::hello(self, request.into_inner()).map(Response::new)
    }

    async fn devices(&self, request: Request<v1::DevicesRequest>) -> Result<Response<v1::DevicesResponse>, Status> {
        self.may(request.metadata())?;
        devices::devices(self).map(Response::new)
    }

    async fn memory(&self, request: Request<v1::MemoryRequest>) -> Result<Response<v1::MemoryResponse>, Status> {
        self.may(request.metadata())?;
        memory::memory(self, &request.into_inner()).map(Response::new)
    }

    async fn supports(&self, request: Request<v1::SupportsRequest>) -> Result<Response<v1::SupportsResponse>, Status> {
        supports::supports(self, request.into_inner()).await.map(Response::new)
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
        blobs::have(self, request.into_inner()).await.map(Response::new)
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

    type ControlStream = Replies<v1::ControlReply>;

    async fn control(
        &self,
        request: Request<Streaming<v1::ControlRequest>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        Ok(Response::new(control::start(self, request.into_inner())))
    }

    type QueueStream = queue::Replies;

    async fn queue(&self, request: Request<Streaming<v1::Command>>) -> Result<Response<Self::QueueStream>, Status> {
        Ok(Response::new(queue::start(self, request.into_inner())))
    }
}

impl Clone for Service {
    fn clone(&self) -> Self {
        Service { shared: self.shared.clone(), conn: self.conn.clone() }
    }
}
