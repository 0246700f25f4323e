//! Speed: what a device does in a second.

use super::call::CallRoom;
use super::{Service, status};
use outboard_proto::v1;
use tonic::Status;

pub(super) async fn speed(
    service: &Service,
    request: v1::SpeedRequest,
    room: Option<CallRoom>,
) -> Result<v1::SpeedResponse, Status> {
    let session = service.session(request.session.as_ref())?;
    let device = session.devices.get(&request.device).map_err(status)?.clone();
    let work = move || {
        // A client that gives the call up does not end its work.
        let _room = room;
        Ok(device.speed())
    };
    let speed = session.worker.run(work).await.map_err(status)?;
    let speed = speed.map(|s| v1::SpeedResponse { measured: true, bandwidth: s.bandwidth, flops: s.flops });
    Ok(speed.unwrap_or_default())
}
