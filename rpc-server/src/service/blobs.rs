//! Blobs: which of them this server has, and copying them into a session's buffers.

use super::call::CallRoom;
use super::{Service, status};
use crate::blobs::{Admission, Blobs, Call, Placing, Task};
use crate::limits::MODELS_WAIT;
use crate::session::Session;
use bytes::Bytes;
use outboard_core::{Error, Result as CoreResult};
use outboard_proto::blobs::{Place, decode_places, decode_question};
use outboard_proto::{graph, v1};
use std::sync::Arc;
use tonic::Status;

/// Answers which of the blobs are here. Whoever asks must know the digests, and so, for all that matters, the content; what it
/// learns from the answer is that somebody has given this server that content before.
pub(super) async fn have(
    service: &Service,
    request: v1::HaveBlobsRequest,
    room: Option<CallRoom>,
) -> Result<v1::HaveBlobsResponse, Status> {
    let session = service.session(request.session.as_ref())?;
    let blobs = blobs(service)?;
    let admission = admit(&session).await.map_err(status)?;
    let asked = decode_question(&request.blobs).map_err(status)?;
    let sizes: Vec<u64> = asked.iter().map(|blob| blob.len).collect();
    // Not on the session's thread, which has other things to do.
    let looked = tokio::time::timeout(MODELS_WAIT, blobs.models_looked_at());
    let _ = session.while_open(looked).await.map_err(status)?;
    let look = move || {
        let (_room, _admission) = (room, admission);
        Ok(asked.iter().map(|blob| blobs.has(blob)).collect::<Vec<_>>())
    };
    let have = session.worker.run(look).await.map_err(status)?;
    for (here, bytes) in have.iter().zip(sizes) {
        service.shared.metrics.blob(*here, bytes);
    }
    Ok(v1::HaveBlobsResponse { have: graph::flags_to_bits(&have) })
}

/// Copies blobs to their places, which must be in buffers of the session, and answers when they are there.
pub(super) async fn place_all(
    service: &Service,
    request: v1::PlaceBlobsRequest,
) -> Result<v1::PlaceBlobsResponse, Status> {
    let placed = work(service, request.session.as_ref(), request.blobs, Task::Place).await?;
    Ok(v1::PlaceBlobsResponse { placed: graph::flags_to_bits(&placed) })
}

/// Reads blobs from their places and answers which of them have their digest; those are kept.
pub(super) async fn check_all(
    service: &Service,
    request: v1::CheckBlobsRequest,
) -> Result<v1::CheckBlobsResponse, Status> {
    let good = work(service, request.session.as_ref(), request.blobs, Task::Check).await?;
    Ok(v1::CheckBlobsResponse { good: graph::flags_to_bits(&good) })
}

/// Does something with blobs and their places. When the call is reset this is dropped, and the work ends soon.
async fn work(
    service: &Service,
    session: Option<&v1::Session>,
    encoded: Bytes,
    task: Task,
) -> Result<Vec<bool>, Status> {
    let (session, age) = service.stream(session)?;
    let blobs = blobs(service)?;
    let admission = admit(&session).await.map_err(status)?;
    let places = decode_places(&encoded).map_err(status)?;
    drop(encoded);
    let places = places.into_iter().map(|p| placing(&session, p)).collect::<CoreResult<Vec<_>>>();
    let places = places.map_err(status)?;
    let (call, answer) = Call::new(task, (session.clone(), age), blobs.clone(), places, admission);
    let _underway = blobs.start(call);
    let bug = |_| Error::Request("placing blobs failed because of a bug of the server; see its log".into());
    tokio::select! {
        flags = answer => flags.map_err(bug).flatten().map_err(status),
        () = session.until_closed() => Err(status(Error::Cancelled)),
        () = session.keys.until_renewed(age) => Err(status(Error::Cancelled)),
    }
}

/// Waits until the session may have one more call.
async fn admit(session: &Session) -> CoreResult<Admission> {
    let client = session.account.blob_call()?;
    let permit = session.while_open(session.blob_calls.clone().acquire_owned()).await?;
    Ok(Admission { _client: client, _session: permit.map_err(|_| Error::Cancelled)? })
}

fn blobs(service: &Service) -> Result<Arc<Blobs>, Status> {
    let blobs = service.shared.blobs.clone();
    blobs.ok_or_else(|| status(Error::Request("this server keeps no blobs; start it with -c or --models".into())))
}

fn placing(session: &Session, place: Place) -> CoreResult<Placing> {
    let Place { blob, buffer, offset } = place;
    let device = session.devices.by_uid(session.device_of(buffer)?)?.clone();
    let dst = session.slice(device.as_ref(), Some(v1::Slice { buffer, offset, len: blob.len }))?;
    Ok(Placing { digest: blob.digest, dst })
}
