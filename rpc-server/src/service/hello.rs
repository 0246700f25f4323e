//! Hello: agrees on a version and opens a session.

use super::{Service, status};
use crate::lock;
use crate::logs::limited;
use crate::session::Session;
use outboard_proto::limits::MAX_NAME;
use outboard_proto::{FEATURE_BLOBS, FEATURE_RESUME, MAX_VERSION, MIN_VERSION, pick_version, v1};
use tonic::Status;

pub(super) fn hello(service: &Service, request: v1::HelloRequest) -> Result<v1::HelloResponse, Status> {
    let (min, max) = (request.min_version, request.max_version);
    let version = pick_version(min, max).ok_or_else(|| {
        Status::failed_precondition(format!(
            "this server (outboard {}) speaks protocol versions {MIN_VERSION} to {MAX_VERSION}, the client {min} to {max}; install the \
             same release on both",
            env!("CARGO_PKG_VERSION")
        ))
    })?;
    if request.client.len() > MAX_NAME {
        return Err(Status::invalid_argument(format!("the client's name has more than {MAX_NAME} bytes")));
    }
    let client: String = request.client.chars().filter(|c| !c.is_control()).collect();
    let shared = &service.shared;
    let permit = shared.permit(&service.conn)?;
    let devices = shared.devices.to_wire(&permit.account).map_err(status)?;
    let session = Session::start(client, service.conn.traffic.clone(), permit, shared).map_err(status)?;
    {
        let mut sessions = lock(&shared.sessions);
        if sessions.len() >= shared.limits.sessions {
            let limit = shared.limits.sessions;
            shared.metrics.refused("sessions");
            return Err(Status::resource_exhausted(format!("{limit} sessions are open already; try again later")));
        }
        sessions.insert(session.id, session.clone());
    }
    shared.metrics.opened();
    let (peer, who) = (service.conn.peer, service.conn.who());
    limited!(info, session = session.tag, client = session.client, who, %peer, version, "session opened");
    Ok(v1::HelloResponse {
        version,
        session: Some(session.to_wire()),
        incarnation: shared.incarnation,
        devices,
        lease_ms: u64::try_from(shared.limits.lease.as_millis()).unwrap_or(u64::MAX),
        features: shared.blobs.iter().map(|_| FEATURE_BLOBS).chain([FEATURE_RESUME]).map(str::to_owned).collect(),
        server: format!("outboard {}", env!("CARGO_PKG_VERSION")),
    })
}
