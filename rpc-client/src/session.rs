//! A session with an endpoint: the connection that it has now, and the handles that its server is to keep.

use crate::command::Connected;
use crate::connection::Connection;
use crate::lock;
use crate::resume::resume;
use outboard_core::{Error, Result};
use outboard_net::Endpoint;
use outboard_proto::FEATURE_RESUME;
use outboard_proto::{frame, v1};
use std::collections::HashSet;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the last one who lets go of an endpoint waits for the server to have freed all.
const GOODBYE: Duration = Duration::from_secs(2);
/// Longest time that a session is tried to be taken up again, whatever its server says: a run has better things to do.
const MAX_LEASE: Duration = Duration::from_secs(60);

/// Held by all that uses an endpoint. When the last one is gone, the session ends.
pub(crate) struct Session {
    pub(crate) endpoint: Endpoint,
    now: Mutex<Running>,
    /// Why it cannot be taken up again, if that was tried and is so. Held while it is taken up again.
    over: Mutex<Option<Error>>,
    /// How long the server keeps the session without hearing from this client; `None` if it cannot be taken up again.
    lease: Option<Duration>,
    handles: Mutex<Handles>,
    /// Names of its devices.
    pub(crate) devices: HashSet<String>,
}

/// The connection of a session.
struct Running {
    connection: Arc<Connection>,
    /// Ends when the command thread does.
    ended: Receiver<()>,
}

/// Handles that are in use here: what the server is to keep.
#[derive(Clone, Default)]
pub(crate) struct Handles {
    pub(crate) buffers: HashSet<u64>,
    pub(crate) executables: HashSet<u64>,
}

impl Session {
    pub(crate) fn new(Connected { connection, hello, ended }: Connected) -> (Arc<Session>, v1::HelloResponse) {
        let resumable = hello.features.iter().any(|f| f == FEATURE_RESUME);
        let session = Session {
            endpoint: connection.dialer.endpoint().clone(),
            now: Mutex::new(Running { connection, ended }),
            over: Mutex::default(),
            lease: resumable.then_some(Duration::from_millis(hello.lease_ms).min(MAX_LEASE)),
            handles: Mutex::default(),
            devices: hello.devices.iter().map(|device| device.name.clone()).collect(),
        };
        (Arc::new(session), hello)
    }

    /// The connection that the session has now.
    pub(crate) fn connection(&self) -> Arc<Connection> {
        lock(&self.now).connection.clone()
    }

    /// Takes the session up again on a new connection: what it holds stays, its queues are given up. Nothing is done where no queue
    /// has been opened since the last time. If one of its server's devices is to blame that it cannot be, the error is that device's, for whichever
    /// device it is asked.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut over = lock(&self.over);
        if let Some(error) = over.as_ref() {
            return Err(error.clone());
        }
        let old = self.connection();
        let lost = old.check().err();
        if old.is_given_up() {
            let (what, after) = (format!("{} to get any further", old.name), old.options.stall_after);
            return Err(Error::Timeout { what, after });
        }
        if lost.is_none() && !old.queues.were_opened() {
            return Ok(());
        }
        let Some(lease) = self.lease else {
            return Err(lost.unwrap_or_else(|| old.lost("it cannot take up a session again; install a newer release")));
        };
        old.kill(old.lost("its queues were given up"));
        let handles = lock(&self.handles).clone();
        let resumed = resume(&old, &handles, lease);
        let resumed = resumed.map_err(|why| with_reason(lost, why));
        let (connection, ended) = resumed.inspect_err(|error| *over = Some(error.clone()))?;
        *lock(&self.now) = Running { connection: connection.clone(), ended };
        // What was dropped in the meantime was said to nobody.
        let now = lock(&self.handles);
        handles.buffers.difference(&now.buffers).for_each(|&handle| connection.free_buffer(handle));
        handles.executables.difference(&now.executables).for_each(|&handle| connection.free_executable(handle));
        Ok(())
    }

    /// Notes a buffer.
    pub(crate) fn hold_buffer(&self, handle: u64) {
        lock(&self.handles).buffers.insert(handle);
    }

    /// Notes an executable.
    pub(crate) fn hold_executable(&self, handle: u64) {
        lock(&self.handles).executables.insert(handle);
    }

    /// Lets the server forget a buffer, soon.
    pub(crate) fn free_buffer(&self, handle: u64) {
        lock(&self.handles).buffers.remove(&handle);
        self.connection().free_buffer(handle);
    }

    /// Lets the server forget an executable, soon.
    pub(crate) fn free_executable(&self, handle: u64) {
        lock(&self.handles).executables.remove(&handle);
        self.connection().free_executable(handle);
    }
}

/// The error of a session that could not be taken up again: why its connection was lost, too.
fn with_reason(lost: Option<Error>, why: Error) -> Error {
    match (lost, why) {
        (Some(Error::Peer { endpoint, detail }), Error::Peer { detail: why, .. }) => {
            Error::Peer { endpoint, detail: format!("{detail}, and its session is lost: {why}") }
        }
        (_, why) => why,
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let now = lock(&self.now);
        let connection = &now.connection;
        connection.leave();
        connection.control.push_now(|out| out.extend_from_slice(&frame::goodbye()));
        connection.control.close();
        let _ = now.ended.recv_timeout(GOODBYE);
        connection.kill(connection.lost("the session was ended"));
    }
}
