//! What clients ask about other servers.

use super::{Service, status};
use outboard_core::Error;
use outboard_proto::v1;
use std::sync::atomic::Ordering;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl v1::peers_server::Peers for Service {
    async fn reach(&self, request: Request<v1::ReachRequest>) -> Result<Response<v1::ReachResponse>, Status> {
        let request = request.into_inner();
        let session = self.session(request.session.as_ref())?;
        let target = request.target.ok_or_else(|| Status::invalid_argument("a target is missing"))?;
        let reached = self.shared.peers.reach(&session, &target).await;
        let obstacle = match reached {
            Ok(()) => String::new(),
            // The client knows the name.
            Err(Error::Peer { detail, .. }) => detail,
            Err(e) => return Err(status(e)),
        };
        Ok(Response::new(v1::ReachResponse { obstacle }))
    }

    async fn traffic(&self, request: Request<v1::TrafficRequest>) -> Result<Response<v1::TrafficResponse>, Status> {
        let session = self.session(request.into_inner().session.as_ref())?;
        Ok(Response::new(v1::TrafficResponse { peer_bytes: session.peer_bytes.load(Ordering::Relaxed) }))
    }
}
