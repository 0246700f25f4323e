//! What can go wrong between a client and a server, and that each end says so or cleans up in time.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use common::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_rpc_server::Limits;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn connect_error(addr: std::net::SocketAddr, options: &ClientOptions) -> (String, Duration) {
    let endpoint = Endpoint::parse(&addr.to_string()).unwrap();
    let start = Instant::now();
    let error = connect(std::slice::from_ref(&endpoint), options).unwrap_err();
    assert!(matches!(&error, Error::Peer { endpoint: e, .. } if *e == endpoint.to_string()), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains('\n') && text.starts_with(&endpoint.to_string()), "{text}");
    println!("{text}");
    (text, start.elapsed())
}

#[test]
fn an_endpoint_that_refuses() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (text, took) = connect_error(addr, &ClientOptions::default());
    assert!(text.contains("connection refused") && took < Duration::from_secs(1), "{text}");
}

#[test]
fn an_endpoint_that_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ClientOptions { connect_timeout: Duration::from_millis(600), ..Default::default() };
    let (text, took) = connect_error(listener.local_addr().unwrap(), &options);
    assert!(text.contains("no answer") && took < Duration::from_secs(2), "{text}");
    // With the default deadline, the heartbeat finds out first.
    let (_, took) = connect_error(listener.local_addr().unwrap(), &ClientOptions::default());
    assert!(took < Duration::from_secs(6));
}

#[test]
fn an_endpoint_that_speaks_something_else() {
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec();
    let random: Vec<u8> = (0..4000u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    for answer in [http, random, b"SSH-2.0-OpenSSH_9\r\n".to_vec(), Vec::new()] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut buf = [0; 64];
            let _ = socket.read(&mut buf);
            let _ = socket.write_all(&answer);
            // Hold it open for a while, as a server would.
            std::thread::sleep(Duration::from_millis(300));
        });
        let (text, took) = connect_error(addr, &ClientOptions::default());
        assert!(took < Duration::from_secs(6), "{text}");
        server.join().unwrap();
    }
}

#[test]
fn an_endpoint_of_another_version() {
    let (server, _) = server();
    let options = ClientOptions { versions: (7, 9), ..Default::default() };
    let (text, _) = connect_error(server.local_addr(), &options);
    assert!(text.contains("7 to 9") && text.contains("install the same release"), "{text}");
    assert_eq!(server.sessions(), 0);
}

#[test]
fn a_server_that_ends_fails_all_that_wait() {
    let (mut server, _) = server();
    let endpoint = endpoint(&server).to_string();
    let devices = devices(&server);
    let (queue, never) = (devices[0].queue().unwrap(), devices[1].queue().unwrap());
    let a = buffer(&devices[0], 64);
    let b = buffer(&devices[1], 64);
    // Waits for a transfer that nobody offers.
    devices[1].peer().unwrap().accept(never.as_ref(), Ticket([1; 32]), &b).unwrap();
    let pending = never.read(&b).unwrap();
    queue.finish(WAIT).unwrap();
    let waiter = std::thread::spawn(move || {
        let start = Instant::now();
        (pending.wait(WAIT).unwrap_err(), start.elapsed())
    });
    let start = Instant::now();
    server.stop();
    let (error, _) = waiter.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(matches!(&error, Error::Peer { endpoint: e, .. } if *e == endpoint), "{error}");
    std::thread::sleep(Duration::from_millis(100));
    for error in [
        queue.read(&a).map(drop).unwrap_err(),
        queue.finish(WAIT).unwrap_err(),
        queue.write(&a, Bytes::from(vec![0; 64])).unwrap_err(),
        devices[0].alloc(1, Usage::Any).map(drop).unwrap_err(),
        devices[0].memory().map(drop).unwrap_err(),
        devices[0].queue().map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().starts_with(&endpoint), "{error}");
    }
}

#[test]
fn a_silent_server_is_found_out_within_two_seconds() {
    let (server, _) = server();
    let proxy = proxy::Proxy::start(server.local_addr());
    let endpoint = Endpoint::parse(&proxy.addr.to_string()).unwrap();
    let devices = connect(std::slice::from_ref(&endpoint), &ClientOptions::default()).unwrap();
    let queue = devices[0].queue().unwrap();
    let a = buffer(&devices[0], 1 << 20);
    queue.finish(WAIT).unwrap();
    // Quiet, but alive: nothing happens.
    std::thread::sleep(Duration::from_millis(2500));
    queue.finish(WAIT).unwrap();
    proxy.go_silent();
    let start = Instant::now();
    let pending = queue.read(&a).unwrap();
    let uploader = {
        let queue = devices[1].queue().unwrap();
        let b = buffer_or_lost(&devices[1]);
        std::thread::spawn(move || match b {
            Ok(b) => queue.write(&b, Bytes::from(vec![0; 64 << 20])).err(),
            Err(e) => Some(e),
        })
    };
    let error = pending.wait(WAIT).unwrap_err();
    let took = start.elapsed();
    println!("{error}, after {took:?}");
    // Far less than it takes to find out that a server gets no further; on a busy machine more than two seconds.
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(error.to_string().starts_with(&endpoint.to_string()), "{error}");
    let error = uploader.join().unwrap().unwrap();
    assert!(error.to_string().starts_with(&endpoint.to_string()), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// An allocation that is lost with its server.
fn buffer_or_lost(device: &std::sync::Arc<dyn Device>) -> Result<Slice> {
    device.alloc(64 << 20, Usage::Any).map(Slice::whole)
}

#[test]
fn memory_is_freed_at_goodbye_and_after_the_lease() {
    let lease = Duration::from_secs(2);
    let (server, budget) = server_with(Limits { lease, ..Limits::default() });
    let free = || budget.info().free;
    {
        let devices = devices(&server);
        let queue = devices[0].queue().unwrap();
        let a = buffer(&devices[0], 1 << 20);
        queue.fill(&a, 1).unwrap();
        assert!(free() <= MEMORY - (1 << 20));
    }
    assert_eq!((server.sessions(), free()), (0, MEMORY));
    // A client whose network is gone.
    let proxy = proxy::Proxy::start(server.local_addr());
    let endpoint = Endpoint::parse(&proxy.addr.to_string()).unwrap();
    let devices = connect(&[endpoint], &ClientOptions::default()).unwrap();
    let queue = devices[0].queue().unwrap();
    let a = buffer(&devices[0], 1 << 20);
    queue.fill(&a, 1).unwrap();
    queue.finish(WAIT).unwrap();
    // Longer than the lease, but alive.
    std::thread::sleep(lease * 3 / 2);
    queue.finish(WAIT).unwrap();
    proxy.go_silent();
    let took = eventually(lease + Duration::from_secs(1), || free() == MEMORY && server.sessions() == 0);
    println!("freed after {took:?}");
}

#[test]
fn dropped_buffers_are_freed_while_the_session_lives() {
    let (server, budget) = server();
    let device = devices(&server).remove(0);
    let queue = device.queue().unwrap();
    queue.finish(WAIT).unwrap();
    let before = budget.info().free;
    let data = Bytes::from(vec![3; 1 << 20]);
    for _ in 0..100 {
        let a = buffer(&device, 1 << 20);
        queue.write(&a, data.clone()).unwrap();
        // Dropped with its write still on the way.
    }
    queue.finish(WAIT).unwrap();
    eventually(Duration::from_secs(1), || budget.info().free == before);
}

#[test]
fn random_bytes_end_only_their_own_connection() {
    let (server, budget) = server();
    let device = devices(&server).remove(0);
    let queue = device.queue().unwrap();
    let a = buffer(&device, 64);
    let mut state = 88172645463325252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..60 {
        let mut socket = TcpStream::connect(server.local_addr()).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut bytes: Vec<u8> = if round % 2 == 0 { b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec() } else { Vec::new() };
        bytes.extend((0..4000).map(|_| random() as u8));
        let _ = socket.write_all(&bytes);
        queue.fill(&a, round).unwrap();
        assert_eq!(read(queue.as_ref(), &a)[5], round);
    }
    drop((a, queue, device));
    assert_eq!(budget.info().free, MEMORY);
}

#[test]
fn two_hundred_clients_leave_nothing_behind() {
    let (server, budget) = server();
    let p = program();
    for _ in 0..200 {
        let devices = devices(&server);
        let placed = Placed::new(&devices[0], &p);
        let queue = devices[0].queue().unwrap();
        queue.write(&placed.slice(&p, p.ids), Bytes::copy_from_slice(&[0; 4])).unwrap();
        queue.execute(&placed.executable).unwrap();
        read(queue.as_ref(), &placed.slice(&p, p.y));
    }
    assert_eq!((server.sessions(), budget.info().free), (0, MEMORY));
}

#[test]
fn a_session_can_open_queues_without_end() {
    let (server, _) = server();
    let device = devices(&server).remove(0);
    let a = buffer(&device, 200_000);
    for i in 0..1200u32 {
        let queue = device.queue().unwrap();
        queue.fill(&a, i as u8).unwrap();
        // Some with a bulk stream.
        let len = if i % 100 == 0 { 200_000 } else { 8 };
        assert_eq!(read(queue.as_ref(), &a.part(0, len).unwrap())[7], i as u8);
    }
}
