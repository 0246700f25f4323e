//! Supports: which nodes of a graph a device can compute.

use super::call::CallRoom;
use super::{Service, status, takes};
use outboard_proto::{graph, v1};
use tonic::Status;

pub(super) async fn supports(
    service: &Service,
    request: v1::SupportsRequest,
    room: Option<CallRoom>,
) -> Result<v1::SupportsResponse, Status> {
    let session = service.session(request.session.as_ref())?;
    let device = session.devices.get(&request.device).map_err(status)?.clone();
    let account = session.account.clone();
    let work = move || {
        // A client that gives the call up does not end its work.
        let _room = room;
        let _share = account.graph(takes(&request.graph))?;
        let (graph, known) = graph::decode_known(&request.graph)?;
        let set = device.supports(&graph)?;
        Ok(known.iter().zip(set.flags()).map(|(known, supported)| *known && *supported).collect::<Vec<_>>())
    };
    let flags = session.worker.run(work).await.map_err(status)?;
    Ok(v1::SupportsResponse { supported: graph::flags_to_bits(&flags) })
}
