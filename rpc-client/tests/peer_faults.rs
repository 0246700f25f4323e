//! What can go wrong between servers: each is an error in time that names both, and nobody else notices.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use common::*;
use ends::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_rpc_client::{Endpoint, PeerPath};
use outboard_rpc_server::{Limits, PeerLimits, Server};
use proxy::Proxy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(500);

fn server_of(peers: PeerLimits) -> Server {
    server_with(Limits { peers, ..Limits::default() }).0
}

fn address(server: &Server) -> String {
    server.local_addr().to_string()
}

fn at(addr: std::net::SocketAddr) -> Endpoint {
    Endpoint::parse(&addr.to_string()).unwrap()
}

/// One line that names all of them.
fn names(error: &Error, all: &[&str]) {
    let text = error.to_string();
    println!("{text}");
    assert!(!text.contains('\n') && all.iter().all(|name| text.contains(name)), "{text}, not {all:?}");
}

/// A client that goes on all the time, beside what fails.
struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u32>,
}

impl Neighbour {
    fn start(a: Endpoint, b: Endpoint) -> Neighbour {
        let [x, y] = ends([a, b], 1000);
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut rounds = 0;
            while !flag.load(Ordering::SeqCst) {
                let t = ticket();
                x.queue.fill(&x.memory, rounds as u8).unwrap();
                x.offer(t, &x.memory, &y);
                y.accept(t, &y.memory);
                assert_eq!(read(y.queue.as_ref(), &y.memory)[999], rounds as u8);
                rounds += 1;
            }
            rounds
        });
        Neighbour { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        assert!(self.thread.join().unwrap() > 0);
    }
}

#[test]
fn a_ticket_is_used_once() {
    let (a, b) = (server().0, server().0);
    let neighbour = Neighbour::start(endpoint(&a), endpoint(&b));
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
    let t = ticket();
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    y.queue.finish(WAIT).unwrap();
    // Offered again, before and after its acceptance.
    let again = x.other();
    again.offer(t, &x.memory, &y);
    eventually(Duration::from_secs(2), || again.queue.finish(WAIT).is_err());
    names(&again.error(), &[&address(&a), &address(&b), "used twice"]);
    let early = ticket();
    let (first, second) = (x.other(), x.other());
    first.offer(early, &x.memory, &y);
    first.queue.finish(WAIT).unwrap();
    second.offer(early, &x.memory, &y);
    eventually(Duration::from_secs(2), || second.queue.finish(WAIT).is_err());
    // Accepted again.
    let twice = y.other();
    twice.accept(t, &y.memory);
    names(&twice.error(), &[&address(&b), "used twice"]);
    // The transfers themselves were not touched.
    y.accept(early, &y.memory);
    y.queue.finish(WAIT).unwrap();
    neighbour.end();
}

#[test]
fn a_ticket_is_for_one_size() {
    let (a, b) = (server().0, server().0);
    let neighbour = Neighbour::start(endpoint(&a), endpoint(&b));
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
    for accept_first in [false, true] {
        for len in [63, 65, 0] {
            let (from, to, t) = (x.other(), y.other(), ticket());
            let big = buffer(&x.device, 100);
            let src = big.part(0, len).unwrap();
            if accept_first {
                to.accept(t, &y.memory);
                from.offer(t, &src, &y);
            } else {
                from.offer(t, &src, &y);
                from.queue.finish(WAIT).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                to.accept(t, &y.memory);
            }
            // Whoever accepts first does not know yet who will send.
            let sender = if accept_first { "the server on 127.0.0.1".to_owned() } else { address(&a) };
            names(&to.error(), &[&address(&b), &sender, &format!("{len} bytes was accepted as 64")]);
            eventually(Duration::from_secs(2), || from.queue.finish(WAIT).is_err());
            names(&from.error(), &[&address(&a), &address(&b), "accepted as 64"]);
        }
    }
    neighbour.end();
}

#[test]
fn a_tensor_that_nobody_accepts() {
    let (a, b) = (server().0, server_of(PeerLimits { push: SHORT, ..PeerLimits::default() }));
    let neighbour = Neighbour::start(endpoint(&a), endpoint(&b));
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
    let t = ticket();
    x.offer(t, &x.memory, &y);
    x.queue.finish(WAIT).unwrap();
    eventually(SHORT, || x.queue.finish(WAIT).is_err());
    names(&x.error(), &[&address(&a), &address(&b), "not accepted within 0."]);
    // Whoever comes too late learns the same.
    let late = y.other();
    late.device.peer().unwrap().accept(late.queue.as_ref(), t, &y.memory).unwrap();
    names(&late.error(), &[&address(&a), &address(&b), "not accepted within 0."]);
    neighbour.end();
}

#[test]
fn a_tensor_that_never_comes() {
    let limits = PeerLimits { accept: SHORT, ..PeerLimits::default() };
    let (a, b) = (server(), server_of(limits));
    let a = a.0;
    let neighbour = Neighbour::start(endpoint(&a), endpoint(&b));
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
    // Nobody has offered it.
    let nobody = y.other();
    nobody.accept(ticket(), &y.memory);
    names(&nobody.error(), &[&address(&b), "nobody has offered"]);
    // It was offered, by a queue that does not come so far.
    let blocked = x.other();
    blocked.accept(ticket(), &x.memory);
    let t = ticket();
    blocked.offer(t, &x.memory, &y);
    let start = Instant::now();
    y.accept(t, &y.memory);
    names(&y.error(), &[&address(&a), &address(&b), "did not come within 0."]);
    assert!(start.elapsed() < SHORT + Duration::from_secs(2));
    // The queue that sends lives.
    x.queue.finish(WAIT).unwrap();
    neighbour.end();
}

#[test]
fn a_queue_that_fails_tells_those_that_wait_for_its_tensor() {
    let (a, b) = (server().0, server().0);
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
    let p = program();
    let placed = Placed::new(&x.device, &p);
    x.queue.write(&placed.slice(&p, p.ids), Bytes::copy_from_slice(&99i32.to_le_bytes())).unwrap();
    let (before, after) = (ticket(), ticket());
    x.queue.execute(&placed.executable).unwrap();
    x.offer(before, &x.memory, &y);
    y.accept(before, &y.memory);
    names(&y.error(), &[&address(&a), "picked"]);
    // Accepted first: then its name is not known.
    let (first, t) = (y.other(), ticket());
    first.accept(t, &y.memory);
    if x.device.peer().unwrap().offer(x.queue.as_ref(), t, &x.memory, y.device.as_ref()).is_ok() {
        names(&first.error(), &["the server on 127.0.0.1", "picked"]);
    }
    // On a queue that is known to have failed.
    let error = x.error();
    names(&error, &[&address(&a), "picked"]);
    let late = y.other();
    late.accept(after, &y.memory);
    assert!(x.device.peer().unwrap().offer(x.queue.as_ref(), after, &x.memory, y.device.as_ref()).is_err());
    // What is wrong with an offer itself reaches the other side, too.
    let other = x.other();
    let t = ticket();
    late.accept(t, &y.memory);
    other.offer(t, &x.memory.part(0, 3).unwrap(), &y);
    other.queue.finish(WAIT).ok();
}

/// Two servers, the second behind a proxy, and the number of the connection between them.
fn behind_proxy(a: &Server, b: &Server, size: u64) -> (Proxy, [End; 2], usize) {
    let proxy = Proxy::start(b.local_addr());
    let all = ends([endpoint(a), at(proxy.addr)], size);
    let before = proxy.count();
    assert_eq!(all[0].path(&all[1]), PeerPath::Direct);
    assert_eq!(proxy.count(), before + 1);
    (proxy, all, before)
}

#[test]
fn a_link_that_is_cut_in_the_middle_of_a_tensor() {
    const LEN: u64 = 64 << 20;
    let (a, b) = (server().0, server().0);
    let (proxy, [x, y], link) = behind_proxy(&a, &b, LEN);
    let [far, near] = ends([endpoint(&a), endpoint(&b)], 1000);
    proxy.allow(link, 1 << 20);
    let t = ticket();
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    proxy.cut(link);
    names(&y.error(), &[&address(&a), &proxy.addr.to_string(), "lost"]);
    eventually(Duration::from_secs(1), || x.queue.finish(WAIT).is_err());
    names(&x.error(), &[&address(&a), &proxy.addr.to_string()]);
    assert!(start.elapsed() < Duration::from_secs(3));
    // Other queues of the same session, and other sessions, go on, over a new link.
    for (x, y) in [(&x.other(), &y.other()), (&far, &near)] {
        let (src, dst) = (x.memory.part(0, 1000).unwrap(), y.memory.part(0, 1000).unwrap());
        eventually(Duration::from_secs(3), || a.peer_links() == 1);
        let t = ticket();
        x.queue.fill(&src, 5).unwrap();
        x.offer(t, &src, y);
        y.accept(t, &dst);
        assert_eq!(read(y.queue.as_ref(), &dst), [5; 1000]);
    }
}

#[test]
fn a_queue_that_fails_in_the_middle_of_a_tensor() {
    const LEN: u64 = 200 << 20;
    let (a, b) = (server().0, server().0);
    let (proxy, [x, y], link) = behind_proxy(&a, &b, LEN);
    // Of two tensors of one queue, the second is on its way when the first turns out to be of another size than was accepted.
    let (first, second, wrong) = (ticket(), ticket(), y.other());
    x.offer(first, &x.memory.part(0, 8).unwrap(), &y);
    // When the one behind it is there, so is the first.
    let (behind, other) = (ticket(), y.other());
    x.offer(behind, &x.memory.part(0, 8).unwrap(), &y);
    other.accept(behind, &y.memory.part(0, 8).unwrap());
    read(other.queue.as_ref(), &y.memory.part(0, 8).unwrap());
    x.queue.finish(WAIT).unwrap();
    proxy.hold(link);
    x.offer(second, &x.memory, &y);
    y.accept(second, &y.memory);
    std::thread::sleep(Duration::from_millis(300));
    wrong.accept(first, &y.memory.part(0, 16).unwrap());
    names(&wrong.error(), &[&address(&a), "8 bytes was accepted as 16"]);
    eventually(Duration::from_secs(1), || x.queue.finish(WAIT).is_err());
    names(&x.error(), &[&address(&a), "8 bytes was accepted as 16"]);
    let start = Instant::now();
    proxy.release(link);
    // Whoever waits for the second learns it from the first's server, and not because nothing more comes.
    names(&y.error(), &[&address(&a), "8 bytes was accepted as 16"]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // The link lives, and other queues go on.
    let (src, dst) = (x.memory.part(0, 1000).unwrap(), y.memory.part(0, 1000).unwrap());
    let (x, y, t) = (x.other(), y.other(), ticket());
    x.queue.fill(&src, 5).unwrap();
    x.offer(t, &src, &y);
    y.accept(t, &dst);
    assert_eq!(read(y.queue.as_ref(), &dst), [5; 1000]);
    assert_eq!(proxy.count(), link + 1);
}

#[test]
fn a_client_that_goes_in_the_middle_of_a_large_tensor_leaves_nothing() {
    const LEN: u64 = 200 << 20;
    let (a, b) = (server().0, server().0);
    let (proxy, [x, y], link) = behind_proxy(&a, &b, LEN);
    let t = ticket();
    proxy.hold(link);
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    drop((x, y));
    // Links and sessions end with it, whatever they wait for.
    eventually(Duration::from_secs(1), || (a.peer_links(), a.sessions(), b.sessions()) == (0, 0, 0));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn a_queue_that_is_given_up_while_it_takes_a_large_tensor() {
    const LEN: u64 = 200 << 20;
    let (a, b) = (server().0, server().0);
    let (proxy, [x, y], link) = behind_proxy(&a, &b, LEN);
    let t = ticket();
    let (from, to) = (x.other(), y.other());
    proxy.hold(link);
    from.offer(t, &x.memory, &y);
    to.accept(t, &y.memory);
    std::thread::sleep(Duration::from_millis(300));
    drop(to);
    // Its buffer is free at once for what comes behind it.
    let start = Instant::now();
    let other = y.other();
    other.queue.fill(&y.memory, 9).unwrap();
    other.queue.finish(WAIT).unwrap();
    proxy.release(link);
    drop(from);
    assert_eq!(read(other.queue.as_ref(), &y.memory.part(LEN - 3, 3).unwrap()), [9; 3]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn a_link_that_goes_silent_in_the_middle_of_a_tensor() {
    const LEN: u64 = 64 << 20;
    let (a, b) = (server().0, server().0);
    let (proxy, [x, y], link) = behind_proxy(&a, &b, LEN);
    proxy.allow(link, 1 << 20);
    let t = ticket();
    let start = Instant::now();
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    names(&y.error(), &[&address(&a), &proxy.addr.to_string(), "stopped answering"]);
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    eventually(Duration::from_secs(6), || x.queue.finish(WAIT).is_err());
    names(&x.error(), &[&address(&a), &proxy.addr.to_string()]);
    y.other().queue.finish(WAIT).unwrap();
}

#[test]
fn a_server_that_dies_while_another_waits_for_its_tensor() {
    let (mut a, b) = (server().0, server().0);
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
    x.accept(ticket(), &x.memory);
    let t = ticket();
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    let pending = y.queue.read(&y.memory).unwrap();
    y.other().queue.finish(WAIT).unwrap();
    let start = Instant::now();
    let name = address(&a);
    a.stop();
    let error = pending.wait(WAIT).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2));
    names(&error, &[&name, &address(&b), "lost"]);
    let other = y.other();
    other.queue.fill(&y.memory, 1).unwrap();
    other.queue.finish(WAIT).unwrap();
}

#[test]
fn a_server_that_is_never_heard_of() {
    // It dies before its link is there: the acceptance knows only its name.
    let (mut a, b) = (server().0, server_of(PeerLimits { no_link: SHORT, ..PeerLimits::default() }));
    let proxy = Proxy::start(b.local_addr());
    let [x, y] = ends([endpoint(&a), at(proxy.addr)], 64);
    assert_eq!(x.path(&y), PeerPath::Direct);
    let name = address(&a);
    let t = ticket();
    let peer = x.device.peer().unwrap();
    proxy.refuse();
    let before = b.connections();
    proxy.cut(proxy.count() - 1);
    // Both have noticed: what is expected on a link when it breaks fails with it.
    eventually(Duration::from_secs(1), || a.peer_links() == 0 && b.connections() < before);
    let blocked = x.other();
    blocked.accept(ticket(), &x.memory);
    peer.offer(blocked.queue.as_ref(), t, &x.memory, y.device.as_ref()).unwrap();
    y.accept(t, &y.memory);
    a.stop();
    let start = Instant::now();
    names(&y.error(), &[&name, &proxy.addr.to_string(), "not connected"]);
    assert!(start.elapsed() < SHORT + Duration::from_secs(2));
}

#[test]
fn servers_that_do_not_reach_each_other() {
    let (a, b) = (server().0, server().0);
    let proxy = Proxy::start(b.local_addr());
    let [x, y] = ends([endpoint(&a), at(proxy.addr)], 64);
    proxy.refuse();
    let start = Instant::now();
    let PeerPath::Relayed(why) = x.path(&y) else { panic!("it does reach it") };
    assert!(start.elapsed() < Duration::from_secs(3));
    println!("{why}");
    // Remembered, and only this way.
    proxy.admit();
    assert!(!x.device.peer().unwrap().reaches(y.device.as_ref()));
    assert_eq!(y.path(&x), PeerPath::Direct);
    let refused = x.device.peer().unwrap().offer(x.queue.as_ref(), ticket(), &x.memory, y.device.as_ref());
    assert!(matches!(refused, Err(Error::Misuse(_))));
}

#[test]
fn links_are_closed_when_no_session_uses_them_and_opened_again() {
    let (a, b) = (server().0, server().0);
    for round in 0..2 {
        let [x, y] = ends([endpoint(&a), endpoint(&b)], 64);
        assert_eq!(x.path(&y), PeerPath::Direct);
        std::thread::sleep(SHORT * 2);
        assert_eq!(a.peer_links(), 1);
        let t = ticket();
        x.queue.fill(&x.memory, round).unwrap();
        x.offer(t, &x.memory, &y);
        y.accept(t, &y.memory);
        assert_eq!(read(y.queue.as_ref(), &y.memory), [round; 64]);
        drop((x, y));
        eventually(SHORT * 4, || a.peer_links() == 0);
    }
}

#[test]
fn a_way_that_is_lost_is_asked_for_again() {
    let (a, b) = (server().0, server().0);
    let (proxy, [x, y], link) = behind_proxy(&a, &b, 64);
    let blocked = x.other();
    blocked.accept(ticket(), &x.memory);
    let t = ticket();
    blocked.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    y.other().queue.finish(WAIT).unwrap();
    proxy.refuse();
    proxy.cut(link);
    names(&y.error(), &[&address(&a), &proxy.addr.to_string(), "lost"]);
    // Until the links of others are known to be lost as well, an offer may be enqueued; then it is refused.
    eventually(Duration::from_secs(12), || matches!(x.path(&y), PeerPath::Relayed(_)));
}

#[test]
fn another_server_at_the_same_address_will_not_do() {
    let (a, b, c) = (server().0, server().0, server().0);
    let to = Arc::new(std::sync::Mutex::new(b.local_addr()));
    // What the client knows as b is c for everyone who comes later.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let target = to.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), std::net::TcpStream::connect(*target.lock().unwrap()).unwrap());
            for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let [x, y] = ends([endpoint(&a), at(addr)], 64);
    *to.lock().unwrap() = c.local_addr();
    let PeerPath::Relayed(why) = x.path(&y) else { panic!("that is another server") };
    assert!(why.contains("another server answers"), "{why}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_queue_that_is_dropped_while_it_waits_goes_at_once() {
    use outboard_core::Host;
    use outboard_host::MemoryBudget;
    let device = outboard_reference::reference_device(&Host::new(), "GONE", &MemoryBudget::new(Some(1 << 20)));
    let addr = "127.0.0.1:0".parse().unwrap();
    let config = outboard_rpc_server::ServerConfig {
        addr,
        devices: vec![device],
        limits: Limits::default(),
        trust: outboard_rpc_server::Trust::default(),
    };
    let server = Server::start(config).unwrap();
    let [x] = ends([endpoint(&server)], 64);
    x.queue.finish(WAIT).unwrap();
    // Threads of queues of that device.
    let queues = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |t: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(t.unwrap().path().join("comm"));
        tasks.filter(|t| t.is_ok()).filter_map(|t| name(t).ok()).filter(|n| n.starts_with("GONE queue")).count()
    };
    eventually(Duration::from_secs(2), || queues() == 1);
    let waits = x.other();
    waits.accept(ticket(), &x.memory);
    for _ in 0..10 {
        waits.queue.fill(&x.memory, 1).unwrap();
    }
    eventually(Duration::from_secs(2), || queues() == 2);
    drop(waits);
    eventually(Duration::from_secs(2), || queues() == 1);
    x.queue.finish(WAIT).unwrap();
}
