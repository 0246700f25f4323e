//! The thread of a link: connects, greets, listens for refusals, keeps the connection alive and opens it again after a loss.

use super::Peers;
use super::link::{Link, Loss};
use super::lookup::NoAddress;
use super::wire::{Progress, Wire, describe};
use crate::conn::runtime;
use crate::fair::FairShare;
use crate::limits::{
    LINK_DEAD, LINK_DOWN_WINDOW, LINK_HEADERS, LINK_PING, LINK_SEND_BUFFER, LINK_TIMEOUT, LINK_UNUSED,
};
use crate::logs::limited;
use crate::session::Session;
use bytes::{Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use outboard_core::{Error, Result};
use outboard_net::{Dialer, Fault};
use outboard_proto::error::shown;
use outboard_proto::limits::{HTTP2_FRAME, MAX_ERROR_TEXT, MAX_PEER_MESSAGE};
use outboard_proto::v1::peer_down::Part as Down;
use outboard_proto::v1::peer_up::Part as Up;
use outboard_proto::{MAX_VERSION, MIN_VERSION, error, frame, v1};
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tonic::{Code, Status};

/// Attempts to open a link again that was lost while its session lives, and the pause before each, if nobody asks for it meanwhile.
const AGAIN: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// How often a link looks whether it is still used.
const LOOK: Duration = Duration::from_millis(500);

/// Starts the thread, which ends with the session, or when the session is taken up again.
pub(super) fn start(peers: &Arc<Peers>, session: &Arc<Session>, link: &Arc<Link>, share: FairShare) -> Result<()> {
    let no_thread = |e: std::io::Error| Error::Request(format!("no thread for a link to another server: {e}"));
    let runtime = runtime().map_err(no_thread)?;
    let owner = Owner { session: session.clone(), age: session.keys.age_now(), stopped: peers.stopped.clone() };
    let (peers, link) = (peers.clone(), link.clone());
    let spawned = std::thread::Builder::new().name(format!("peer {}", link.address)).spawn(move || {
        let why = runtime.block_on(run(&peers, &link, &owner));
        peers.forget(&link);
        link.disconnected(&why, Loss::ForGood);
        runtime.shutdown_background();
        drop(share);
    });
    spawned.map(drop).map_err(no_thread)
}

/// Whose link it is.
struct Owner {
    session: Arc<Session>,
    /// Its age when the link was asked for.
    age: u64,
    stopped: watch::Receiver<bool>,
}

impl Owner {
    /// Completes when the link has to end, with the reason.
    async fn until_over(&self) -> &'static str {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            () = self.session.until_closed() => "its session has ended",
            () = self.session.keys.until_renewed(self.age) => "its session was taken up again",
            _ = stopped.wait_for(|&stopped| stopped) => "this server stops",
        }
    }
}

/// When the owner of a link does not want it any more, and why.
type Over<'a> = Pin<&'a mut (dyn Future<Output = &'static str> + Send)>;

/// Keeps the link open for as long as it is used, and says why it is not any more.
async fn run(peers: &Peers, link: &Arc<Link>, owner: &Owner) -> Error {
    let mut over = std::pin::pin!(owner.until_over());
    let mut pauses = AGAIN.iter();
    let mut was_open = false;
    loop {
        let mut opened = None;
        let end = session(peers, link, owner, over.as_mut(), &mut opened).await;
        let (why, again) = match end {
            End::Broken(why) => (why, true),
            End::Final(why) => (why, false),
        };
        match opened {
            Some(at) => {
                limited!(info, peer = link.address, "link to another server closed: {why}");
                was_open = true;
                if Instant::now() - at > LINK_DEAD {
                    pauses = AGAIN.iter();
                }
            }
            None => limited!(debug, peer = link.address, "no link to another server: {why}"),
        }
        let why = link.blame(why);
        let pause = pauses.next().filter(|_| was_open && again);
        let Some(&pause) = pause else {
            link.disconnected(&why, Loss::ForGood);
            return why;
        };
        link.disconnected(&why, Loss::ForNow);
        tokio::select! {
            // Who waits for it now does not wait for the end of a pause.
            _ = tokio::time::timeout(pause, link.until_wanted()) => {}
            why = over.as_mut() => return link.blame(why),
        }
    }
}

/// Why a connection ended.
enum End {
    /// It may be there again in a moment.
    Broken(String),
    /// Another try would come to the same.
    Final(String),
}

impl From<NoAddress> for End {
    fn from(why: NoAddress) -> End {
        match why {
            NoAddress::ForNow(why) => End::Broken(why),
            NoAddress::NotListed(why) => End::Final(why),
        }
    }
}

impl From<&str> for End {
    fn from(why: &str) -> End {
        End::Final(why.to_owned())
    }
}

/// One connection, from its opening to its end.
async fn session(
    peers: &Peers,
    link: &Arc<Link>,
    owner: &Owner,
    mut over: Over<'_>,
    opened: &mut Option<Instant>,
) -> End {
    let end = tokio::time::Instant::now() + LINK_TIMEOUT;
    let dialing = async {
        let endpoint = &link.target.endpoint;
        let addresses = peers.lookup.addresses(endpoint, owner.session.account.uid, &peers.metrics).await?;
        let dialer = Dialer::at(endpoint.clone(), addresses, peers.tls.clone());
        let opened = connect(link, &dialer).await.map_err(End::Broken)?;
        Ok((dialer, opened))
    };
    let dialed = tokio::select! {
        dialed = tokio::time::timeout_at(end, dialing) => dialed,
        why = over.as_mut() => return why.into(),
    };
    let (dialer, connected) = match dialed {
        Ok(Ok(dialed)) => dialed,
        Ok(Err(why)) => return why,
        Err(_) => return End::Broken(no_answer()),
    };
    let fault = connected.fault.clone();
    let ended = tokio::select! {
        ended = talk(peers, link, opened, end, connected) => ended,
        why = over => why.into(),
    };
    dialer.close().await;
    match ended {
        End::Broken(why) => End::Broken(fault.reason().unwrap_or(why)),
        ended => ended,
    }
}

/// What is said on a connection, until it ends.
async fn talk(
    peers: &Peers,
    link: &Arc<Link>,
    opened: &mut Option<Instant>,
    end: tokio::time::Instant,
    Opened { response, ping, progress, .. }: Opened,
) -> End {
    let driver = std::future::poll_fn(|cx| match link.poll(cx.waker()) {
        Some(why) => Poll::Ready(why),
        None => Poll::Pending,
    });
    // The connection must know this event loop before anything is put on it.
    std::future::poll_fn(|cx| Poll::Ready(link.poll(cx.waker()))).await;
    let talk = async {
        let mut answers = match tokio::time::timeout_at(end, greet(peers, link, response)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(why)) => return why,
            Err(_) => return End::Broken(no_answer()),
        };
        *opened = Some(Instant::now());
        link.welcomed();
        limited!(info, peer = link.address, "link to another server opened");
        tokio::select! {
            why = refusals(link, &mut answers) => why,
            why = alive(ping, &progress) => End::Broken(why),
            why = unused(link) => why.into(),
        }
    };
    let mut talk = std::pin::pin!(talk);
    tokio::select! {
        end = talk.as_mut() => end,
        why = driver => {
            // What the other side has said is better than that it closed the connection then.
            let said = std::future::poll_fn(|cx| Poll::Ready(talk.as_mut().poll(cx))).await;
            if let Poll::Ready(end) = said { end } else { End::Broken(why) }
        }
    }
}

fn no_answer() -> String {
    format!("no answer within {:.1} s; check the firewall between the servers", LINK_TIMEOUT.as_secs_f64())
}

/// What has just been opened.
struct Opened {
    response: ResponseFuture,
    ping: Option<PingPong>,
    progress: Arc<Progress>,
    /// What TLS or QUIC did not like, which says more than the error of HTTP/2 that it caused.
    fault: Fault,
}

async fn connect(link: &Link, dialer: &Dialer) -> std::result::Result<Opened, String> {
    let progress = Progress::new();
    let transport = dialer.open(progress.clone()).await?;
    let fault = transport.fault();
    let mut builder = h2::client::Builder::new();
    builder
        .max_frame_size(HTTP2_FRAME)
        .initial_window_size(LINK_DOWN_WINDOW)
        .max_send_buffer_size(LINK_SEND_BUFFER)
        .max_header_list_size(LINK_HEADERS)
        .enable_push(false);
    let (mut requests, mut connection) = builder.handshake(transport).await.map_err(|e| describe(&e))?;
    let ping = connection.ping_pong();
    let endpoint = dialer.endpoint();
    let scheme = if endpoint.carrier().is_encrypted() { "https" } else { "http" };
    let request = Request::post(format!("{scheme}://{}/outboard.v1.Peer/Push", endpoint.authority()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|e| e.to_string())?;
    let (response, stream) = requests.send_request(request, false).map_err(|e| describe(&e))?;
    link.connected(Wire::new(connection, stream));
    Ok(Opened { response, ping, progress, fault })
}

/// What the other side says on the stream.
struct Answers {
    body: RecvStream,
    frames: frame::FrameReader,
}

/// Says who we are and waits for the welcome, which has to prove who the other side is.
async fn greet(peers: &Peers, link: &Link, response: ResponseFuture) -> std::result::Result<Answers, End> {
    let (route, proofs) = (link.target.route, link.target.proofs);
    let open = v1::OpenPeer {
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        from: peers.incarnation,
        to: route.to,
        session: route.session,
        grant: Bytes::copy_from_slice(&proofs.grant),
    };
    let mut out = BytesMut::new();
    frame::push(&mut out, &v1::PeerUp { part: Some(Up::Open(open)) });
    link.greet(out.freeze());
    let response = response.await.map_err(|e| End::Broken(not_grpc(&e)))?;
    if let Some(status) = Status::from_header_map(response.headers()).filter(|s| s.code() != Code::Ok) {
        return Err(said(&status));
    }
    let mut answers = Answers { body: response.into_body(), frames: frame::FrameReader::new(MAX_PEER_MESSAGE) };
    match answers.next().await? {
        Down::Welcome(welcome) if !(MIN_VERSION..=MAX_VERSION).contains(&welcome.version) => Err(other_release()),
        Down::Welcome(welcome) if welcome.proof.ct_eq(&proofs.welcome).into() => Ok(answers),
        Down::Welcome(_) => Err("it could not prove that it is the server that the client knows: another program \
                                 answers at this address, or a server of an older release"
            .into()),
        Down::Refused(_) => Err(other_release()),
    }
}

fn other_release() -> End {
    "it did not answer as a server of this release does".into()
}

fn not_grpc(e: &h2::Error) -> String {
    if e.is_io() || e.is_reset() {
        format!("it closed the connection before it answered ({}); does another program listen there?", describe(e))
    } else {
        format!("it does not speak gRPC: {e}")
    }
}

fn said(status: &Status) -> End {
    let why = match status.code() {
        Code::Unimplemented => "it takes no tensors from other servers; install the same release on all".to_owned(),
        _ if status.message().is_empty() => status.code().description().to_owned(),
        _ => shown(status.message(), MAX_ERROR_TEXT),
    };
    match status.code() {
        Code::PermissionDenied | Code::FailedPrecondition | Code::Unimplemented => End::Final(why),
        _ => End::Broken(why),
    }
}

impl Answers {
    /// The next message; the reason if there is none.
    async fn next(&mut self) -> std::result::Result<Down, End> {
        let broken = |why: String| Err(End::Broken(why));
        loop {
            let Ok(message) = self.frames.message() else {
                return broken("it answered with something else than messages".into());
            };
            if let Some(message) = message {
                match v1::PeerDown::decode(message).map(|down| down.part) {
                    Ok(Some(part)) => return Ok(part),
                    Ok(None) => continue,
                    Err(e) => return broken(format!("its answer cannot be decoded: {e}")),
                }
            }
            match self.body.data().await {
                Some(Ok(data)) => {
                    let _ = self.body.flow_control().release_capacity(data.len());
                    self.frames.add(&data);
                }
                Some(Err(e)) => return broken(describe(&e)),
                None => {
                    let trailers = self.body.trailers().await.ok().flatten();
                    let status = trailers.as_ref().and_then(Status::from_header_map);
                    return match status.filter(|s| s.code() != Code::Ok) {
                        Some(status) => Err(said(&status)),
                        None => broken("it ended the stream".to_owned()),
                    };
                }
            }
        }
    }
}

async fn refusals(link: &Link, answers: &mut Answers) -> End {
    loop {
        match answers.next().await {
            Ok(Down::Refused(v1::Refused { queue, error: Some(error), .. })) => {
                link.refused(queue, &error::from_wire(error, &link.address));
            }
            Ok(_) => {}
            Err(why) => return why,
        }
    }
}

/// Asks again and again whether the other side is there. Bytes that go through are a sign of life as well: an answer may stand
/// behind many.
async fn alive(ping: Option<PingPong>, progress: &Progress) -> String {
    let Some(mut ping) = ping else { return "no heartbeat".to_owned() };
    loop {
        let mut pong = std::pin::pin!(ping.ping(Ping::opaque()));
        loop {
            let patience = progress.last().max(Instant::now() - LINK_DEAD) + LINK_DEAD;
            tokio::select! {
                answer = pong.as_mut() => match answer {
                    Ok(_) => break,
                    Err(e) => return describe(&e),
                },
                () = tokio::time::sleep_until(patience.into()) => {
                    if progress.last().elapsed() >= LINK_DEAD {
                        return "it has stopped answering (it hangs, or the network is cut)".to_owned();
                    }
                }
            }
        }
        tokio::time::sleep(LINK_PING).await;
    }
}

/// Completes when nothing was sent for long.
async fn unused(link: &Link) -> &'static str {
    let start = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        if link.last_used().unwrap_or(start).max(start).elapsed() >= LINK_UNUSED {
            return "it was not used for long";
        }
    }
}
