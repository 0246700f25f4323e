//! The control stream of a session: memory and executables.

use super::call::place_of;
use super::messages::{Messages, Received};
use super::{Service, first, replies, resume, takes, undecodable};
use crate::http2::Incoming;
use crate::limits::{
    CONTROL_TIMEOUT, FREES_TIMEOUT, MAX_FENCES, MAX_FREE_BYTES, OPEN_TIMEOUT, PENDING_FREE_BYTES, PENDING_FREES,
    REPLIES, STOP_TIMEOUT, resume_bytes, resume_handles,
};
use crate::lock;
use crate::logs::limited;
use crate::room::Room;
use crate::session::Session;
use bytes::Bytes;
use http::Response;
use outboard_core::{Device, Error, Placement};
use outboard_proto::device::usage_from_name;
use outboard_proto::limits::{MAX_FREE, MAX_MESSAGE};
use outboard_proto::v1::control_reply::Reply;
use outboard_proto::v1::control_request::Request;
use outboard_proto::{error, graph, places, v1};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

type Out = Sender<Result<v1::ControlReply, Status>>;

pub(super) fn start(service: Service, request: http::Request<Incoming>) -> Response<Body> {
    let (out, answers) = channel(REPLIES);
    tokio::spawn(async move {
        let _place = place_of(&request);
        let run = run(&service, Messages::new(request.into_body()), &out);
        let ended = tokio::select! {
            ended = run => ended,
            // The client has reset the stream.
            () = out.closed() => return,
        };
        if let Err(status) = ended {
            service.complain(None, "control stream refused", &status.message());
            let _ = out.send(Err(status)).await;
        }
    });
    replies(ReceiverStream::new(answers))
}

/// A control stream of a session, of which there is one at a time.
struct Control {
    session: Arc<Session>,
    /// The age of the session at which the stream was opened. It is over when the session has another one.
    age: u64,
    _alone: OwnedSemaphorePermit,
}

impl Control {
    /// Whether the session was taken up again elsewhere.
    fn is_over(&self) -> bool {
        self.session.keys.is_renewed(self.age)
    }
}

async fn run(service: &Service, mut messages: Messages, out: &Out) -> Result<(), Status> {
    let message = first(service, &mut messages, resume_bytes(&service.shared.limits.session)).await?;
    let request = opening(service, &message)?;
    drop(message);
    let (control, reply) = match request.request {
        Some(Request::Attach(attach)) => {
            let (session, age) = service.stream(Some(&attach))?;
            let alone = tokio::time::timeout(CONTROL_TIMEOUT, session.control.clone().acquire_owned()).await;
            let alone = alone.ok().and_then(Result::ok);
            let alone = alone.ok_or_else(|| Status::already_exists("the session has a control stream already"))?;
            (Control { session, age, _alone: alone }, Reply::Attached(v1::Attached {}))
        }
        Some(Request::Resume(request)) => {
            let resume::Resumed { session, age, alone } = resume::resume(service, request).await?;
            let now = session.to_wire();
            (Control { session, age, _alone: alone }, Reply::Resumed(v1::Resumed { session: Some(now) }))
        }
        _ => return Err(Status::invalid_argument("the first message must name the session")),
    };
    if control.is_over() {
        return Err(resume::taken_up_elsewhere());
    }
    service.conn.attach(&service.shared, &control.session);
    send(out, reply).await;
    tokio::select! {
        biased;
        () = control.session.keys.until_renewed(control.age) => Ok(()),
        done = requests(service, messages, &control, out) => done,
    }
}

/// The first request of a stream. It is decoded before anybody knows who has sent it, and takes up to eight times its bytes then: one
/// at a time, and handles are kept only of a client that knows the secret.
fn opening(service: &Service, message: &[u8]) -> Result<v1::ControlRequest, Status> {
    let _one = lock(&service.shared.opening);
    // A number ends with a byte of less than 128. The session and the keys of fields have some, too.
    let numbers = message.iter().filter(|&&byte| byte < 128).count();
    if numbers > resume_handles(&service.shared.limits.session) + 128 {
        return Err(Status::invalid_argument("more handles than a session can have"));
    }
    let request = v1::ControlRequest::decode(message).map_err(|e| undecodable(service, None, &e))?;
    if let Some(Request::Resume(resume)) = &request.request {
        resume::session_of(service, resume)?;
    }
    Ok(request)
}

/// The next request; `None` at the end of the stream, when it breaks, or when the session ends.
async fn next(
    service: &Service,
    messages: &mut Messages,
    control: &Control,
) -> Result<Option<(v1::ControlRequest, Option<Room>)>, Status> {
    let session = &control.session;
    let received = tokio::select! {
        biased;
        received = messages.next(MAX_MESSAGE, Some(&session.account.messages)) => received,
        () = session.until_closed() => Ok(None),
    };
    let (message, room) = match received {
        Ok(Some(Received::Message(message, room))) => (message, room),
        // The limit is that of all messages, so that `TooLarge` does not come.
        Ok(Some(Received::TooLarge(_)) | None) => return Ok(None),
        Err(status) if status.code() == Code::ResourceExhausted => return Err(status),
        Err(status) => {
            service.broken(Some(session), &status);
            return Ok(None);
        }
    };
    check_form(&message)?;
    let request = match v1::ControlRequest::decode(message) {
        Ok(request) => request,
        Err(e) => {
            undecodable(service, Some(session), &e);
            return Ok(None);
        }
    };
    // What comes on a stream that is over comes too late, though it was sent before.
    Ok(Some((request, room)).filter(|_| !control.is_over()))
}

/// Fails for what would take much more memory decoded than it has bytes: more than one request in a message, or a free of too much.
/// What else is wrong is left to the decoder.
fn check_form(message: &Bytes) -> Result<(), Status> {
    let mut rest = &message[..];
    let (Ok((tag, WireType::LengthDelimited)), Ok(len)) = (decode_key(&mut rest), decode_varint(&mut rest)) else {
        return Ok(());
    };
    if (rest.len() as u64) > len {
        return Err(Status::invalid_argument("more than one request in a message"));
    }
    if tag == FREE_TAG && rest.len() > MAX_FREE_BYTES {
        let len = rest.len();
        return Err(Status::invalid_argument(format!("a request to free of {len} bytes, {MAX_FREE_BYTES} at most")));
    }
    Ok(())
}

/// The field of a request to free.
const FREE_TAG: u32 = 4;

/// Carries out what comes on the stream.
async fn requests(service: &Service, mut messages: Messages, control: &Control, out: &Out) -> Result<(), Status> {
    let session = &control.session;
    while let Some((message, room)) = next(service, &mut messages, control).await? {
        match message.request {
            Some(Request::Alloc(c)) => {
                let result = alloc(control, &c).await;
                answer(service, out, c.request, result).await;
            }
            Some(Request::Compile(c)) => {
                let request = c.request;
                let result = compile(control, c, room).await;
                answer(service, out, request, result).await;
            }
            Some(Request::Free(c)) => {
                // The session may end before there is room; the next message will not come then.
                if session.until(|| has_room_for(session, &c).then_some(())).await.is_ok() {
                    free(control, c);
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

async fn alloc(control: &Control, c: &v1::Alloc) -> outboard_core::Result<()> {
    let session = &control.session;
    let device = session.devices.get(&c.device)?.clone();
    let (handle, size, usage) = (c.buffer, c.size, usage_from_name(&c.usage));
    let age = control.age;
    let attempt = |device: Arc<dyn Device>, owner: Arc<Session>| {
        session.worker.run(move || owner.at_age(age)?.alloc(device.as_ref(), handle, size, usage))
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

async fn compile(control: &Control, c: v1::Compile, room: Option<Room>) -> outboard_core::Result<()> {
    let session = &control.session;
    let device = session.devices.get(&c.device)?.clone();
    let (bytes, takes) = (c.graph.len() as u64, takes(&c.graph));
    make_room(session, |s| s.is_full_of_graphs(bytes, takes)).await;
    let (owner, age) = (session.clone(), control.age);
    let work = move || {
        let _room = room;
        let owner = owner.at_age(age)?;
        owner.check_executable(c.executable, bytes)?;
        let share = owner.account.graph(takes)?;
        let graph = Arc::new(graph::decode(&c.graph)?);
        let slices = places::decode(&c.places, graph.tensors().len(), |s| owner.slice(device.as_ref(), Some(s)))?;
        let placement = Placement::new(&graph, device.as_ref(), slices)?;
        let executable = device.compile(graph, placement)?;
        owner.add_executable(device.as_ref(), c.executable, executable, bytes, share)
    };
    session.worker.run(work).await
}

/// Counts as a free that waits until it is dropped: done, or lost with its connection.
struct Waiting {
    session: Arc<Session>,
    bytes: usize,
}

impl Waiting {
    fn new(session: &Arc<Session>, c: &v1::Free) -> Waiting {
        let bytes = bytes_of(c);
        session.frees.fetch_add(1, Ordering::AcqRel);
        session.free_bytes.fetch_add(bytes, Ordering::AcqRel);
        Waiting { session: session.clone(), bytes }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.session.free_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.session.frees.fetch_sub(1, Ordering::AcqRel);
        self.session.progress.notify_waiters();
    }
}

/// Bytes of a free that waits.
fn bytes_of(c: &v1::Free) -> usize {
    size_of::<u64>() * (c.buffers.len() + c.executables.len()) + size_of::<v1::Fence>() * c.fences.len()
}

/// Whether one more free may wait. One alone always may.
fn has_room_for(session: &Session, c: &v1::Free) -> bool {
    let waiting = session.frees.load(Ordering::Acquire);
    let bytes = session.free_bytes.load(Ordering::Acquire).saturating_add(bytes_of(c));
    waiting == 0 || waiting < PENDING_FREES && bytes <= PENDING_FREE_BYTES
}

/// Whether every queue has done the commands that a free has to wait for. One that is not known may not be open yet: streams do not
/// wait for one another.
fn passed(session: &Session, fences: &[v1::Fence], unknown: bool) -> bool {
    let queues = lock(&session.queues);
    let done = |f: &v1::Fence| queues.get(&f.queue).map_or(unknown || f.commands == 0, |q| q.processed() >= f.commands);
    fences.iter().all(done)
}

/// Frees once every queue has done the commands that came before; nobody waits for it.
fn free(control: &Control, c: v1::Free) {
    let session = &control.session;
    if c.buffers.len() > MAX_FREE || c.executables.len() > MAX_FREE || c.fences.len() > MAX_FENCES {
        let limits = format!("{MAX_FREE} buffers, {MAX_FREE} executables and {MAX_FENCES} fences");
        limited!(warn, session = session.tag, "a request to free has at most {limits}; one with more frees nothing");
        return;
    }
    let waiting = Waiting::new(session, &c);
    let age = control.age;
    let work = move |c: v1::Free| {
        if let Ok(session) = waiting.session.at_age(age) {
            session.free(&c.buffers, &c.executables);
        }
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
