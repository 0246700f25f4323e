//! Blobs: which of them this server has, and copying them into a session's buffers.

use super::call::CallRoom;
use super::{Service, status};
use crate::blobs::{Blobs, Placing, check, place};
use crate::limits::MODELS_WAIT;
use crate::session::Session;
use outboard_core::Error;
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
    let asked = decode_question(&request.blobs).map_err(status)?;
    let sizes: Vec<u64> = asked.iter().map(|blob| blob.len).collect();
    let look = move || {
        let _room = room;
        blobs.wait_for_models(MODELS_WAIT);
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
    let placed = work(service, request.session.as_ref(), &request.blobs, place).await?;
    Ok(v1::PlaceBlobsResponse { placed: graph::flags_to_bits(&placed) })
}

/// Reads blobs from their places and answers which of them have their digest; those are kept.
pub(super) async fn check_all(
    service: &Service,
    request: v1::CheckBlobsRequest,
) -> Result<v1::CheckBlobsResponse, Status> {
    let good = work(service, request.session.as_ref(), &request.blobs, check).await?;
    Ok(v1::CheckBlobsResponse { good: graph::flags_to_bits(&good) })
}

/// Does something with blobs and their places, on a thread of its own, when it is its turn.
async fn work(
    service: &Service,
    session: Option<&v1::Session>,
    places: &[u8],
    what: fn(&Session, &Blobs, &[Placing]) -> outboard_core::Result<Vec<bool>>,
) -> Result<Vec<bool>, Status> {
    let session = service.session(session)?;
    let blobs = blobs(service)?;
    let places = decode_places(places).map_err(status)?;
    let places = places.into_iter().map(|p| placing(&session, p)).collect::<Result<Vec<_>, _>>();
    let places = places.map_err(status)?;
    let _turn = tokio::select! {
        turn = blobs.placing.acquire() => turn.map_err(|_| status(Error::Cancelled))?,
        () = session.until_closed() => return Err(status(Error::Cancelled)),
    };
    let (to, placed) = tokio::sync::oneshot::channel();
    let (owner, from) = (session.clone(), blobs.clone());
    let spawned = std::thread::Builder::new().name("place".into()).spawn(move || {
        // A client that has gone does not matter.
        let _ = to.send(what(&owner, &from, &places));
    });
    spawned.map_err(|e| status(Error::Request(format!("no thread to place blobs: {e}"))))?;
    let bug = |_| status(Error::Request("placing blobs failed because of a bug of the server; see its log".into()));
    placed.await.map_err(bug)?.map_err(status)
}

fn blobs(service: &Service) -> Result<Arc<Blobs>, Status> {
    let blobs = service.shared.blobs.clone();
    blobs.ok_or_else(|| status(Error::Request("this server keeps no blobs; start it with -c or --models".into())))
}

fn placing(session: &Session, place: Place) -> outboard_core::Result<Placing> {
    let Place { blob, buffer, offset } = place;
    let uid = session.device_of(buffer)?;
    let device = session.devices.by_uid(uid)?.clone();
    let dst = session.slice(device.as_ref(), Some(v1::Slice { buffer, offset, len: blob.len }))?;
    Ok(Placing { device, dst, blob })
}
