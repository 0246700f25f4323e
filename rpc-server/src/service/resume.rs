//! Resume: a client takes up its session on another connection.

use super::{Service, status};
use crate::limits::QUIET_TIMEOUT;
use crate::lock;
use crate::logs::limited;
use crate::session::Session;
use outboard_core::Error;
use outboard_proto::limits::MAX_HANDLES;
use outboard_proto::v1;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::Status;

/// The session, at rest: nothing of what was under way touches its memory any more. And its age.
pub(super) async fn resume(service: &Service, request: v1::Resume) -> Result<(Arc<Session>, u64), Status> {
    let v1::Resume { session, buffers, executables } = request;
    if buffers.len() > MAX_HANDLES || executables.len() > MAX_HANDLES {
        return Err(Status::invalid_argument(format!("a session has {MAX_HANDLES} buffers, or executables, at most")));
    }
    let named = session.ok_or_else(|| service.no_session())?;
    let found = lock(&service.shared.sessions).get(&named.id).cloned();
    let renewed = found.and_then(|session| session.keys.renew(&named.secret).map(|age| (session, age)));
    let (session, age) = renewed.ok_or_else(|| service.no_session())?;
    session.hear(&service.conn.traffic);
    service.conn.authorise();
    let quiet = async {
        // Queues that were being opened when the secret changed are open behind this, or never will be.
        session.worker.run(|| Ok(())).await?;
        session.until(|| (session.live_queues.load(Ordering::Acquire) == 0).then_some(())).await
    };
    match tokio::time::timeout(QUIET_TIMEOUT, quiet).await {
        Ok(done) => done.map_err(status)?,
        Err(_) => {
            let what = "its devices to leave what the lost connection has given them".into();
            return Err(status(Error::Timeout { what, after: QUIET_TIMEOUT }));
        }
    }
    let owner = session.clone();
    let kept = session.worker.run(move || {
        owner.keep_only(&buffers, &executables);
        Ok(())
    });
    kept.await.map_err(status)?;
    limited!(info, session = session.tag, client = session.client, peer = %service.conn.peer, "session resumed");
    Ok((session, age))
}
