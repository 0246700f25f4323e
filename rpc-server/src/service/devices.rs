//! Devices: the list, for anyone.

use super::{Service, status};
use outboard_proto::v1;
use tonic::Status;

pub(super) fn devices(service: &Service) -> Result<v1::DevicesResponse, Status> {
    Ok(v1::DevicesResponse { devices: service.shared.devices.to_wire(&service.account()).map_err(status)? })
}
