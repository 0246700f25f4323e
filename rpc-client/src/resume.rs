//! Takes a session up again after its connection was lost, while the server keeps it.

use crate::command::{Job, drive};
use crate::connection::{Connection, control_lane};
use crate::session::Handles;
use crate::transport::{self, Conn, Purpose, runtime};
use outboard_core::{Error, Result};
use outboard_net::{Dialer, REFUSED};
use outboard_proto::error::from_status;
use outboard_proto::v1::control_reply::Reply;
use outboard_proto::v1::control_request::Request;
use outboard_proto::{SECRET_BYTES, v1};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tonic::codec::Streaming;
use tonic::{Code, Status};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// For a connection, handshakes included: a new try is better than packets that were lost on a network that is back.
const CONNECT: Duration = Duration::from_millis(1500);
/// For the answer of a server that is connected and answers pings: it waits for its devices to leave what they were given.
const ANSWER: Duration = Duration::from_secs(10);
/// A host that is there and on which nobody listens for this long has lost its server: long enough for a tunnel that is started again at once. Texts stand
/// still meanwhile.
const NOBODY: Duration = Duration::from_millis(200);

/// How a try has failed.
enum Failed {
    /// The session is lost.
    ForGood(Error),
    /// Nobody listens.
    Refused(Error),
    /// It may be there again in a moment.
    ForNow(Error),
}

impl Failed {
    fn error(self) -> Error {
        let (Failed::ForGood(error) | Failed::Refused(error) | Failed::ForNow(error)) = self;
        error
    }
}

/// A connection that the session goes on with.
struct Again {
    dialer: Dialer,
    conn: Conn,
    ended: tokio::task::JoinHandle<String>,
    stream: Streaming<v1::ControlReply>,
    session: v1::Session,
    control: Arc<crate::lane::Lane>,
}

/// Goes on with the session of a lost connection on a new one, on a thread of its own. Tries for as long as the server keeps it.
pub(crate) fn resume(
    old: &Arc<Connection>,
    held: &Handles,
    lease: Duration,
) -> Result<(Arc<Connection>, Receiver<()>)> {
    let runtime = runtime().map_err(|e| old.lost(format!("no event loop: {e}")))?;
    let (opened, result) = sync_channel(1);
    let (running, ended) = sync_channel(0);
    let request = v1::Resume {
        session: Some(old.session.clone()),
        buffers: held.buffers.iter().copied().collect(),
        executables: held.executables.iter().copied().collect(),
    };
    let from = old.clone();
    let spawned = std::thread::Builder::new().name(format!("rpc {}", old.name)).spawn(move || {
        let _running: SyncSender<()> = running;
        runtime.block_on(run(&from, request, lease, opened));
        runtime.shutdown_background();
    });
    spawned.map_err(|e| old.lost(format!("no thread: {e}")))?;
    // The thread has deadlines of its own; this one is for a process that is very slow.
    let wait = lease + CONNECT + 2 * ANSWER;
    let late = |_| Err(old.lost("its session could not be taken up again in time"));
    Ok((result.recv_timeout(wait).unwrap_or_else(late)?, ended))
}

async fn run(old: &Arc<Connection>, request: v1::Resume, lease: Duration, opened: SyncSender<Result<Arc<Connection>>>) {
    let again = match until_again(old, &request, lease).await {
        Ok(again) => again,
        Err(e) => return drop(opened.send(Err(e))),
    };
    let Again { dialer, conn, ended, stream, session, control } = again;
    let (jobs, todo): (_, UnboundedReceiver<Job>) = unbounded_channel();
    old.peers.begin_again();
    let who = (session, old.incarnation);
    let connection = Connection::new(dialer, old.options.clone(), who, old.lasting(), control, jobs);
    if opened.send(Ok(connection.clone())).is_ok() {
        drive(&connection, conn, ended, Some(stream), todo).await;
    }
}

async fn until_again(old: &Connection, request: &v1::Resume, lease: Duration) -> Result<Again> {
    let start = Instant::now();
    let mut refused_since = None;
    loop {
        let failed = match attempt(old, request).await {
            Ok(again) => return Ok(again),
            Err(failed) => failed,
        };
        let over = match &failed {
            Failed::ForGood(_) => true,
            Failed::Refused(_) => refused_since.get_or_insert_with(Instant::now).elapsed() >= NOBODY,
            Failed::ForNow(_) => {
                refused_since = None;
                false
            }
        };
        if over || start.elapsed() >= lease {
            return Err(failed.error());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn attempt(old: &Connection, request: &v1::Resume) -> std::result::Result<Again, Failed> {
    let for_now = |detail: String| Failed::ForNow(old.lost(detail));
    let dialer = Dialer::new(old.dialer.endpoint().clone(), old.options.tls.clone());
    let opening = transport::open(&dialer, &old.counters, Purpose::Commands(old.options.dead_after));
    let opened = match tokio::time::timeout(CONNECT, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(Error::Peer { detail, .. })) if detail == REFUSED => return Err(Failed::Refused(old.lost(REFUSED))),
        Ok(Err(e)) => return Err(Failed::ForNow(e)),
        Err(_) => return Err(for_now("no answer; check the network and the firewall".into())),
    };
    let conn = opened.conn;
    let mut ended = tokio::spawn(opened.driver);
    let control = control_lane(Request::Resume(request.clone()));
    let answer = async {
        let mut stream = conn.stream::<v1::ControlReply>("Control", control.clone()).await.map_err(for_now)?;
        match stream.message().await {
            Ok(Some(v1::ControlReply { reply: Some(Reply::Resumed(v1::Resumed { session: Some(session) })) }))
                if session.secret.len() == SECRET_BYTES =>
            {
                Ok((stream, session))
            }
            Ok(Some(_)) => Err(Failed::ForGood(old.lost("gave another answer than was asked for"))),
            Ok(None) => Err(for_now("the connection was lost again".into())),
            Err(status) => Err(refusal(&status, old)),
        }
    };
    let answered = tokio::select! {
        biased;
        answered = tokio::time::timeout(ANSWER, answer) => answered,
        why = &mut ended => return Err(for_now(why.unwrap_or_else(|_| "its event loop failed".into()))),
    };
    let (stream, session) = answered.unwrap_or_else(|_| Err(for_now("it does not answer".into())))?;
    Ok(Again { dialer, conn, ended, stream, session, control })
}

/// What the status of a refused request means.
fn refusal(status: &Status, old: &Connection) -> Failed {
    let error = from_status(status, &old.name);
    match status.code() {
        // There is no such session, or this is no server that could have it.
        Code::Unauthenticated
        | Code::InvalidArgument
        | Code::Unimplemented
        | Code::NotFound
        | Code::PermissionDenied => Failed::ForGood(error),
        _ => Failed::ForNow(error),
    }
}
