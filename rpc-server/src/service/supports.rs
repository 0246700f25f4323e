//! Supports: which nodes of a graph a device can compute.

use super::{Service, status};
use outboard_proto::{graph, v1};
use tonic::Status;

pub(super) async fn supports(service: &Service, request: v1::SupportsRequest) -> Result<v1::SupportsResponse, Status> {
    let session = service.session(request.session.as_ref())?;
    let device = session.devices.get(&request.device).map_err(status)?.clone();
    let work = move || {
        let (graph, known) = graph::decode_known(&request.graph)?;
        let set = device.supports(&graph)?;
        Ok(known.iter().zip(set.flags()).map(|(known, supported)| *known && *supported).collect::<Vec<_>>())
    };
    let flags = session.worker.run(work).await.map_err(status)?;
    Ok(v1::SupportsResponse { supported: graph::flags_to_bits(&flags) })
}
