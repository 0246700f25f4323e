//! Encryption and credentials: who is let in by whom, by which carrier, and the one line for each thing that is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/pki.rs"]
#[allow(unreachable_pub)]
mod pki;

#[path = "common/ends.rs"]
mod ends;
#[path = "common/plain.rs"]
mod plain;

use common::*;
use ends::{End, ends_with, ticket};
use outboard_core::Host;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{
    Carrier, ClientOptions, ClientTls, Endpoint, PeerPath, RemoteDevice, TlsFiles, Token, connect,
};
use outboard_rpc_server::{Limits, PeerList, Server, ServerConfig, ServerTls, Tokens, Trust};
use pki::{Ca, Pair};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENCRYPTED: [Carrier; 2] = [Carrier::Tls, Carrier::Quic];
const VALID: [i64; 2] = [-1, 1];
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER_TOKEN: &str = "fedcba9876543210fedcba9876543210";

/// A CA, and a server with a certificate of it.
struct Site {
    dir: tempfile::TempDir,
    ca: Ca,
}

impl Site {
    fn new() -> Site {
        Site::named("ca")
    }

    fn named(ca: &str) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new(dir.path(), ca);
        Site { dir, ca }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A server with this certificate, which asks for what it is told to.
    fn server(&self, pair: &Pair, client_ca: Option<&Ca>, tokens: Option<&str>) -> Server {
        let tls = server_tls(pair, client_ca);
        let tokens = tokens.map(|text| {
            let path = self.path().join("tokens");
            std::fs::write(&path, text).unwrap();
            Arc::new(Tokens::load(&path).unwrap())
        });
        start(Trust { tls: Some(tls), tokens, peers: peers(pair, Some(&self.ca)), ..Default::default() })
    }

    /// With a good certificate.
    fn good(&self, client_ca: Option<&Ca>, tokens: Option<&str>) -> Server {
        self.server(&self.ca.server(&["localhost", "127.0.0.1"], VALID), client_ca, tokens)
    }

    fn options(&self) -> ClientOptions {
        self.files(TlsFiles { ca: Some(self.ca.file.clone()), ..Default::default() })
    }

    fn with_pair(&self, pair: &Pair) -> ClientOptions {
        let ca = Some(self.ca.file.clone());
        self.files(TlsFiles { ca, cert: Some(pair.cert.clone()), key: Some(pair.key.clone()) })
    }

    fn files(&self, files: TlsFiles) -> ClientOptions {
        ClientOptions { tls: ClientTls::load(files).unwrap(), ..Default::default() }
    }
}

fn server_tls(pair: &Pair, client_ca: Option<&Ca>) -> ServerTls {
    ServerTls::load(&pair.cert, &pair.key, client_ca.map(|ca| ca.file.as_path())).unwrap()
}

/// What a server with this certificate shows others, and the CA that it knows them by.
fn peers(pair: &Pair, ca: Option<&Ca>) -> ClientTls {
    let ca = ca.map(|ca| ca.file.clone());
    ClientTls::for_peers(TlsFiles { ca, cert: Some(pair.cert.clone()), key: Some(pair.key.clone()) }).unwrap()
}

fn start(trust: Trust) -> Server {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(MEMORY)));
    let devices = ["REF0", "REF1"].map(|name| reference_device(&host, name, &budget)).to_vec();
    let addr = "127.0.0.1:0".parse().unwrap();
    Server::start(ServerConfig { addr, devices, limits: Limits::default(), trust }).unwrap()
}

fn at(server: &Server, carrier: Carrier) -> Endpoint {
    endpoint(server).by(carrier)
}

fn by(carrier: Carrier, host: &str, port: u16) -> Endpoint {
    Endpoint::parse(&format!("{host}:{port}")).unwrap().by(carrier)
}

fn token(text: &str) -> Option<Token> {
    Some(Token::new(text).unwrap())
}

/// The error of connecting: one line about this endpoint, soon.
fn error(endpoint: &Endpoint, options: &ClientOptions) -> String {
    let start = Instant::now();
    let error = connect(std::slice::from_ref(endpoint), options).map(|d| d.len()).unwrap_err();
    let (text, took) = (error.to_string(), start.elapsed());
    println!("{text}   ({took:?})");
    assert!(matches!(&error, Error::Peer { endpoint: e, .. } if *e == endpoint.to_string()), "{error:?}");
    assert!(!text.contains('\n') && text.starts_with(&endpoint.to_string()), "{text}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    text
}

/// A queue works, with small and large payloads.
fn works(device: &Arc<dyn Device>) {
    let queue = device.queue().unwrap();
    let a = buffer(device, 24 << 20);
    let data: Bytes = (0..24u32 << 20).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect::<Vec<u8>>().into();
    queue.write(&a, data.clone()).unwrap();
    assert_eq!(queue.read(&a).unwrap().wait(WAIT).unwrap(), data);
    for round in 0..50 {
        queue.fill(&a.part(0, 64).unwrap(), round).unwrap();
        assert_eq!(read(queue.as_ref(), &a.part(0, 64).unwrap())[63], round);
    }
}

#[test]
fn everything_works_encrypted() {
    let site = Site::new();
    let server = site.good(None, None);
    for carrier in ENCRYPTED {
        let endpoint = at(&server, carrier);
        let devices = connect(std::slice::from_ref(&endpoint), &site.options()).unwrap();
        assert_eq!(devices[1].info().id, format!("{endpoint}/REF1"));
        devices.iter().for_each(works);
        let net = RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats();
        assert!(net.sent_bytes > 48 << 20 && net.recv_bytes > 48 << 20, "{net:?}");
        drop(devices);
        assert_eq!(server.sessions(), 0);
    }
    // What is near gets TLS, what speaks no QUIC as well.
    let near = connect(&[at(&server, Carrier::Auto)], &site.options()).unwrap();
    assert_eq!(RemoteDevice::of(near[0].as_ref()).unwrap().carrier(), Carrier::Tls);
    works(&near[0]);
    // A name, which stands for several addresses, of which the server has one.
    for carrier in ENCRYPTED {
        let endpoint = by(carrier, "localhost", server.local_addr().port());
        works(&connect(&[endpoint], &site.options()).unwrap()[0]);
    }
}

#[test]
fn a_session_on_quic_leaves_nothing_behind() {
    let site = Site::new();
    let mut server = site.good(None, None);
    for _ in 0..30 {
        let devices = connect(&[at(&server, Carrier::Quic)], &site.options()).unwrap();
        let queue = devices[0].queue().unwrap();
        let a = buffer(&devices[0], 1 << 20);
        queue.write(&a, Bytes::from(vec![1; 1 << 20])).unwrap();
        queue.finish(WAIT).unwrap();
    }
    assert_eq!(server.sessions(), 0);
    eventually(Duration::from_secs(3), || server.connections() == 0);
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_server_that_is_not_who_it_should_be() {
    let site = Site::new();
    // One of them has a CA with the same name, but another key.
    let others = [Site::named("other"), Site::new()];
    for carrier in ENCRYPTED {
        let server = site.good(None, None);
        for other in &others {
            let text = error(&at(&server, carrier), &other.options());
            assert!(text.contains("not signed by a CA that is trusted here") && text.contains("--ca"), "{text}");
        }
        // The system trusts others.
        let text = error(&at(&server, carrier), &ClientOptions::default());
        assert!(text.contains("--ca"), "{text}");
        let server = site.server(&site.ca.server(&["127.0.0.1"], [-10, -5]), None, None);
        let text = error(&at(&server, carrier), &site.options());
        assert!(text.contains("expired"), "{text}");
        let server = site.server(&site.ca.server(&["127.0.0.1"], [5, 10]), None, None);
        let text = error(&at(&server, carrier), &site.options());
        assert!(text.contains("clocks"), "{text}");
        let server = site.server(&site.ca.server(&["gpu.lan", "10.0.0.9"], VALID), None, None);
        let text = error(&at(&server, carrier), &site.options());
        assert!(text.contains("gpu.lan") && text.contains("127.0.0.1"), "{text}");
        let server = site.server(&site.ca.client("127.0.0.1", VALID), None, None);
        let text = error(&at(&server, carrier), &site.options());
        assert!(text.contains("its certificate is not"), "{text}");
    }
}

#[test]
fn a_client_that_shows_the_wrong_certificate_or_none() {
    let site = Site::new();
    let (other, same_name) = (Site::named("other"), Site::new());
    let server = site.good(Some(&site.ca), None);
    let (good, late) = (site.ca.client("laptop", VALID), site.ca.client("late", [-10, -5]));
    let (foreign, wrong) = (other.ca.client("laptop", VALID), site.ca.server_only("laptop", VALID));
    let similar = same_name.ca.client("laptop", VALID);
    for carrier in ENCRYPTED {
        let endpoint = at(&server, carrier);
        works(&connect(std::slice::from_ref(&endpoint), &site.with_pair(&good)).unwrap()[0]);
        let text = error(&endpoint, &site.options());
        assert!(text.contains("wants a client certificate") && text.contains("--cert"), "{text}");
        for (pair, expected) in
            [(&foreign, "another CA"), (&similar, "another CA"), (&late, "expired"), (&wrong, "client certificate")]
        {
            let text = error(&endpoint, &site.with_pair(pair));
            assert!(text.contains(expected), "{text}");
        }
    }
    assert_eq!(server.sessions(), 0);
}

#[test]
fn tokens_right_wrong_missing_and_rotated() {
    let site = Site::new();
    let server = site.good(None, Some(&format!("laptop {TOKEN}\n")));
    for carrier in ENCRYPTED {
        let endpoint = at(&server, carrier);
        let with = |text: &str| ClientOptions { token: token(text), ..site.options() };
        std::fs::write(site.path().join("tokens"), format!("laptop {TOKEN}\n")).unwrap();
        let old = connect(std::slice::from_ref(&endpoint), &with(TOKEN)).unwrap();
        works(&old[0]);
        let text = error(&endpoint, &site.options());
        assert!(text.contains("wants a token") && text.contains("--token-file"), "{text}");
        let text = error(&endpoint, &with(OTHER_TOKEN));
        assert!(text.contains("does not know this token") && !text.contains(OTHER_TOKEN), "{text}");
        std::fs::write(site.path().join("tokens"), format!("laptop {OTHER_TOKEN}\n")).unwrap();
        error(&endpoint, &with(TOKEN));
        works(&connect(std::slice::from_ref(&endpoint), &with(OTHER_TOKEN)).unwrap()[0]);
        // A session that is open stays.
        works(&old[1]);
        // A file that is being written, badly.
        std::fs::write(site.path().join("tokens"), "laptop").unwrap();
        works(&connect(std::slice::from_ref(&endpoint), &with(OTHER_TOKEN)).unwrap()[0]);
    }
}

#[test]
fn a_server_that_wants_both_gets_both() {
    let site = Site::new();
    let server = site.good(Some(&site.ca), Some(&format!("laptop {TOKEN}\n")));
    let pair = site.ca.client("laptop", VALID);
    let endpoint = at(&server, Carrier::Tls);
    error(&endpoint, &site.with_pair(&pair));
    error(&endpoint, &ClientOptions { token: token(TOKEN), ..site.options() });
    works(&connect(&[endpoint], &ClientOptions { token: token(TOKEN), ..site.with_pair(&pair) }).unwrap()[0]);
}

#[test]
fn plain_to_tls_and_tls_to_plain() {
    let site = Site::new();
    let (encrypted, (plain, _)) = (site.good(None, None), server());
    let text = error(&endpoint(&encrypted), &ClientOptions::default());
    assert!(text.contains("speaks TLS only") && text.contains("grpcs://"), "{text}");
    let text = error(&at(&plain, Carrier::Tls), &site.options());
    assert!(text.contains("does not speak TLS") && text.contains("grpcs://"), "{text}");
    let text = error(&at(&plain, Carrier::Quic), &site.options());
    assert!(text.contains("QUIC") && text.contains("--tls-cert"), "{text}");
    // With tokens, the plain answer is the same: nothing is said to a client that does not speak TLS.
    let guarded = site.good(Some(&site.ca), Some(&format!("laptop {TOKEN}\n")));
    let text = error(&endpoint(&guarded), &ClientOptions { token: token(TOKEN), ..Default::default() });
    assert!(text.contains("speaks TLS only"), "{text}");
    assert_eq!((encrypted.sessions(), plain.sessions()), (0, 0));
}

#[test]
fn a_token_on_loopback_needs_no_tls() {
    let site = Site::new();
    let path = site.path().join("tokens");
    std::fs::write(&path, format!("laptop {TOKEN}\n")).unwrap();
    let server = start(Trust { tokens: Some(Arc::new(Tokens::load(&path).unwrap())), ..Default::default() });
    works(&connect(&[endpoint(&server)], &ClientOptions { token: token(TOKEN), ..Default::default() }).unwrap()[0]);
    error(&endpoint(&server), &ClientOptions::default());
}

#[test]
fn a_token_does_not_leave_the_host_unencrypted() {
    // An address of this host that is not its loopback: the one that it would reach others from. Nothing is sent.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()).map(|addr| addr.ip());
    let Some(own) = own.ok().filter(|ip| !ip.is_loopback() && !ip.is_unspecified()) else { return };
    let site = Site::new();
    let path = site.path().join("tokens");
    std::fs::write(&path, format!("laptop {TOKEN}\n")).unwrap();
    let trust = Trust { tokens: Some(Arc::new(Tokens::load(&path).unwrap())), ..Default::default() };
    let budget = MemoryBudget::new(Some(MEMORY));
    let devices = vec![reference_device(&Host::new(), "REF0", &budget)];
    let limits = Limits::default();
    let server = Server::start(ServerConfig { addr: (own, 0).into(), devices, limits, trust }).unwrap();
    let options = ClientOptions { token: token(TOKEN), ..Default::default() };
    let text = error(&endpoint(&server), &options);
    assert!(text.contains("never sent to another host without encryption") && text.contains("grpcs://"), "{text}");
}

#[test]
fn a_handshake_that_says_nothing() {
    // A server that accepts, and one that answers with something else.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = Site::new();
    let text = error(&by(Carrier::Tls, "127.0.0.1", silent.local_addr().unwrap().port()), &site.options());
    assert!(text.contains("TLS handshake") && text.contains("3 s"), "{text}");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let answering = std::thread::spawn(move || {
        let (mut socket, _) = other.accept().unwrap();
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"SSH-2.0-OpenSSH_9\r\n");
        std::thread::sleep(Duration::from_millis(300));
    });
    let text = error(&by(Carrier::Tls, "127.0.0.1", port), &site.options());
    assert!(text.contains("does not speak TLS"), "{text}");
    answering.join().unwrap();
    // A UDP port that swallows everything.
    let hole = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let text = error(&by(Carrier::Quic, "127.0.0.1", hole.local_addr().unwrap().port()), &site.options());
    assert!(text.contains("no answer over QUIC"), "{text}");
    // A client that connects and waits, or sends half of a handshake: the server closes it, and serves others meanwhile.
    let server = site.good(None, None);
    let mut idle = TcpStream::connect(server.local_addr()).unwrap();
    let mut half = TcpStream::connect(server.local_addr()).unwrap();
    half.write_all(&[0x16, 0x03, 0x01, 0x01]).unwrap();
    works(&connect(&[at(&server, Carrier::Tls)], &site.options()).unwrap()[0]);
    for socket in [&mut idle, &mut half] {
        socket.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        assert_eq!(socket.read(&mut [0; 64]).unwrap_or(0), 0);
    }
    eventually(Duration::from_secs(3), || server.connections() == 0);
}

#[test]
fn without_a_token_nothing_is_told() {
    let site = Site::new();
    let path = site.path().join("tokens");
    std::fs::write(&path, format!("laptop {TOKEN}\n")).unwrap();
    let server = start(Trust { tokens: Some(Arc::new(Tokens::load(&path).unwrap())), ..Default::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use outboard_proto::v1;
        let mut client = plain::client(&server).await;
        let denied = |status: tonic::Status| assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
        denied(client.devices(v1::DevicesRequest {}).await.unwrap_err());
        denied(client.memory(v1::MemoryRequest { device: "REF0".into() }).await.unwrap_err());
        denied(client.hello(v1::HelloRequest::default()).await.unwrap_err());
        for wrong in ["Bearer", "Bearer ", TOKEN, "Basic 0123456789abcdef0123456789abcdef", "Bearer 0123456789abcdef"] {
            // A connection takes few wrong ones.
            let mut client = plain::client(&server).await;
            let mut request = tonic::Request::new(v1::DevicesRequest {});
            request.metadata_mut().insert("authorization", wrong.parse().unwrap());
            denied(client.devices(request).await.unwrap_err());
        }
        let mut request = tonic::Request::new(v1::DevicesRequest {});
        request.metadata_mut().insert("authorization", format!("bearer {TOKEN}").parse().unwrap());
        assert_eq!(client.devices(request).await.unwrap().into_inner().devices.len(), 2);
    });
}

/// Relays datagrams until it is told to be silent.
fn udp_proxy(to: std::net::SocketAddr) -> (u16, Arc<std::sync::atomic::AtomicBool>) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (front, back) =
        (std::net::UdpSocket::bind("127.0.0.1:0").unwrap(), std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    back.connect(to).unwrap();
    let port = front.local_addr().unwrap().port();
    let silent = Arc::new(AtomicBool::new(false));
    let client = Arc::new(std::sync::Mutex::new(None));
    let (f, b, s, c) = (front.try_clone().unwrap(), back.try_clone().unwrap(), silent.clone(), client.clone());
    std::thread::spawn(move || {
        let mut buf = vec![0; 1 << 16];
        while let Ok((n, from)) = f.recv_from(&mut buf) {
            *c.lock().unwrap() = Some(from);
            if !s.load(Ordering::SeqCst) {
                let _ = b.send(&buf[..n]);
            }
        }
    });
    let s = silent.clone();
    std::thread::spawn(move || {
        let mut buf = vec![0; 1 << 16];
        while let Ok(n) = back.recv(&mut buf) {
            let to = *client.lock().unwrap();
            if let (Some(to), false) = (to, s.load(Ordering::SeqCst)) {
                let _ = front.send_to(&buf[..n], to);
            }
        }
    });
    (port, silent)
}

#[test]
fn a_quic_server_that_falls_silent_is_found_out_within_two_seconds() {
    let site = Site::new();
    let server = site.good(None, None);
    let (port, silent) = udp_proxy(server.local_addr());
    let endpoint = by(Carrier::Quic, "127.0.0.1", port);
    let devices = connect(std::slice::from_ref(&endpoint), &site.options()).unwrap();
    let queue = devices[0].queue().unwrap();
    let a = buffer(&devices[0], 8 << 20);
    queue.write(&a, Bytes::from(vec![3; 8 << 20])).unwrap();
    queue.finish(WAIT).unwrap();
    // Quiet, but alive.
    std::thread::sleep(Duration::from_millis(2500));
    queue.finish(WAIT).unwrap();
    silent.store(true, std::sync::atomic::Ordering::SeqCst);
    let start = Instant::now();
    let error = queue.read(&a).unwrap().wait(WAIT).unwrap_err();
    println!("{error}, after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(error.to_string().starts_with(&endpoint.to_string()), "{error}");
}

#[test]
fn a_quic_server_that_stops_says_so() {
    let site = Site::new();
    let mut server = site.good(None, None);
    let endpoint = at(&server, Carrier::Quic);
    let devices = connect(std::slice::from_ref(&endpoint), &site.options()).unwrap();
    let never = devices[1].queue().unwrap();
    let b = buffer(&devices[1], 64);
    devices[1].peer().unwrap().accept(never.as_ref(), Ticket([1; 32]), &b).unwrap();
    let pending = never.read(&b).unwrap();
    // Under way before the server stops.
    devices[0].queue().unwrap().finish(WAIT).unwrap();
    let start = Instant::now();
    let stopping = std::thread::spawn(move || server.stop());
    let error = pending.wait(WAIT).unwrap_err();
    println!("{error}, after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(matches!(&error, Error::Peer { endpoint: e, .. } if *e == endpoint.to_string()), "{error}");
    stopping.join().unwrap();
}

#[test]
fn random_datagrams_harm_nobody() {
    let site = Site::new();
    let server = site.good(None, None);
    let devices = connect(&[at(&server, Carrier::Quic)], &site.options()).unwrap();
    let queue = devices[0].queue().unwrap();
    let a = buffer(&devices[0], 64);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 88172645463325252u64;
    for round in 0..2000usize {
        let bytes: Vec<u8> = (0..20 + round % 1400)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let _ = socket.send_to(&bytes, server.local_addr());
        if round % 100 == 0 {
            queue.fill(&a, 5).unwrap();
            assert_eq!(read(queue.as_ref(), &a)[5], 5);
        }
    }
}

/// Sends a megabyte and some from one server to another.
fn sends(x: &End, y: &End) {
    const LEN: usize = (1 << 20) + 5;
    let data: Bytes = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>().into();
    let (src, dst) = (x.memory.part(0, LEN as u64).unwrap(), y.memory.part(0, LEN as u64).unwrap());
    for round in 0..20 {
        let ticket = ticket();
        x.queue.write(&src, data.clone()).unwrap();
        y.queue.fill(&y.memory, round).unwrap();
        x.offer(ticket, &src, y);
        y.accept(ticket, &dst);
        assert!(read(y.queue.as_ref(), &dst) == data, "{round}");
    }
}

#[test]
fn servers_prove_themselves_to_each_other() {
    let site = Site::new();
    let tokens = format!("me {TOKEN}\n");
    let client = site.ca.client("laptop", VALID);
    for carrier in ENCRYPTED {
        let [a, b] = [(); 2].map(|()| site.good(Some(&site.ca), Some(&tokens)));
        let options = ClientOptions { token: token(TOKEN), ..site.with_pair(&client) };
        let [x, y] = ends_with([at(&a, carrier), at(&b, carrier)], &options, 2 << 20);
        assert_eq!((x.path(&y), y.path(&x)), (PeerPath::Direct, PeerPath::Direct), "{carrier:?}");
        sends(&x, &y);
        sends(&y, &x);
        let stats = RemoteDevice::of(x.device.as_ref()).unwrap().net_stats();
        assert!(stats.peer_bytes > 20 << 20, "{stats:?}");
        // The other way of the same server, without encryption of what is meant to be encrypted, is not taken.
        assert_eq!((a.peer_links(), b.peer_links()), (1, 1));
    }
}

#[test]
fn a_server_that_does_not_trust_another_sends_through_the_client() {
    let (site, other) = (Site::new(), Site::named("another"));
    let pair = || site.ca.server(&["localhost", "127.0.0.1"], VALID);
    let one = |peers: ClientTls, client_ca: Option<&Ca>| {
        start(Trust { tls: Some(server_tls(&pair(), client_ca)), peers, ..Default::default() })
    };
    for carrier in ENCRYPTED {
        // It knows the other by another CA.
        let (a, b) = (one(peers(&pair(), Some(&other.ca)), None), site.good(None, None));
        let [x, y] = ends_with([at(&a, carrier), at(&b, carrier)], &site.options(), 2 << 20);
        let path = x.path(&y);
        let why = |part: &str| matches!(&path, PeerPath::Relayed(why) if why.contains(part));
        println!("{path}");
        assert!(why("CA"), "{path:?}");
        assert_eq!(y.path(&x), PeerPath::Direct);
        sends(&y, &x);
    }
    for carrier in ENCRYPTED {
        // It shows the other a certificate that this does not know.
        let stranger = other.ca.server(&["localhost"], VALID);
        let (a, b) = (one(peers(&stranger, Some(&site.ca)), None), site.good(Some(&site.ca), None));
        let client = site.ca.client("laptop", VALID);
        let [x, y] = ends_with([at(&a, carrier), at(&b, carrier)], &site.with_pair(&client), 2 << 20);
        let path = x.path(&y);
        println!("{path}");
        assert!(matches!(&path, PeerPath::Relayed(why) if why.contains("certificate")), "{path:?}");
        assert_eq!(y.path(&x), PeerPath::Direct);
        sends(&y, &x);
    }
}

#[test]
fn a_server_connects_only_to_those_that_are_listed() {
    let site = Site::new();
    let pair = || site.ca.server(&["localhost", "127.0.0.1"], VALID);
    let one = |list: &[&str], encrypted: bool| {
        start(Trust {
            tls: encrypted.then(|| server_tls(&pair(), None)),
            peers: peers(&pair(), Some(&site.ca)),
            may_dial: PeerList::parse(list.iter().copied()).unwrap(),
            ..Default::default()
        })
    };
    for carrier in [Carrier::Tcp, Carrier::Tls, Carrier::Quic, Carrier::Auto] {
        let encrypted = carrier != Carrier::Tcp;
        for (list, host, listed) in [
            (&["10.0.0.0/8", "::1"][..], "127.0.0.1", Err("127.0.0.1")),
            (&[], "127.0.0.1", Err("127.0.0.1")),
            (&["127.0.0.0/8"], "127.0.0.1", Ok(())),
            // By its name, or by the address that the name has.
            (&["10.0.0.1", "localhost"], "localhost", Ok(())),
            (&["127.0.0.1", "::1"], "localhost", Ok(())),
            (&["10.0.0.1"], "localhost", Err("localhost (")),
            (&["gpu1.lan"], "localhost", Err("localhost")),
        ] {
            let (a, b) = (one(list, encrypted), one(&["127.0.0.1", "::1", "localhost"], encrypted));
            let to = by(carrier, host, b.local_addr().port());
            let before = b.connections();
            let [x, y] = ends_with([by(carrier, "127.0.0.1", a.local_addr().port()), to], &site.options(), 2 << 20);
            let path = x.path(&y);
            match listed {
                Ok(()) => {
                    assert_eq!(path, PeerPath::Direct, "{carrier:?} {list:?}");
                    sends(&x, &y);
                }
                Err(named) => {
                    let told = |why: &str| why.contains("--peers does not list") && why.contains(named);
                    assert!(matches!(&path, PeerPath::Relayed(why) if told(why)), "{carrier:?} {list:?}: {path}");
                    // It was not even tried: the client's own connection is the only one.
                    assert!(b.connections() - before <= 1, "{} connections", b.connections());
                }
            }
            assert_eq!(a.peer_links(), usize::from(listed.is_ok()));
            // The other way is another server's list.
            assert_eq!(y.path(&x), PeerPath::Direct);
        }
    }
}
