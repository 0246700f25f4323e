//! The thread of a link: connects, greets, listens for refusals, keeps the connection alive and opens it again after a loss.

use super::Peers;
use super::link::Link;
use super::wire::{Progress, Wire, describe};
use crate::conn::runtime;
use crate::logs::limited;
use bytes::BytesMut;
use h2::client::ResponseFuture;
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use outboard_core::{Error, Result};
use outboard_net::{Dialer, Fault};
use outboard_proto::limits::{HTTP2_FRAME, MAX_PEER_MESSAGE};
use outboard_proto::v1::peer_down::Part as Down;
use outboard_proto::v1::peer_up::Part as Up;
use outboard_proto::{MAX_VERSION, MIN_VERSION, error, frame, v1};
use prost::Message;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// From the first packet to the welcome. Clients wait this long to learn whether two servers reach each other.
const OPEN_TIMEOUT: Duration = Duration::from_millis(1500);
/// Attempts to open a link again that was lost while sessions use it, and the pause before each, if nobody asks for it meanwhile.
const AGAIN: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// How often the other side is asked whether it is there.
const PING: Duration = Duration::from_secs(1);
/// The other side is lost if nothing goes through for this long, in either direction.
pub(super) const DEAD: Duration = Duration::from_secs(4);
/// How often a link looks whether it is still used.
const LOOK: Duration = Duration::from_millis(500);
/// A link over which nothing was sent for this long is closed, sessions or not.
const UNUSED: Duration = Duration::from_secs(15 * 60);
/// Bytes in flight that a stream holds for the socket.
const SEND_BUFFER: usize = 1 << 20;
/// Bytes of answers in flight: there are few.
const DOWN_WINDOW: u32 = 1 << 20;

/// Starts the thread.
pub(super) fn start(peers: &Arc<Peers>, link: &Arc<Link>) -> Result<()> {
    let no_thread = |e: std::io::Error| Error::Request(format!("no thread for a link to another server: {e}"));
    let runtime = runtime().map_err(no_thread)?;
    let (peers, link) = (peers.clone(), link.clone());
    let spawned = std::thread::Builder::new().name(format!("peer {}", link.address)).spawn(move || {
        let mut stopped = peers.stopped.clone();
        let why = runtime.block_on(async {
            tokio::select! {
                why = run(&peers, &link) => why,
                _ = stopped.wait_for(|&stopped| stopped) => link.blame("this server stops"),
            }
        });
        peers.forget(&link);
        link.disconnected(&why, true);
        runtime.shutdown_background();
    });
    spawned.map(drop).map_err(no_thread)
}

/// Keeps the link open for as long as it is used, and says why it is not any more.
async fn run(peers: &Peers, link: &Arc<Link>) -> Error {
    let mut pauses = AGAIN.iter();
    let mut was_open = false;
    loop {
        let mut opened = None;
        let end = session(peers, link, &mut opened).await;
        let (why, again) = match end {
            End::Broken(why) => (why, true),
            End::Unused(why) => (why.to_owned(), false),
        };
        match opened {
            Some(at) => {
                limited!(info, peer = link.address, "link to another server closed: {why}");
                was_open = true;
                if Instant::now() - at > DEAD {
                    pauses = AGAIN.iter();
                }
            }
            None => limited!(debug, peer = link.address, "no link to another server: {why}"),
        }
        let why = link.blame(why);
        link.disconnected(&why, false);
        let Some(&pause) = pauses.next().filter(|_| was_open && again && link.in_use()) else { return why };
        // Who waits for it now does not wait for the end of a pause.
        let _ = tokio::time::timeout(pause, link.until_wanted()).await;
    }
}

/// Why a connection ended.
enum End {
    Broken(String),
    Unused(&'static str),
}

/// One connection, from its opening to its end.
async fn session(peers: &Peers, link: &Arc<Link>, opened: &mut Option<Instant>) -> End {
    let end = tokio::time::Instant::now() + OPEN_TIMEOUT;
    let dialer = Dialer::new(link.endpoint.clone(), peers.tls.clone());
    let connected = match tokio::time::timeout_at(end, connect(link, &dialer)).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(why)) => return End::Broken(why),
        Err(_) => return End::Broken(no_answer()),
    };
    let fault = connected.fault.clone();
    let over = talk(peers, link, opened, end, connected).await;
    dialer.close().await;
    match over {
        End::Broken(why) => End::Broken(fault.reason().unwrap_or(why)),
        over => over,
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
            Ok(Err(why)) => return End::Broken(why),
            Err(_) => return End::Broken(no_answer()),
        };
        *opened = Some(Instant::now());
        link.welcomed();
        limited!(info, peer = link.address, "link to another server opened");
        tokio::select! {
            why = refusals(link, &mut answers) => End::Broken(why),
            why = alive(ping, &progress) => End::Broken(why),
            why = unused(link, peers.limits.linger) => End::Unused(why),
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
    format!("no answer within {:.1} s; check the firewall between the servers", OPEN_TIMEOUT.as_secs_f64())
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
        .initial_window_size(DOWN_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
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

/// Says who we are and waits for the welcome.
async fn greet(peers: &Peers, link: &Link, response: ResponseFuture) -> std::result::Result<Answers, String> {
    let open = v1::OpenPeer {
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        from: peers.incarnation,
        to: link.incarnation,
        ..Default::default()
    };
    let mut out = BytesMut::new();
    frame::push(&mut out, &v1::PeerUp { part: Some(Up::Open(open)) });
    link.greet(out.freeze());
    let response = response.await.map_err(|e| not_grpc(&e))?;
    if let Some(status) = Status::from_header_map(response.headers()).filter(|s| s.code() != Code::Ok) {
        return Err(said(&status));
    }
    let mut answers = Answers { body: response.into_body(), frames: frame::FrameReader::new(MAX_PEER_MESSAGE) };
    match answers.next().await? {
        Down::Welcome(welcome) if (MIN_VERSION..=MAX_VERSION).contains(&welcome.version) => Ok(answers),
        _ => Err("it did not answer as a server of this release does".into()),
    }
}

fn not_grpc(e: &h2::Error) -> String {
    match e.is_io() || e.is_reset() {
        true => {
            format!("it closed the connection before it answered ({}); does another program listen there?", describe(e))
        }
        false => format!("it does not speak gRPC: {e}"),
    }
}

fn said(status: &Status) -> String {
    match status.code() {
        Code::Unimplemented => "it takes no tensors from other servers; install the same release on all".to_owned(),
        _ if status.message().is_empty() => status.code().description().to_owned(),
        _ => status.message().to_owned(),
    }
}

impl Answers {
    /// The next message; the reason if there is none.
    async fn next(&mut self) -> std::result::Result<Down, String> {
        loop {
            let message =
                self.frames.message().map_err(|_| "it answered with something else than messages".to_owned())?;
            if let Some(message) = message {
                let down = v1::PeerDown::decode(message).map_err(|e| format!("its answer cannot be decoded: {e}"))?;
                match down.part {
                    Some(part) => return Ok(part),
                    None => continue,
                }
            }
            match self.body.data().await {
                Some(Ok(data)) => {
                    let _ = self.body.flow_control().release_capacity(data.len());
                    self.frames.add(&data);
                }
                Some(Err(e)) => return Err(describe(&e)),
                None => {
                    let trailers = self.body.trailers().await.ok().flatten();
                    let status = trailers.as_ref().and_then(Status::from_header_map);
                    return Err(match status.filter(|s| s.code() != Code::Ok) {
                        Some(status) => said(&status),
                        None => "it ended the stream".to_owned(),
                    });
                }
            }
        }
    }
}

async fn refusals(link: &Link, answers: &mut Answers) -> String {
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
            let patience = progress.last().max(Instant::now() - DEAD) + DEAD;
            tokio::select! {
                answer = pong.as_mut() => match answer {
                    Ok(_) => break,
                    Err(e) => return describe(&e),
                },
                () = tokio::time::sleep_until(patience.into()) => {
                    if progress.last().elapsed() >= DEAD {
                        return "it has stopped answering (it hangs, or the network is cut)".to_owned();
                    }
                }
            }
        }
        tokio::time::sleep(PING).await;
    }
}

/// Completes when the link is not needed any more.
async fn unused(link: &Link, linger: Duration) -> &'static str {
    let start = Instant::now();
    let mut needed = start;
    loop {
        tokio::time::sleep(LOOK).await;
        if link.in_use() {
            needed = Instant::now();
        }
        if needed.elapsed() >= linger {
            return "no session uses it";
        }
        if link.last_used().unwrap_or(start).max(start).elapsed() >= UNUSED {
            return "it was not used for long";
        }
    }
}
