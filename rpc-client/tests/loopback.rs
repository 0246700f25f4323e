//! Remote devices over loopback do what local ones do.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn devices_are_those_of_the_server() {
    let (server, _) = server();
    let devices = devices(&server);
    let endpoint = endpoint(&server);
    assert_eq!(
        devices.iter().map(|d| d.info().id.clone()).collect::<Vec<_>>(),
        [format!("{endpoint}/REF0"), format!("{endpoint}/REF1")]
    );
    assert_eq!(devices[0].info().backend, "reference");
    let memory = devices[0].memory().unwrap();
    assert_eq!(memory.total, MEMORY);
    assert!(RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats().sent_bytes > 100);
}

#[test]
fn commands_of_a_queue_run_in_order() {
    let (server, _) = server();
    let device = devices(&server).remove(0);
    let queue = device.queue().unwrap();
    let (a, b) = (buffer(&device, 64), buffer(&device, 64));
    assert_eq!(read(queue.as_ref(), &a), [0; 64]);
    queue.write(&a.part(0, 4).unwrap(), Bytes::from_static(b"abcd")).unwrap();
    queue.fill(&a.part(4, 60).unwrap(), 7).unwrap();
    queue.copy(&a, &b).unwrap();
    queue.fill(&a, 0).unwrap();
    let got = read(queue.as_ref(), &b);
    assert_eq!(&got[..5], b"abcd\x07");
    assert_eq!(read(queue.as_ref(), &a), [0; 64]);
    assert!(read(queue.as_ref(), &a.part(8, 0).unwrap()).is_empty());
    queue.finish(WAIT).unwrap();
    assert!(queue.write(&a, Bytes::from_static(b"x")).is_err());
    assert!(queue.copy(&a, &b.part(0, 8).unwrap()).is_err());
}

#[test]
fn graphs_compile_once_and_run_often() {
    let (server, _) = server();
    let device = devices(&server).remove(1);
    let p = program();
    assert!(device.supports(&p.graph).unwrap().flags().iter().all(|&f| f));
    assert!(device.supports(&p.graph).unwrap().contains(p.y));
    let placed = Placed::new(&device, &p);
    let queue = device.queue().unwrap();
    queue.write(&placed.slice(&p, p.ids), Bytes::copy_from_slice(&3i32.to_le_bytes())).unwrap();
    queue.write(&placed.slice(&p, p.table), f32s(&(0..32).map(|i| i as f32).collect::<Vec<_>>())).unwrap();
    for round in 0..50 {
        queue.write(&placed.slice(&p, p.x), f32s(&[round as f32; 8])).unwrap();
        queue.execute(&placed.executable).unwrap();
        assert_eq!(read(queue.as_ref(), &placed.slice(&p, p.y)), f32s(&[2.0 * round as f32; 8]));
    }
    let rows: Vec<f32> = (24..32).map(|i| i as f32).collect();
    assert_eq!(read(queue.as_ref(), &placed.slice(&p, p.rows)), f32s(&rows));
}

#[test]
fn queues_wait_for_one_another() {
    let (server, _) = server();
    let devices = devices(&server);
    let (q0, q1) = (devices[0].queue().unwrap(), devices[0].queue().unwrap());
    let (a, b) = (buffer(&devices[0], 1 << 20), buffer(&devices[0], 1 << 20));
    for round in 1..=100u8 {
        q0.fill(&a, round).unwrap();
        let filled = q0.signal().unwrap();
        q1.wait(filled).unwrap();
        q1.copy(&a, &b).unwrap();
        let copied = q1.signal().unwrap();
        assert_eq!((filled.value, copied.value), (u64::from(round), u64::from(round)));
        q0.wait(copied).unwrap();
    }
    assert!(read(q1.as_ref(), &b).iter().all(|&x| x == 100));
    let elsewhere = Event { device: 1, queue: u64::MAX, value: 1 };
    assert!(matches!(q0.wait(elsewhere), Err(Error::Misuse(_))));
}

#[test]
fn devices_of_an_endpoint_hand_each_other_tensors() {
    let (server, _) = server();
    let devices = devices(&server);
    let (q0, q1) = (devices[0].queue().unwrap(), devices[1].queue().unwrap());
    let (a, b) = (buffer(&devices[0], 3000), buffer(&devices[1], 3000));
    let peer = devices[0].peer().unwrap();
    assert!(peer.reaches(devices[1].as_ref()));
    for round in 0..20u8 {
        let ticket = Ticket([round; 32]);
        // In both orders.
        let accept = || devices[1].peer().unwrap().accept(q1.as_ref(), ticket, &b).unwrap();
        if round % 2 == 0 {
            accept();
        }
        q0.fill(&a, round).unwrap();
        peer.offer(q0.as_ref(), ticket, &a, devices[1].as_ref()).unwrap();
        if round % 2 == 1 {
            accept();
        }
        assert!(read(q1.as_ref(), &b).iter().all(|&x| x == round));
    }
    // A copy to a buffer of the other device is not possible on one queue.
    assert!(matches!(q0.copy(&a, &b), Err(Error::Misuse(_))));
}

#[test]
fn bulk_payloads_arrive_whole() {
    let (server, _) = server();
    let device = devices(&server).remove(0);
    let queue = device.queue().unwrap();
    let size = 64 << 20;
    let data: Bytes =
        (0..size / 4u32).flat_map(|i| i.wrapping_mul(2654435761).to_le_bytes()).collect::<Vec<u8>>().into();
    let a = buffer(&device, u64::from(size));
    queue.write(&a, data.clone()).unwrap();
    let part = a.part(1 << 20, 4).unwrap();
    assert_eq!(read(queue.as_ref(), &part), &data[1 << 20..(1 << 20) + 4]);
    assert!(read(queue.as_ref(), &a) == data);
    // Sizes around the borders, with small commands in between.
    for len in [65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000] {
        let slice = a.part(12, len).unwrap();
        queue.fill(&slice, 0).unwrap();
        queue.write(&slice, data.slice(..len as usize)).unwrap();
        assert!(read(queue.as_ref(), &slice) == data.slice(..len as usize), "{len}");
    }
    let stats = RemoteDevice::of(device.as_ref()).unwrap().net_stats();
    assert!(stats.sent_bytes > u64::from(size) && stats.recv_bytes > u64::from(size));
}

#[test]
fn small_commands_are_quick_while_bulk_data_moves() {
    let (server, _) = server();
    let devices = devices(&server);
    let (bulk, small) = (devices[0].queue().unwrap(), devices[1].queue().unwrap());
    let (a, b) = (buffer(&devices[0], 32 << 20), buffer(&devices[1], 64));
    let data = Bytes::from(vec![1u8; 32 << 20]);
    let writer = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            bulk.write(&a, data.clone()).unwrap();
        }
        bulk.finish(WAIT).unwrap();
    });
    let mut times = Vec::new();
    while !writer.is_finished() {
        let start = Instant::now();
        read(small.as_ref(), &b);
        times.push(start.elapsed());
    }
    writer.join().unwrap();
    times.sort();
    println!("{} reads, median {:?}, 99 % {:?}", times.len(), times[times.len() / 2], times[times.len() * 99 / 100]);
    // Far below what one megabyte in front of each would cost; a busy machine must not fail this.
    assert!(times.len() > 20);
}

#[test]
fn a_failed_node_poisons_its_queue_and_no_other() {
    let (server, _) = server();
    let devices = devices(&server);
    let device = &devices[0];
    let p = program();
    let placed = Placed::new(device, &p);
    let (queue, other) = (device.queue().unwrap(), device.queue().unwrap());
    let follower = devices[1].queue().unwrap();
    queue.write(&placed.slice(&p, p.ids), Bytes::copy_from_slice(&99i32.to_le_bytes())).unwrap();
    let before = queue.signal().unwrap();
    queue.execute(&placed.executable).unwrap();
    let after = queue.signal().unwrap();
    let error = queue.read(&placed.slice(&p, p.y)).and_then(|r| r.wait(WAIT)).unwrap_err();
    let Error::Device { device: id, op, .. } = &error else { panic!("{error}") };
    assert_eq!((id, op.as_deref()), (&device.info().id, Some("GET_ROWS picked")));
    // It stays so, for everything on it and whoever waits for it.
    assert_eq!(queue.finish(WAIT), Err(error.clone()));
    assert_eq!(queue.fill(&placed.slice(&p, p.x), 1), Err(error.clone()));
    follower.wait(before).unwrap();
    follower.finish(WAIT).unwrap();
    follower.wait(after).unwrap();
    assert_eq!(follower.finish(WAIT), Err(error.clone()));
    other.fill(&placed.slice(&p, p.x), 1).unwrap();
    other.finish(WAIT).unwrap();
    // A transfer from it fails at the receiver as well.
    let (sender, receiver) = (device.queue().unwrap(), devices[1].queue().unwrap());
    sender.execute(&placed.executable).unwrap();
    let dst = buffer(&devices[1], 64);
    let _ = sender.finish(WAIT);
    let ticket = Ticket([5; 32]);
    let offered = device.peer().unwrap().offer(sender.as_ref(), ticket, &buffer(device, 64), devices[1].as_ref());
    assert_eq!(offered, Err(error.clone()));
    let _ = (receiver, dst);
}

#[test]
fn not_enough_memory_is_an_error_with_sizes() {
    let (server, _) = server();
    let device = devices(&server).remove(0);
    let e = device.alloc(MEMORY + 1, Usage::Weights).unwrap_err();
    let Error::OutOfMemory { device: id, needed, .. } = e else { panic!("{e}") };
    assert_eq!((id, needed), (device.info().id.clone(), MEMORY + 1));
    // What is dropped counts as free, even while the drop is on its way.
    for _ in 0..20 {
        drop(device.alloc(MEMORY / 4 * 3, Usage::Any).unwrap());
    }
}

#[test]
fn wrong_graphs_are_refused_by_name() {
    let (server, _) = server();
    let devices = devices(&server);
    let p = program();
    let slice = Some(buffer(&devices[1], 256));
    let slices = vec![slice; p.graph.tensors().len()];
    let e = Placement::new(&p.graph, devices[0].as_ref(), slices).unwrap_err();
    assert!(e.to_string().contains("another device"), "{e}");
}

#[test]
fn two_clients_do_not_see_each_other() {
    let (server, budget) = server();
    let clients: Vec<_> = (0..2u8).map(|_| devices(&server)).collect();
    assert_eq!(server.sessions(), 2);
    let threads: Vec<_> = clients
        .into_iter()
        .zip(1u8..)
        .map(|(devices, mark)| {
            std::thread::spawn(move || {
                let queue = devices[0].queue().unwrap();
                for _ in 0..50 {
                    let a = buffer(&devices[0], 100_000);
                    assert!(read(queue.as_ref(), &a).iter().all(|&x| x == 0));
                    queue.fill(&a, mark).unwrap();
                    assert!(read(queue.as_ref(), &a).iter().all(|&x| x == mark));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(server.sessions(), 0);
    assert_eq!(budget.info().free, MEMORY);
}

#[test]
fn several_endpoints_at_once() {
    let servers = [server().0, server().0];
    let endpoints: Vec<Endpoint> = servers.iter().map(endpoint).collect();
    let devices = connect(&endpoints, &ClientOptions::default()).unwrap();
    assert_eq!(devices.len(), 4);
    assert!(devices[0].peer().unwrap().reaches(devices[2].as_ref()));
    let ids: std::collections::HashSet<_> = devices.iter().map(|d| d.info().id.clone()).collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn many_commands_ahead_do_not_pile_up() {
    let (server, _) = server();
    let device: Arc<dyn Device> = devices(&server).remove(0);
    let (queue, gate) = (device.queue().unwrap(), device.queue().unwrap());
    let a = buffer(&device, 64);
    // 20000 small writes without an answer in between, then one read.
    for i in 0..20_000u32 {
        queue.write(&a.part(0, 4).unwrap(), Bytes::copy_from_slice(&i.to_le_bytes())).unwrap();
        if i % 1000 == 0 {
            gate.signal().unwrap();
        }
    }
    assert_eq!(read(queue.as_ref(), &a.part(0, 4).unwrap()), 19_999u32.to_le_bytes());
}
