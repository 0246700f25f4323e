//! Hostile clients by the thousand, and one that writes text on the same server all the while.
//!
//! What the hostile ones say is what a real client has said, taken down by a relay: its messages with bits flipped, numbers at their
//! limits, cut off, twice, and in another order; and the bytes of its connections, the same way. `OUTBOARD_SOAK` says how many
//! messages; 5000 without it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_fuzz::mutate;
use outboard_fuzz::raw::{Conn, NOTHING, framed};
use outboard_integration::{Client, Finished, Server, model};
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::{frame::FrameReader, limits, v1};
use prost::Message;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MESSAGES: u64 = 5000;
/// Those that come before the server's memory is looked at for the first time: it has grown to its usual size by then.
const WARM_UP: u64 = 1000;
/// What the server may grow by from then on, in bytes, when all is over. Measured: 1 MiB in a short soak, 3 MiB with 300,000 messages. In
/// the shortest one some 200 hostile connections come after the warm-up, so that 40 KiB that each of them leaves are found.
const GROWTH: u64 = 8 << 20;
/// How often the server's memory is looked at, each time after it was to give back what it does not need.
const LOOKS: usize = 5;
/// How long what hostile clients leave may stay: the lease of a session, and what an idle connection has.
const ENDED: Duration = Duration::from_secs(45);
const LIMIT: Duration = Duration::from_secs(240);
/// Most messages of one stream of a hostile session, and most queues.
const SESSION: usize = 60;
const QUEUES: usize = 4;
/// How long a hostile session waits for answers before it does something worse.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long they wait where they have as many sessions as they may have.
const FULL: Duration = Duration::from_millis(50);
/// A request of ours behind those of others.
const LAST: u64 = 0x1234_5678_9abc;
/// Tokens of the client that behaves and of those that do not.
const GOOD: &str = "a-token-of-the-client-that-behaves";
const BAD: &str = "a-token-of-clients-that-do-not";
/// The hostile ones may have what they can get, but not all: what one client may take is limited.
const SHARES: [&str; 4] = ["--memory-limit", "2G", "--client-memory", "1G"];

/// What clients send on each of their connections.
type Tapes = Arc<Mutex<Vec<Vec<u8>>>>;

/// Hands connections on to a server, and keeps what goes there.
fn recorder(to: SocketAddr) -> (SocketAddr, Tapes) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, tapes) = (listener.local_addr().unwrap(), Tapes::default());
    let all = tapes.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(to).unwrap();
            let index = {
                let mut all = all.lock().unwrap();
                all.push(Vec::new());
                all.len() - 1
            };
            let (up, down) = ((client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client));
            let all = all.clone();
            std::thread::spawn(move || relay(up, |bytes| all.lock().unwrap()[index].extend_from_slice(bytes)));
            std::thread::spawn(move || relay(down, |_| {}));
        }
    });
    (addr, tapes)
}

fn relay((mut from, mut to): (TcpStream, TcpStream), keep: impl Fn(&[u8])) {
    let mut part = vec![0; 1 << 16];
    while let Ok(n) = from.read(&mut part)
        && n > 0
    {
        keep(&part[..n]);
        if to.write_all(&part[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A stream of a real session: its messages behind the one that opens it.
#[derive(Clone)]
enum Recorded {
    Control(Vec<Vec<u8>>),
    Queue { queue: u64, device: String, messages: Vec<Vec<u8>> },
}

impl Recorded {
    fn control(&self) -> Option<&Vec<Vec<u8>>> {
        match self {
            Recorded::Control(messages) => Some(messages),
            Recorded::Queue { .. } => None,
        }
    }

    fn queue(&self) -> Option<(u64, &str, &Vec<Vec<u8>>)> {
        match self {
            Recorded::Queue { queue, device, messages } => Some((*queue, device, messages)),
            Recorded::Control(_) => None,
        }
    }
}

/// The streams of commands on a connection, from its HTTP/2 frames.
fn streams(tape: &[u8]) -> Vec<Recorded> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
    let mut rest = tape.get(preface..).unwrap_or_default();
    let mut bodies: BTreeMap<u32, FrameReader> = BTreeMap::new();
    while let Some((head, behind)) = rest.split_first_chunk::<9>() {
        let [a, b, c, kind, _, d, e, f, g] = *head;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(len) else { break };
        if kind == 0 {
            let stream = u32::from_be_bytes([d, e, f, g]);
            bodies.entry(stream).or_insert_with(|| FrameReader::new(limits::MAX_MESSAGE)).add(payload);
        }
        rest = behind;
    }
    let mut all = Vec::new();
    for mut body in bodies.into_values() {
        let mut messages = Vec::new();
        while let Ok(Some(message)) = body.message() {
            messages.push(message.to_vec());
        }
        if messages.is_empty() {
            continue;
        }
        let first = messages.remove(0);
        match (v1::Command::decode(&first[..]), v1::ControlRequest::decode(&first[..])) {
            (Ok(v1::Command { command: Some(C::Open(open)) }), _) if !open.device.is_empty() => {
                all.push(Recorded::Queue { queue: open.queue, device: open.device, messages });
            }
            (_, Ok(v1::ControlRequest { request: Some(R::Attach(session)) })) if session.secret.len() == 32 => {
                all.push(Recorded::Control(messages));
            }
            _ => {}
        }
    }
    all
}

/// What happened so far.
#[derive(Default)]
struct Counts {
    messages: AtomicU64,
    changed: AtomicU64,
    connections: AtomicU64,
    broken: AtomicU64,
}

/// Messages as no client would send them. Those that cannot be decoded end their connection, so that one at most comes, at the end.
fn spoil<M: Message + Default>(messages: &[Vec<u8>], most: usize, rng: &mut StdRng) -> (Vec<Vec<u8>>, u64) {
    let most = rng.random_range(1..=most);
    let mut out: Vec<_> = match rng.random_range(0..3) {
        // From the beginning and in their order, as far as it goes; anywhere; from all over.
        0 => messages.iter().take(most).cloned().collect(),
        1 => {
            let from = rng.random_range(0..messages.len().max(1));
            messages.iter().skip(from).take(most).cloned().collect()
        }
        _ => messages.choose_multiple(rng, most).cloned().collect(),
    };
    match rng.random_range(0..4) {
        0 => out.shuffle(rng),
        1 => out.extend_from_within(..out.len() / 4),
        _ => {}
    }
    let mut changed = 0;
    for message in &mut out {
        let new = match rng.random_range(0..8) {
            0..3 => continue,
            3 => flip(message, rng),
            4 => message[..rng.random_range(0..=message.len())].to_vec(),
            _ => mutate::protobuf(message, rng),
        };
        changed += u64::from(new != *message);
        *message = new;
    }
    let (mut good, bad): (Vec<_>, Vec<_>) = out.into_iter().partition(|m| M::decode(&m[..]).is_ok());
    good.extend(bad.into_iter().next().filter(|_| rng.random_range(0..4) == 0));
    (good, changed)
}

fn flip(bytes: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..rng.random_range(1..6) {
        let n = out.len();
        if let Some(byte) = out.get_mut(rng.random_range(0..n.max(1))) {
            *byte ^= 1 << rng.random_range(0..8);
        }
    }
    out
}

/// A hostile session: some of the recorded streams of one real session, spoiled.
async fn session(addr: SocketAddr, recorded: &[Recorded], rng: &mut StdRng, counts: &Counts) -> Result<(), String> {
    let conn = Conn::open(addr).await?.with_token(BAD);
    counts.connections.fetch_add(1, Ordering::Relaxed);
    let session = conn.hello().await?.session.ok_or("no session")?;
    let count = |messages: &[Vec<u8>], changed| {
        counts.messages.fetch_add(messages.len() as u64, Ordering::Relaxed);
        counts.changed.fetch_add(changed, Ordering::Relaxed);
    };
    let mut streams = Vec::new();
    let controls: Vec<_> = recorded.iter().filter_map(Recorded::control).collect();
    if let Some(messages) = controls.choose(rng) {
        let mut stream = conn.stream("outboard.v1.Outboard/Control").await?;
        let attach = R::Attach(session.clone());
        stream.message(&v1::ControlRequest { request: Some(attach) }.encode_to_vec());
        let (messages, changed) = spoil::<v1::ControlRequest>(messages, SESSION, rng);
        count(&messages, changed);
        messages.into_iter().for_each(|m| stream.message(&m));
        // What it makes is there for the queues; a request of ours behind them says so.
        let last = v1::Alloc { request: LAST, ..Default::default() };
        stream.message(&v1::ControlRequest { request: Some(R::Alloc(last)) }.encode_to_vec());
        let listen = async {
            while let Ok(Some(reply)) = stream.next().await {
                let reply = v1::ControlReply::decode(reply).expect("what a server says").reply;
                if matches!(reply, Some(v1::control_reply::Reply::Done(v1::Done { request: LAST, .. }))) {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, listen).await;
        streams.push(stream);
    }
    let queues: Vec<_> = recorded.iter().filter_map(Recorded::queue).collect();
    let n = rng.random_range(1..=QUEUES);
    for (queue, device, messages) in queues.choose_multiple(rng, n) {
        let mut stream = conn.stream("outboard.v1.Outboard/Queue").await?;
        let open = v1::OpenQueue { session: Some(session.clone()), queue: *queue, device: device.to_string() };
        stream.message(&v1::Command { command: Some(C::Open(open)) }.encode_to_vec());
        let (messages, changed) = spoil::<v1::Command>(messages, SESSION / QUEUES, rng);
        count(&messages, changed);
        messages.iter().for_each(|m| stream.message(m));
        let last = v1::Command { command: Some(C::Finish(v1::Finish { request: LAST })) };
        stream.message(&last.encode_to_vec());
        // Not for waits that never end.
        let listen = async {
            while let Ok(Some(reply)) = stream.next().await {
                let reply = v1::Reply::decode(reply).expect("what a server says").reply;
                if matches!(reply, Some(v1::reply::Reply::Done(v1::Done { request: LAST, .. }))) {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, listen).await;
        // Cut off in the middle of a frame, now and then.
        if let Some(message) = messages.first()
            && rng.random_range(0..4) == 0
        {
            let whole = framed(message);
            stream.bytes(whole.slice(..rng.random_range(0..=whole.len())));
            stream.close();
        }
        streams.push(stream);
    }
    // Some do not say goodbye, and are found out when their lease is over.
    if controls.is_empty() || rng.random_range(0..16) == 0 {
        Ok(())
    } else {
        drop(streams);
        conn.goodbye(&session).await
    }
}

/// The bytes of a real connection, spoiled, as they are.
fn connection(addr: SocketAddr, tape: &[u8], rng: &mut StdRng, counts: &Counts) {
    let Ok(mut socket) = TcpStream::connect(addr) else { return };
    let mut bytes = tape[..tape.len().min(1 << 18)].to_vec();
    match rng.random_range(0..3) {
        0 => bytes.truncate(rng.random_range(0..=bytes.len())),
        1 => {
            // Behind the greeting, which would end it at once.
            let head = bytes.len().min(100);
            let spoiled = flip(&bytes[head..], rng);
            bytes.splice(head.., spoiled);
        }
        _ => bytes = mutate::flat(&bytes, rng),
    }
    counts.connections.fetch_add(1, Ordering::Relaxed);
    counts.messages.fetch_add(1, Ordering::Relaxed);
    counts.changed.fetch_add(1, Ordering::Relaxed);
    let _ = socket.set_write_timeout(Some(Duration::from_secs(2)));
    let _ = socket.set_read_timeout(Some(Duration::from_millis(5)));
    let _ = socket.write_all(&bytes);
    let _ = socket.read(&mut [0; 4096]);
}

/// The client that behaves.
fn client(args: &[&str]) -> Finished {
    Client::start_with(args, &[("OUTBOARD_TOKEN", GOOD)]).wait(LIMIT)
}

/// Free memory of the server's first device.
fn memory_free(addr: &str) -> u64 {
    let devices: serde_json::Value = client(&["devices", "--rpc", addr, "--json"]).json();
    let all = devices.as_array().unwrap();
    let first = all.iter().find(|d| d["id"].as_str().unwrap().starts_with(addr)).unwrap();
    first["memory_free"].as_u64().unwrap()
}

/// Text and speed of a run of the client that behaves.
fn generate(model: &Path, addr: &str) -> (String, f64) {
    let device = format!("{addr}/CPU0");
    let mut args = vec!["run", "-m", model.to_str().unwrap(), "--rpc", addr, "-dev", &device];
    args.extend(["-p", "Once upon a time", "-n", "200"]);
    args.extend(["--temp", "0", "-c", "256", "--ignore-eos", "--json"]);
    let report: serde_json::Value = client(&args).json();
    (report["text"].as_str().unwrap().to_owned(), report["timings"]["decode_tps"].as_f64().unwrap())
}

#[test]
fn a_client_beside_hostile_ones() {
    let Some(path) = model("smollm2") else { return };
    let wanted = std::env::var("OUTBOARD_SOAK").ok().map_or(MESSAGES, |n| n.parse().expect("a number of messages"));
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, format!("good {GOOD}\nbad {BAD}\n")).unwrap();
    let args = ["-d", "cpu:1,reference", "--metrics", "127.0.0.1:0", "--token-file", tokens.to_str().unwrap()];
    let mut server = Server::start(&[&args[..], &SHARES].concat());
    let addr: SocketAddr = server.addr.parse().unwrap();
    // Real sessions: one that tries every op and copy, one that loads a model and writes.
    let (recording, tapes) = recorder(addr);
    let smoke = client(&["smoke", "--rpc", &recording.to_string()]);
    assert_eq!(smoke.code, Some(0), "{}", smoke.stderr);
    generate(&path, &recording.to_string());
    let tapes = tapes.lock().unwrap().clone();
    let recorded: Vec<Vec<Recorded>> = tapes.iter().map(|tape| streams(tape)).filter(|s| s.len() > 1).collect();
    let n: usize = recorded
        .iter()
        .flatten()
        .map(|r| match r {
            Recorded::Control(messages) | Recorded::Queue { messages, .. } => messages.len(),
        })
        .sum();
    println!("recorded: {} connections, {} sessions, {n} messages", tapes.len(), recorded.len());
    assert!(recorded.len() >= 2 && n > 500);

    let (text, alone) = generate(&path, &server.addr);
    let free = memory_free(&server.addr);
    let (counts, done) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
    let hostile = |wanted: u64, seed: u64| {
        let (counts, done, tapes, recorded) = (counts.clone(), done.clone(), tapes.clone(), recorded.clone());
        move || {
            let mut rng = StdRng::seed_from_u64(seed);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            while counts.messages.load(Ordering::Relaxed) < wanted {
                if rng.random_range(0..40) == 0 {
                    connection(addr, tapes.choose(&mut rng).unwrap(), &mut rng, &counts);
                    continue;
                }
                let ended = runtime.block_on(session(addr, recorded.choose(&mut rng).unwrap(), &mut rng, &counts));
                if let Err(e) = ended {
                    // The server ends what it cannot decode, and has an answer to everything.
                    assert!(!e.starts_with(NOTHING), "{e}");
                    counts.broken.fetch_add(1, Ordering::Relaxed);
                    // Sessions that did not say goodbye are there for the length of a lease; so many may be open.
                    if e.contains("sessions here already") {
                        std::thread::sleep(FULL);
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        }
    };
    hostile(WARM_UP.min(wanted), 3)();
    settled(&server);
    assert_eq!(generate(&path, &server.addr).0, text);
    let resident = resident(&server);
    done.store(false, Ordering::Relaxed);
    let hostile = std::thread::spawn(hostile(wanted, 4));
    let start = Instant::now();
    let mut speeds = Vec::new();
    while speeds.is_empty() || !done.load(Ordering::Relaxed) && !hostile.is_finished() {
        let (beside, tps) = generate(&path, &server.addr);
        assert_eq!(beside, text);
        speeds.push(tps);
        assert!(server.is_running(), "the server has ended");
    }
    hostile.join().unwrap();
    let took = start.elapsed();
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    speeds.sort_by(f64::total_cmp);
    println!(
        "{} messages, {} of them changed, on {} connections, {} of which the server ended, in {took:.0?}; the client beside them: {} runs, \
         the same text each time, {:.1} tokens/s (median; slowest {:.1}), alone {alone:.1}",
        get(&counts.messages),
        get(&counts.changed),
        get(&counts.connections),
        get(&counts.broken),
        speeds.len(),
        speeds[speeds.len() / 2],
        speeds[0]
    );
    // What they had is free again when their leases are over, and the server is not larger than it was by much.
    settled(&server);
    assert_eq!(memory_free(&server.addr), free);
    assert_eq!(generate(&path, &server.addr).0, text);
    let after = self::resident(&server);
    println!("resident: {} MiB after the warm-up, {} MiB after the soak", resident >> 20, after >> 20);
    assert!(after <= resident + GROWTH, "{after} bytes resident, {resident} after the warm-up");
    assert!(server.is_running());
}

/// What a server takes when nobody is there. A session that ends has it give back what its allocator keeps, as far as threads have
/// ended: the smallest of some looks counts.
fn resident(server: &Server) -> u64 {
    let look = |_| {
        memory_free(&server.addr);
        settled(server);
        server.resident()
    };
    (0..LOOKS).map(look).min().unwrap_or_default()
}

/// Waits until nothing of anybody is left on the server.
fn settled(server: &Server) {
    for metric in ["outboard_sessions", "outboard_connections", "outboard_peer_links", "outboard_queue_depth"] {
        server.wait_for_none(metric, ENDED);
    }
}
