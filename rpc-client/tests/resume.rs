//! Connections that are lost while their server lives: the session is taken up again, and what it holds is still there.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use common::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use outboard_rpc_server::Limits;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client behind a proxy.
fn client(proxy: &proxy::Proxy) -> Vec<Arc<dyn Device>> {
    connect(&[Endpoint::parse(&proxy.addr.to_string()).unwrap()], &ClientOptions::default()).unwrap()
}

fn cut_all(proxy: &proxy::Proxy) {
    (0..proxy.count()).for_each(|connection| proxy.cut(connection));
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Peer { .. })
}

#[test]
fn buffers_and_executables_live_on() {
    let (server, budget) = server();
    let proxy = proxy::Proxy::start(server.local_addr());
    let devices = client(&proxy);
    let p = program();
    let placed = Placed::new(&devices[0], &p);
    let large = buffer(&devices[1], 4 << 20);
    {
        let queues = [devices[0].queue().unwrap(), devices[1].queue().unwrap()];
        queues[0].write(&placed.slice(&p, p.x), f32s(&[1.5; 8])).unwrap();
        queues[0].write(&placed.slice(&p, p.ids), Bytes::copy_from_slice(&[0; 4])).unwrap();
        queues[0].finish(WAIT).unwrap();
        queues[1].write(&large, Bytes::from(vec![7; 4 << 20])).unwrap();
        queues[1].finish(WAIT).unwrap();
    }
    let dropped = buffer(&devices[0], 1 << 20);
    let sent = RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats().sent_bytes;
    for round in 0..5 {
        let lost = devices[0].queue().unwrap();
        // Something that waits for ever, and something that is under way.
        let waits = devices[1].queue().unwrap();
        devices[1].peer().unwrap().accept(waits.as_ref(), Ticket([round; 32]), &large.part(0, 64).unwrap()).unwrap();
        (0..200).for_each(|_| lost.execute(&placed.executable).unwrap());
        cut_all(&proxy);
        let error = waits.finish(WAIT).unwrap_err();
        assert!(is_lost(&error) && is_lost(&lost.finish(WAIT).unwrap_err()), "{error}");
        drop((lost, waits));
        let start = Instant::now();
        devices.iter().for_each(|d| d.resume().unwrap());
        println!("taken up again in {:?}", start.elapsed());
        let (queue, other) = (devices[0].queue().unwrap(), devices[1].queue().unwrap());
        queue.execute(&placed.executable).unwrap();
        assert_eq!(read(queue.as_ref(), &placed.slice(&p, p.y)), f32s(&[3.0; 8]));
        assert!(read(other.as_ref(), &large) == vec![7; 4 << 20]);
    }
    let sent = RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats().sent_bytes - sent;
    assert!(sent < 1 << 20, "{sent} bytes were sent again");
    // What is dropped while there is no connection is freed, too.
    let before = budget.info().free;
    let queue = devices[0].queue().unwrap();
    cut_all(&proxy);
    assert!(is_lost(&queue.finish(WAIT).unwrap_err()));
    drop((dropped, queue));
    devices[0].resume().unwrap();
    eventually(Duration::from_secs(2), || budget.info().free >= before + (1 << 20));
    assert_eq!(server.sessions(), 1);
    drop((placed, large, devices));
    assert_eq!((server.sessions(), budget.info().free), (0, MEMORY));
}

#[test]
fn nothing_of_the_old_queues_is_under_way_afterwards() {
    let (server, _) = server();
    let device = devices(&server).remove(0);
    let a = buffer(&device, 8 << 20);
    for round in 0..20 {
        let old = device.queue().unwrap();
        // On a connection that lives: its queues are given up all the same.
        (0..50).for_each(|_| old.fill(&a, 1).unwrap());
        drop(old);
        device.resume().unwrap();
        let queue = device.queue().unwrap();
        queue.fill(&a, 2 + round).unwrap();
        queue.finish(WAIT).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(read(queue.as_ref(), &a) == vec![2 + round; 8 << 20]);
    }
    // Nothing to do: not even a connection.
    let sent = || RemoteDevice::of(device.as_ref()).unwrap().net_stats().sent_bytes;
    device.resume().unwrap();
    let before = sent();
    device.resume().unwrap();
    assert_eq!(sent(), before);
}

#[test]
fn a_network_that_is_away_for_a_while() {
    let (server, _) = server_with(Limits { lease: Duration::from_secs(4), ..Limits::default() });
    let proxy = proxy::Proxy::start(server.local_addr());
    let devices = client(&proxy);
    let a = buffer(&devices[0], 64);
    let queue = devices[0].queue().unwrap();
    queue.fill(&a, 9).unwrap();
    queue.finish(WAIT).unwrap();
    proxy.refuse();
    cut_all(&proxy);
    assert!(is_lost(&queue.finish(WAIT).unwrap_err()));
    drop(queue);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1500));
            proxy.admit();
        });
        devices[0].resume().unwrap();
    });
    let queue = devices[0].queue().unwrap();
    assert_eq!(read(queue.as_ref(), &a), [9; 64]);
    // And for longer than the lease.
    proxy.refuse();
    cut_all(&proxy);
    assert!(is_lost(&queue.finish(WAIT).unwrap_err()));
    drop(queue);
    let start = Instant::now();
    let error = devices[0].resume().unwrap_err();
    println!("{error}, after {:?}", start.elapsed());
    assert!(is_lost(&error) && error.to_string().contains("session is lost"), "{error}");
    eventually(Duration::from_secs(4), || server.sessions() == 0);
}

#[test]
fn sessions_that_are_over() {
    let lease = Duration::from_millis(300);
    let (mut server, _) = server_with(Limits { lease, ..Limits::default() });
    let proxy = proxy::Proxy::start(server.local_addr());
    let lost = |devices: &[Arc<dyn Device>]| {
        let start = Instant::now();
        let error = devices[0].resume().unwrap_err();
        println!("{error}, after {:?}", start.elapsed());
        assert!(is_lost(&error), "{error}");
        error.to_string()
    };
    let devices = client(&proxy);
    let queue = devices[0].queue().unwrap();
    queue.finish(WAIT).unwrap();
    cut_all(&proxy);
    eventually(Duration::from_secs(3), || server.sessions() == 0);
    drop(queue);
    assert!(lost(&devices).contains("no such session"));
    // The server is gone.
    let devices = common::devices(&server);
    devices[0].queue().unwrap().finish(WAIT).unwrap();
    server.stop();
    drop(server);
    assert!(lost(&devices).contains("refused"));
}
