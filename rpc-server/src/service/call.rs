//! A call, from its head to its answer: which service it is for, and how large its message may be.

use super::messages::room;
use super::{Service, bulk, control, queue};
use crate::conn::CallPlace;
use crate::http2::Incoming;
use crate::limits::{BLOBS_MESSAGE, CALL_MESSAGE, SMALL_MESSAGE};
use crate::peers::inbound;
use crate::room::Room;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use outboard_proto::frame::HEADER;
use outboard_proto::limits::{MAX_GRAPH, MAX_MESSAGE};
use outboard_proto::v1::outboard_server::OutboardServer;
use outboard_proto::v1::peers_server::PeersServer;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

/// The place of a call, for its tasks.
pub(crate) fn place_of<T>(request: &Request<T>) -> Option<Arc<CallPlace>> {
    request.extensions().get().cloned()
}

/// The room of a call's message, among the extensions of its request: for work that may outlive the call.
pub(super) type CallRoom = Arc<Option<Room>>;

/// Answers a call.
pub(crate) async fn answer(service: Service, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let (name, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (name, method) {
        ("outboard.v1.Bulk", "Transfer") => bulk::transfer(service, request),
        ("outboard.v1.Peer", "Push") => inbound::push(service, request),
        ("outboard.v1.Outboard", "Control") => control::start(service, request),
        ("outboard.v1.Outboard", "Queue") => queue::start(service, request),
        ("outboard.v1.Outboard" | "outboard.v1.Peers" | "grpc.health.v1.Health", _) => {
            unary(service, request, name, method).await
        }
        _ => match &service.shared.reflection {
            Some(reflection) => reflection.call(name, request).await.unwrap_or_else(unimplemented),
            None => unimplemented(),
        },
    }
}

fn unimplemented() -> Response<Body> {
    Status::unimplemented("this is an Outboard rpc-server; it has no such service").into_http()
}

/// How large the message of a call may be.
#[derive(Clone, Copy)]
struct Size {
    most: usize,
    /// All of them take room, not only larger ones: there is work for each.
    counted: bool,
}

fn size_of(method: &str) -> Size {
    match method {
        "Supports" => Size { most: MAX_GRAPH + SMALL_MESSAGE, counted: true },
        "HaveBlobs" | "PlaceBlobs" | "CheckBlobs" => Size { most: BLOBS_MESSAGE, counted: true },
        _ => Size { most: SMALL_MESSAGE, counted: false },
    }
}

/// A call with one message. It is read before anything is done with it.
async fn unary(service: Service, request: Request<Incoming>, name: &str, method: &str) -> Response<Body> {
    let size = size_of(method);
    let (mut head, body) = request.into_parts();
    let (message, room) = match gather(&service, body, size).await {
        Ok(gathered) => gathered,
        Err(status) => return status.into_http(),
    };
    head.extensions.insert::<CallRoom>(Arc::new(room));
    let request = Request::from_parts(head, Full::new(message));
    let answer = match name {
        "outboard.v1.Outboard" => {
            let outboard = OutboardServer::new(service).max_decoding_message_size(size.most);
            outboard.max_encoding_message_size(MAX_MESSAGE).call(request).await
        }
        "outboard.v1.Peers" => PeersServer::new(service).call(request).await,
        _ => {
            let health = HealthService::from_health_reporter(service.shared.health.clone());
            HealthServer::new(health).call(request).await
        }
    };
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The framed message of a call, and room for it while it is worked on.
async fn gather(service: &Service, mut body: Incoming, size: Size) -> Result<(Bytes, Option<Room>), Status> {
    let end = tokio::time::Instant::now() + CALL_MESSAGE;
    let (mut bytes, mut taken) = (BytesMut::new(), None);
    let mut most = None;
    loop {
        let frame = tokio::time::timeout_at(end, body.frame()).await;
        let late = |_| Status::deadline_exceeded("the message of the call did not come to its end");
        let Some(frame) = frame.map_err(late)? else { return Ok((bytes.freeze(), taken)) };
        let data = frame.map_err(|e| Status::cancelled(e.to_string()))?.into_data().unwrap_or_default();
        if bytes.len() + data.len() > HEADER + size.most {
            return Err(too_large(bytes.len() + data.len(), size.most));
        }
        bytes.extend_from_slice(&data);
        if most.is_none()
            && let Some(&[_, a, b, c, d]) = bytes.first_chunk::<HEADER>()
        {
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            taken = admit(service, len, size).await?;
            // Address space: memory is taken as it is filled.
            bytes.reserve((HEADER + len).saturating_sub(bytes.len()));
            most = Some(HEADER + len);
        }
        if most.is_some_and(|most| bytes.len() > most) {
            return Err(Status::invalid_argument("more bytes than the message of the call has"));
        }
    }
}

/// Whether a message may be so large, and room for it if it takes some.
async fn admit(service: &Service, len: usize, size: Size) -> Result<Option<Room>, Status> {
    if len > size.most {
        return Err(too_large(len, size.most));
    }
    if !service.conn.is_authorised() {
        // Its bytes come out of what is read from a stranger.
        if len <= SMALL_MESSAGE {
            return Ok(None);
        }
        return Err(Status::unauthenticated(format!(
            "a message of {len} bytes before its client has said who it is; open a session on this connection first"
        )));
    }
    if !size.counted {
        return Ok(None);
    }
    let account = service.conn.account(&service.shared, None);
    room(&account.messages, len.max(SMALL_MESSAGE)).await.map(Some)
}

fn too_large(len: usize, most: usize) -> Status {
    Status::out_of_range(format!("a message of {len} bytes, {most} at most for this call"))
}
