//! Memory: of one device, now.

use super::{Service, status};
use outboard_proto::v1;
use tonic::Status;

pub(super) fn memory(service: &Service, request: &v1::MemoryRequest) -> Result<v1::MemoryResponse, Status> {
    let memory = service.shared.devices.get(&request.device).and_then(|d| d.memory()).map_err(status)?;
    Ok(v1::MemoryResponse { total: memory.total, free: memory.free })
}
