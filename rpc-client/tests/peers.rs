//! Tensors from server to server.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

#[path = "common/ends.rs"]
mod ends;

use common::*;
use ends::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_rpc_client::{PeerPath, RemoteDevice};

fn pattern(len: u64, seed: u64) -> Bytes {
    (0..len).map(|i| ((i + seed) * 31 + i / 4096) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn tensors_cross_in_any_order_and_size() {
    let (a, b) = (server().0, server().0);
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 48 << 20);
    assert_eq!((x.path(&y), y.path(&x)), (PeerPath::Direct, PeerPath::Direct));
    let mut peer_bytes = 0;
    for (i, len) in [0, 4, 2304, 16 << 10, (16 << 10) + 1, 65 << 10, 2 << 20, 48 << 20].into_iter().enumerate() {
        for accept_first in [false, true] {
            let (src, dst) = (x.memory.part(0, len).unwrap(), y.memory.part(0, len).unwrap());
            let data = pattern(len, i as u64);
            x.queue.write(&src, data.clone()).unwrap();
            y.queue.fill(&y.memory, 0).unwrap();
            let t = ticket();
            if accept_first {
                y.accept(t, &dst);
                x.offer(t, &src, &y);
            } else {
                x.offer(t, &src, &y);
                y.accept(t, &dst);
            }
            assert!(read(y.queue.as_ref(), &dst) == data, "{len} bytes, {accept_first}");
            peer_bytes += len;
        }
    }
    let stats = RemoteDevice::of(x.device.as_ref()).unwrap().net_stats();
    assert!((peer_bytes..peer_bytes + 10_000).contains(&stats.peer_bytes), "{stats:?}");
    assert_eq!(RemoteDevice::of(y.device.as_ref()).unwrap().net_stats().peer_bytes, 0);
    // One connection each way has done all that.
    assert_eq!((a.peer_links(), b.peer_links()), (1, 1));
}

#[test]
fn a_tensor_larger_than_all_room_does_not_wait_for_a_small_write_before_it() {
    const LEN: u64 = 40 << 20;
    let (a, b) = (server().0, server().0);
    let [x, y] = ends([endpoint(&a), endpoint(&b)], LEN);
    // Each takes a little of the room, and nothing that would say when it is free again.
    for end in [&x, &y] {
        end.queue.write(&end.memory.part(0, 8).unwrap(), pattern(8, 1)).unwrap();
    }
    let t = ticket();
    y.accept(t, &y.memory);
    x.offer(t, &x.memory, &y);
    let got = read(y.queue.as_ref(), &y.memory);
    assert!(got[..8] == pattern(8, 1)[..] && got[8..].iter().all(|&b| b == 0));
}

#[test]
fn queues_with_little_room_carry_tensors_of_any_size() {
    const LEN: u64 = 20 << 20;
    let (a, b) = (server().0, server().0);
    let [x, y] = ends([endpoint(&a), endpoint(&b)], LEN);
    let data = pattern(LEN, 3);
    x.queue.write(&x.memory, data.clone()).unwrap();
    x.queue.finish(WAIT).unwrap();
    // More than have much on the way at a time.
    let pairs: Vec<(End, End)> = (0..20).map(|_| (x.other(), y.other())).collect();
    for round in 0..2 {
        for (from, to) in &pairs {
            let t = ticket();
            if round == 0 {
                from.offer(t, &x.memory, to);
                to.accept(t, &y.memory);
            } else {
                to.accept(t, &y.memory);
                from.offer(t, &x.memory, to);
            }
        }
        pairs.iter().for_each(|(_, to)| to.queue.finish(WAIT).unwrap());
        assert!(read(y.queue.as_ref(), &y.memory) == data, "{round}");
        y.queue.fill(&y.memory, 0).unwrap();
        y.queue.finish(WAIT).unwrap();
    }
}

#[test]
fn both_ways_at_once_and_many_ahead() {
    const LEN: u64 = 4 << 20;
    const ROUNDS: u64 = 40;
    let (a, b) = (server().0, server().0);
    let [x, y] = ends([endpoint(&a), endpoint(&b)], 2 * LEN);
    let part = |end: &End, i: u64| end.memory.part(i * LEN, LEN).unwrap();
    x.queue.write(&part(&x, 0), pattern(LEN, 1)).unwrap();
    y.queue.write(&part(&y, 0), pattern(LEN, 2)).unwrap();
    // Both send much more than is in flight at a time, before either takes anything.
    let tickets: Vec<(Ticket, Ticket)> = (0..ROUNDS).map(|_| (ticket(), ticket())).collect();
    let send = |from: &End, to: &End, pick: fn(&(Ticket, Ticket)) -> Ticket| {
        tickets.iter().for_each(|t| from.offer(pick(t), &part(from, 0), to));
    };
    send(&x, &y, |t| t.0);
    send(&y, &x, |t| t.1);
    for (to_y, to_x) in &tickets {
        y.accept(*to_y, &part(&y, 1));
        x.accept(*to_x, &part(&x, 1));
    }
    assert!(read(y.queue.as_ref(), &part(&y, 1)) == pattern(LEN, 1));
    assert!(read(x.queue.as_ref(), &part(&x, 1)) == pattern(LEN, 2));
}

#[test]
fn a_tensor_goes_round_between_three_servers() {
    let servers = [server().0, server().0, server().0];
    let all = ends([0, 1, 2].map(|i| endpoint(&servers[i])), 2304);
    all[0].queue.write(&all[0].memory, pattern(2304, 7)).unwrap();
    for i in 0..300 {
        let (from, to) = (&all[i % 3], &all[(i + 1) % 3]);
        let t = ticket();
        from.offer(t, &from.memory, to);
        to.accept(t, &to.memory);
        // What was sent is overwritten at once: the copy was taken in the order of the queue.
        from.queue.fill(&from.memory, 0).unwrap();
    }
    assert_eq!(read(all[0].queue.as_ref(), &all[0].memory), pattern(2304, 7));
}

#[test]
fn one_server_twice_and_several_clients() {
    let (a, b) = (server().0, server().0);
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let endpoints = [endpoint(&a), endpoint(&b)];
            std::thread::spawn(move || {
                let [x, y] = ends(endpoints, 100_000);
                for i in 0..50 {
                    let (data, t) = (pattern(100_000, seed * 1000 + i), ticket());
                    x.queue.write(&x.memory, data.clone()).unwrap();
                    y.accept(t, &y.memory);
                    x.offer(t, &x.memory, &y);
                    assert!(read(y.queue.as_ref(), &y.memory) == data);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    // The second session with a server that is also the first: it sends to itself.
    let ([x], [y]) = (ends([endpoint(&a)], 64), ends([endpoint(&a)], 64));
    assert_eq!(x.path(&y), PeerPath::Direct);
    let t = ticket();
    x.queue.fill(&x.memory, 9).unwrap();
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    assert_eq!(read(y.queue.as_ref(), &y.memory), [9; 64]);
}
