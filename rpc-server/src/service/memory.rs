//! Memory: of one device, now.

use super::{Service, status};
use crate::devices::memory as memory_of;
use outboard_proto::v1;
use tonic::Status;

pub(super) fn memory(service: &Service, request: &v1::MemoryRequest) -> Result<v1::MemoryResponse, Status> {
    let device = service.shared.devices.get(&request.device).map_err(status)?;
    let memory = memory_of(device.as_ref(), &service.account()).map_err(status)?;
    Ok(v1::MemoryResponse { total: memory.total, free: memory.free })
}
