//! The command thread of an endpoint: its connection, the hello, the control stream, and a task for each queue.

use crate::connection::{Connection, Lasting, control_lane};
use crate::io::Counters;
use crate::options::{ClientOptions, Token};
use crate::queue::QueueInner;
use crate::replies;
use crate::stall;
use crate::transport::{self, Conn, Opened as OpenConn, Purpose, runtime};
use outboard_core::{Error, Result};
use outboard_net::{Carrier, Dialer, Endpoint};
use outboard_proto::error::{from_status, from_wire};
use outboard_proto::v1::control_reply::Reply;
use outboard_proto::v1::control_request::Request;
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_proto::{SECRET_BYTES, limits, v1};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tonic::codec::Streaming;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// How long drops are gathered before they are sent.
const GATHER_FREES: Duration = Duration::from_millis(1);

type Call = Box<dyn FnOnce(Conn) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// What callers ask of the thread.
pub(crate) enum Job {
    /// Open the stream of a queue.
    Open(Arc<QueueInner>),
    /// Make a call.
    Call(Call),
}

/// A session with an endpoint.
pub(crate) struct Connected {
    pub(crate) connection: Arc<Connection>,
    pub(crate) hello: v1::HelloResponse,
    /// Ends with the thread.
    pub(crate) ended: Receiver<()>,
}

/// Starts the thread and waits until the session is open.
pub(crate) fn connect(endpoint: &Endpoint, options: &ClientOptions) -> Result<Connected> {
    let lost = |detail: String| Error::Peer { endpoint: endpoint.to_string(), detail };
    let runtime = runtime().map_err(|e| lost(format!("no event loop: {e}")))?;
    let (opened, result) = sync_channel(1);
    let (running, ended) = sync_channel(0);
    let (thread_endpoint, thread_options) = (endpoint.clone(), options.clone());
    let spawned = std::thread::Builder::new().name(format!("rpc {endpoint}")).spawn(move || {
        let _running: SyncSender<()> = running;
        runtime.block_on(run(thread_endpoint, thread_options, opened));
        runtime.shutdown_background();
    });
    spawned.map_err(|e| lost(format!("no thread: {e}")))?;
    // The thread has a deadline of its own and always answers; a little more, in case that this process is slow.
    let wait = options.connect_timeout + Duration::from_secs(1);
    match result.recv_timeout(wait) {
        Ok(opened) => opened.map(|(connection, hello)| Connected { connection, hello, ended }),
        Err(_) => Err(no_answer(endpoint, wait)),
    }
}

fn no_answer(endpoint: &Endpoint, after: Duration) -> Error {
    let detail = format!(
        "no answer within {:.1} s; check that rpc-server runs there, the address, and the firewall",
        after.as_secs_f64()
    );
    Error::Peer { endpoint: endpoint.to_string(), detail }
}

type Opened = SyncSender<Result<(Arc<Connection>, v1::HelloResponse)>>;

async fn run(endpoint: Endpoint, options: ClientOptions, opened: Opened) {
    let lasting = Lasting::default();
    let dialer = Dialer::new(endpoint, options.tls.clone());
    let greeted = tokio::time::timeout(options.connect_timeout, greet(&dialer, &options, &lasting.counters)).await;
    let (conn, ended, hello) = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(e)) => return drop(opened.send(Err(e))),
        Err(_) => return drop(opened.send(Err(no_answer(dialer.endpoint(), options.connect_timeout)))),
    };
    let session = hello.session.clone().unwrap_or_default();
    let (jobs, todo) = unbounded_channel();
    let control = control_lane(Request::Attach(session.clone()));
    let connection = Connection::new(dialer, options, (session, hello.incarnation), lasting, control, jobs);
    if opened.send(Ok((connection.clone(), hello))).is_ok() {
        drive(&connection, conn, ended, None, todo).await;
    }
}

/// Drives a connection with a session until its end.
pub(crate) async fn drive(
    connection: &Arc<Connection>,
    conn: Conn,
    mut ended: tokio::task::JoinHandle<String>,
    control_stream: Option<Streaming<v1::ControlReply>>,
    mut todo: UnboundedReceiver<Job>,
) {
    tokio::spawn(control(connection.clone(), conn.clone(), control_stream));
    tokio::spawn(gather_frees(connection.clone()));
    tokio::spawn(stall::watch(connection.clone(), conn.clone()));
    tokio::select! {
        () = jobs_until_end(connection, &conn, &mut todo) => {}
        why = &mut ended => {
            let why = why.unwrap_or_else(|_| "its event loop failed".to_owned());
            connection.kill(connection.lost(why));
        }
        () = connection.until_over() => {}
    }
    connection.dialer.close().await;
}

/// The connection, its end, and the server's answer to hello.
async fn greet(
    dialer: &Dialer,
    options: &ClientOptions,
    counters: &Arc<Counters>,
) -> Result<(Conn, tokio::task::JoinHandle<String>, v1::HelloResponse)> {
    let endpoint = dialer.endpoint();
    let lost = |detail: String| Error::Peer { endpoint: endpoint.to_string(), detail };
    let opened = transport::open(dialer, counters, Purpose::Commands(options.dead_after)).await?;
    let OpenConn { conn, driver, fault, private } = opened;
    let early = |why: String| match fault.reason() {
        Some(reason) => lost(reason),
        None => lost(format!("{why}, before it answered hello; is it an rpc-server that listens on this port?")),
    };
    let mut driver = tokio::spawn(driver);
    let (min_version, max_version) = options.versions;
    let request = v1::HelloRequest { min_version, max_version, client: options.name.clone() };
    let mut request = tonic::Request::new(request);
    if let Some(token) = options.token.as_ref().filter(|_| private) {
        let value = format!("Bearer {}", token.as_str()).parse::<MetadataValue<_>>();
        let mut value = value.map_err(|_| lost("the token cannot be sent".into()))?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
    }
    let mut client = client(&conn);
    let hello = tokio::select! {
        biased;
        hello = client.hello(request) => hello,
        why = &mut driver => return Err(early(why.unwrap_or_else(|_| "its event loop failed".to_owned()))),
    };
    let hello = match hello {
        Ok(hello) => hello.into_inner(),
        Err(status) => {
            // A broken connection says more than the call that it broke.
            if let Ok(Ok(why)) = tokio::time::timeout(Duration::from_millis(50), &mut driver).await {
                return Err(early(why));
            }
            let withheld = options.token.as_ref().filter(|_| !private);
            return Err(no_hello(&status, endpoint, withheld));
        }
    };
    if hello.version < min_version || hello.version > max_version {
        return Err(lost(format!("it picked protocol version {}, which was not offered", hello.version)));
    }
    if hello.session.as_ref().is_none_or(|s| s.secret.len() != SECRET_BYTES) {
        return Err(lost("its answer to hello has no session".to_owned()));
    }
    Ok((conn, driver, hello))
}

/// Why a server has not answered hello. `withheld` is a token that could not be sent to it.
fn no_hello(status: &Status, endpoint: &Endpoint, withheld: Option<&Token>) -> Error {
    let lost = |detail: String| Error::Peer { endpoint: endpoint.to_string(), detail };
    match status.code() {
        Code::Unimplemented | Code::NotFound | Code::Unknown => {
            lost(format!("it is not an Outboard rpc-server ({}); is it the right port?", status.message()))
        }
        Code::Unauthenticated if withheld.is_some() => lost(format!(
            "it wants a token, and a token is never sent to another host without encryption; write {}",
            endpoint.by(Carrier::Tls)
        )),
        _ => from_status(status, &endpoint.to_string()),
    }
}

/// The generated client on a connection.
pub(crate) fn client(conn: &Conn) -> OutboardClient<Conn> {
    OutboardClient::with_origin(conn.clone(), conn.origin())
        .max_decoding_message_size(limits::MAX_MESSAGE)
        .max_encoding_message_size(limits::MAX_MESSAGE)
}

async fn jobs_until_end(connection: &Arc<Connection>, conn: &Conn, todo: &mut UnboundedReceiver<Job>) {
    while let Some(job) = todo.recv().await {
        match job {
            Job::Open(queue) => drop(tokio::spawn(replies::receive(connection.clone(), conn.clone(), queue))),
            Job::Call(call) => drop(tokio::spawn(call(conn.clone()))),
        }
    }
}

/// The control stream: sends what callers ask, hands out the answers. Its end is the end of the session.
async fn control(connection: Arc<Connection>, conn: Conn, open: Option<Streaming<v1::ControlReply>>) {
    let stream = match open {
        Some(stream) => Ok(stream),
        None => conn.stream::<v1::ControlReply>("Control", connection.control.clone()).await,
    };
    let why = match stream {
        Err(why) => connection.lost(why),
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(v1::ControlReply { reply: Some(reply) })) => match reply {
                    Reply::Attached(_) | Reply::Resumed(_) => {}
                    Reply::Done(done) => {
                        let error = done.error.map(|e| from_wire(e, &connection.name));
                        connection.answered(done.request, error.map_or(Ok(()), Err));
                    }
                    Reply::Bye(_) => break connection.lost("the session was ended"),
                },
                Ok(Some(_)) => {}
                Ok(None) => break connection.lost("the server has ended the session"),
                Err(status) => break from_status(&status, &connection.name),
            }
        },
    };
    // If the connection is lost, its own end says why; it is noticed in the same moment.
    if !connection.leaving() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    connection.kill(why);
}

/// Sends drops in batches.
async fn gather_frees(connection: Arc<Connection>) {
    loop {
        connection.frees.any().await;
        tokio::time::sleep(GATHER_FREES).await;
        connection.flush_frees();
    }
}
