//! The control stream of a session: memory and executables.

use super::{Replies, Service, first, next, resume};
use crate::limits::{FREES_TIMEOUT, OPEN_TIMEOUT, PENDING_FREES, REPLIES, STOP_TIMEOUT};
use crate::lock;
use crate::logs::limited;
use crate::session::Session;
use outboard_core::{Device, Error, Placement};
use outboard_proto::device::usage_from_name;
use outboard_proto::limits::MAX_FREE;
use outboard_proto::v1::control_reply::Reply;
use outboard_proto::v1::control_request::Request;
use outboard_proto::{error, graph, places, v1};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

type Out = Sender<Result<v1::ControlReply, Status>>;

pub(super) fn start(service: &Service, stream: Streaming<v1::ControlRequest>) -> Replies<v1::ControlReply> {
    let (out, replies) = channel(REPLIES);
    let service = service.clone();
    tokio::spawn(async move {
        if let Err(status) = run(&service, stream, &out).await {
            service.complain(None, "control stream refused", &status.message());
            let _ = out.send(Err(status)).await;
        }
    });
    ReceiverStream::new(replies)
}

async fn run(service: &Service, mut stream: Streaming<v1::ControlRequest>, out: &Out) -> Result<(), Status> {
    let (session, age, reply) = match first(service, &mut stream).await?.request {
        Some(Request::Attach(attach)) => {
            let (session, age) = service.stream(Some(&attach))?;
            (session, age, Reply::Attached(v1::Attached {}))
        }
        Some(Request::Resume(request)) => {
            let (session, age) = resume::resume(service, request).await?;
            let now = session.to_wire();
            (session, age, Reply::Resumed(v1::Resumed { session: Some(now) }))
        }
        _ => return Err(Status::invalid_argument("the first message must name the session")),
    };
    service.conn.attach(&service.shared, &session);
    send(out, reply).await;
    tokio::select! {
        biased;
        done = requests(service, stream, &session, out) => done,
        () = session.keys.until_renewed(age) => Ok(()),
    }
}

/// Carries out what comes on the stream.
async fn requests(
    service: &Service,
    mut stream: Streaming<v1::ControlRequest>,
    session: &Arc<Session>,
    out: &Out,
) -> Result<(), Status> {
    while let Some(message) = next(service, &mut stream, session).await {
        match message.request {
            Some(Request::Alloc(c)) => {
                let result = alloc(session, &c).await;
                answer(service, out, c.request, result).await;
            }
            Some(Request::Compile(c)) => {
                let request = c.request;
                let result = compile(session, c).await;
                answer(service, out, request, result).await;
            }
            Some(Request::Free(c)) => {
                // The session may end before there is room; the next message will not come then.
                let room = || (session.frees.load(Ordering::Acquire) < PENDING_FREES).then_some(());
                if session.until(room).await.is_ok() {
                    free(session, c);
                }
            }
            Some(Request::Goodbye(_)) => {
                service.shared.end(session, "the client said goodbye");
                wait_ended(session).await;
                send(out, Reply::Bye(v1::Bye {})).await;
                return Ok(());
            }
            // A request of a later version has no number that we could answer; the stream cannot go on in step.
            Some(Request::Attach(_) | Request::Resume(_)) | None => {
                return Err(Status::invalid_argument("a request that this release does not know"));
            }
        }
    }
    Ok(())
}

async fn send(out: &Out, reply: Reply) {
    // A client that does not read its replies has gone.
    let _ = out.send(Ok(v1::ControlReply { reply: Some(reply) })).await;
}

async fn answer(service: &Service, out: &Out, request: u64, result: outboard_core::Result<()>) {
    if let Err(error) = &result {
        service.shared.metrics.error(error);
    }
    let error = result.err().map(|e| error::to_wire(&e));
    send(out, Reply::Done(v1::Done { request, error })).await;
}

async fn alloc(session: &Arc<Session>, c: &v1::Alloc) -> outboard_core::Result<()> {
    let device = session.devices.get(&c.device)?.clone();
    let (handle, size, usage) = (c.buffer, c.size, usage_from_name(&c.usage));
    let attempt = |device: Arc<dyn Device>, owner: Arc<Session>| {
        session.worker.run(move || owner.alloc(device.as_ref(), handle, size, usage))
    };
    let being_freed = session.frees.load(Ordering::Acquire) > 0;
    make_room(session, |s| s.is_full_of_buffers()).await;
    let result = attempt(device.clone(), session.clone()).await;
    if !matches!(result, Err(Error::OutOfMemory { .. })) || !being_freed {
        return result;
    }
    // What the client has dropped may still be in use by commands before it; it counts as free for the client.
    let freed = session.until(|| (session.frees.load(Ordering::Acquire) == 0).then_some(()));
    let _ = tokio::time::timeout(FREES_TIMEOUT, freed).await;
    attempt(device, session.clone()).await
}

/// What the client has dropped may still be in use by commands before it; it counts as free for the client.
async fn make_room(session: &Session, is_full: impl Fn(&Session) -> bool) {
    if is_full(session) {
        let freed = session.until(|| (session.frees.load(Ordering::Acquire) == 0 || !is_full(session)).then_some(()));
        let _ = tokio::time::timeout(FREES_TIMEOUT, freed).await;
    }
}

async fn compile(session: &Arc<Session>, c: v1::Compile) -> outboard_core::Result<()> {
    let device = session.devices.get(&c.device)?.clone();
    let bytes = c.graph.len() as u64;
    make_room(session, |s| s.is_full_of_graphs(bytes)).await;
    let owner = session.clone();
    let work = move || {
        owner.check_executable(c.executable, bytes)?;
        let graph = Arc::new(graph::decode(&c.graph)?);
        let slices = places::decode(&c.places, graph.tensors().len(), |s| owner.slice(device.as_ref(), Some(s)))?;
        let placement = Placement::new(&graph, device.as_ref(), slices)?;
        let executable = device.compile(graph, placement)?;
        owner.add_executable(device.as_ref(), c.executable, executable, bytes)
    };
    session.worker.run(work).await
}

/// Counts as a free that waits until it is dropped: done, or lost with its connection.
struct Waiting(Arc<Session>);

impl Waiting {
    fn new(session: &Arc<Session>) -> Waiting {
        session.frees.fetch_add(1, Ordering::AcqRel);
        Waiting(session.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.frees.fetch_sub(1, Ordering::AcqRel);
        self.0.progress.notify_waiters();
    }
}

/// Whether every queue has done the commands that a free has to wait for. One that is not known may not be open yet: streams do not
/// wait for one another.
fn passed(session: &Session, fences: &[v1::Fence], unknown: bool) -> bool {
    let queues = lock(&session.queues);
    let done = |f: &v1::Fence| queues.get(&f.queue).map_or(unknown || f.commands == 0, |q| q.processed() >= f.commands);
    fences.iter().all(done)
}

/// Frees once every queue has done the commands that came before; nobody waits for it.
fn free(session: &Arc<Session>, c: v1::Free) {
    if c.buffers.len() > MAX_FREE || c.executables.len() > MAX_FREE {
        limited!(debug, session = session.tag, "more than {MAX_FREE} handles in one message are not freed");
        return;
    }
    let waiting = Waiting::new(session);
    let work = move |c: v1::Free| {
        waiting.0.free(&c.buffers, &c.executables);
        drop(waiting);
    };
    // Usually they have; then a request behind this one finds the memory free.
    if passed(session, &c.fences, false) {
        session.worker.post(move || work(c));
        return;
    }
    let session = session.clone();
    tokio::spawn(async move {
        let until = |unknown: bool| {
            let (session, fences) = (&session, &c.fences);
            session.until(move || passed(session, fences, unknown).then_some(()))
        };
        // If the session ends first, it frees everything. A queue that could not be opened has done all that it will.
        let ready = match tokio::time::timeout(OPEN_TIMEOUT, until(false)).await {
            Ok(ready) => ready,
            Err(_) => until(true).await,
        };
        if ready.is_ok() {
            session.worker.post(move || work(c));
        }
    });
}

/// Waits until all of an ended session is freed, so that the client's goodbye means it.
async fn wait_ended(session: &Session) {
    let end = Instant::now() + STOP_TIMEOUT;
    while !session.ended() && Instant::now() < end {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
