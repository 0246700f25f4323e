//! Progress: how far a session's queues are.

use super::Service;
use crate::lock;
use outboard_proto::v1;
use tonic::Status;

pub(super) fn progress(service: &Service, request: &v1::ProgressRequest) -> Result<v1::ProgressResponse, Status> {
    let session = service.session(request.session.as_ref())?;
    let queues = lock(&session.queues).iter().filter_map(|(&handle, state)| state.progress(handle)).collect();
    Ok(v1::ProgressResponse { queues })
}
