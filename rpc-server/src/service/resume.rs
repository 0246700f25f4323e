//! Resume: a client takes up its session on another connection.

use super::{Service, status};
use crate::limits::QUIET_TIMEOUT;
use crate::lock;
use crate::logs::limited;
use crate::session::Session;
use bytes::Bytes;
use outboard_core::{Device, Error};
use outboard_proto::error::to_status;
use outboard_proto::v1;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Status};

/// A session that was taken up again: at rest, so that nothing of what was under way touches its memory any more.
pub(super) struct Resumed {
    pub(super) session: Arc<Session>,
    pub(super) age: u64,
    /// The right to its control stream.
    pub(super) alone: OwnedSemaphorePermit,
}

/// Takes a session up again. One that comes while another is under way ends that one, which frees nothing any more, and goes on when
/// it has ended.
pub(super) async fn resume(service: &Service, request: v1::Resume) -> Result<Resumed, Status> {
    let session = session_of(service, &request)?;
    let v1::Resume { session: named, buffers, executables } = request;
    // Before it is taken up: a client without a place must not end what the other connection has under way.
    service.authorise(&session.account)?;
    let age = named.and_then(|named| session.keys.renew(&named.secret)).ok_or_else(|| service.no_session())?;
    session.hear(&service.conn.traffic);
    tokio::select! {
        biased;
        () = session.keys.until_renewed(age) => Err(taken_up_elsewhere()),
        quiet = tokio::time::timeout(QUIET_TIMEOUT, quiet(&session, age)) => match quiet {
            Ok(alone) => {
                let alone = alone.map_err(status)?;
                if let Some(why) = lost(&session) {
                    session.close("a device has lost what it held");
                    return Err(why);
                }
                keep(&session, age, buffers, executables).await.map_err(status)?;
                let peer = service.conn.peer;
                limited!(info, session = session.tag, client = session.client, %peer, "session resumed");
                Ok(Resumed { session, age, alone })
            }
            Err(_) => {
                let what = "its devices to leave what the lost connection has given them".into();
                Err(status(Error::Timeout { what, after: QUIET_TIMEOUT }))
            }
        },
    }
}

/// The session that is to be taken up again, if its client knows the secret.
pub(super) fn session_of(service: &Service, request: &v1::Resume) -> Result<Arc<Session>, Status> {
    let named = request.session.as_ref().ok_or_else(|| service.no_session())?;
    let found = lock(&service.shared.sessions).get(&named.id).cloned();
    found.filter(|session| session.keys.may_renew(&named.secret)).ok_or_else(|| service.no_session())
}

/// The answer to who comes too late.
pub(super) fn taken_up_elsewhere() -> Status {
    Status::unauthenticated("the session was taken up again elsewhere")
}

/// Waits until nothing of what was under way before this age is left: the control stream, or another that takes the session up;
/// jobs of its thread; queues.
async fn quiet(session: &Arc<Session>, age: u64) -> outboard_core::Result<OwnedSemaphorePermit> {
    let alone = session.control.clone().acquire_owned().await.map_err(|_| Error::Cancelled)?;
    // Queues that were being opened when the secret changed are open behind this, or never will be.
    let owner = session.clone();
    session.worker.run(move || owner.at_age(age).map(drop)).await?;
    session.until(|| (session.live_queues.load(Ordering::Acquire) == 0).then_some(())).await?;
    Ok(alone)
}

/// Why the session cannot be taken up again: a device that it has used has lost what it held, while this server goes on. One that got no
/// further is named, so that its client leaves out that one alone.
fn lost(session: &Session) -> Option<Status> {
    let mut errors: Vec<Error> = session.devices.all().iter().filter_map(|device| why_lost(device.as_ref())).collect();
    let at = errors.iter().position(|error| matches!(error, Error::Device { .. })).unwrap_or(0);
    let why = (at < errors.len()).then(|| errors.swap_remove(at))?;
    let refused = to_status(&why);
    // For good: another try would find the same.
    Some(Status::with_details(Code::NotFound, refused.message(), Bytes::copy_from_slice(refused.details())))
}

fn why_lost(device: &dyn Device) -> Option<Error> {
    match device.resume().err()? {
        late @ Error::Timeout { .. } => {
            Some(Error::Device { device: device.info().name.clone(), op: None, detail: late.to_string() })
        }
        error => Some(error),
    }
}

/// Frees all but these handles, unless the session has been taken up again meanwhile.
async fn keep(session: &Arc<Session>, age: u64, buffers: Vec<u64>, executables: Vec<u64>) -> outboard_core::Result<()> {
    let owner = session.clone();
    let job = move || {
        // What is taken out of the books while its age is the session's; dropping it may take long.
        let gone = owner.keys.while_at(age, || owner.all_but(&buffers, &executables));
        gone.map(drop).ok_or(Error::Cancelled)
    };
    session.worker.run(job).await
}
