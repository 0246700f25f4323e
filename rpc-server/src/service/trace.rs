//! Trace: when the commands of a session's queues ran.

use super::Service;
use outboard_proto::v1;
use tonic::Status;

pub(super) fn trace(service: &Service, request: &v1::TraceRequest) -> Result<v1::TraceResponse, Status> {
    Ok(service.session(request.session.as_ref())?.trace.fetch(request.record))
}
