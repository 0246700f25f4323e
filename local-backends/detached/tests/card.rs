//! What a card asks of the contract: commands in flight, errors that come late, tensors handed over between devices that cannot address each
//! other's memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::local::LocalDevice;
use outboard_core::op::{GetRows, MulMat, Unary, UnaryKind};
use outboard_core::{
    Buffer, Client, DType, Device, DeviceInfo, Error, Executable, GraphBuilder, Host, MemoryAccount, MemoryShare,
    Placement, Slice, Ticket, Usage, device,
};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn card(host: &Arc<Host>, latency: Duration) -> Arc<LocalDevice> {
    let options = DetachedOptions { memory: 256 << 20, latency, ..DetachedOptions::default() };
    detached_device(host, "CARD", options)
}

fn cpu(host: &Arc<Host>) -> Arc<dyn Device> {
    cpu_device(host, "CPU", CpuOptions::with_threads(1), &MemoryBudget::new(None))
}

fn slice(device: &dyn Device, size: u64) -> Slice {
    Slice::whole(device.alloc(size, Usage::Any).unwrap())
}

/// -x of some numbers.
fn negation(device: &dyn Device, x: &Slice, y: &Slice) -> Arc<dyn Executable> {
    let mut g = GraphBuilder::new();
    let input = g.input("x", DType::F32, &[x.len() as usize / 4]).unwrap();
    let node = g.push(Unary { kind: UnaryKind::Neg }, &[input]).unwrap();
    g.output(node);
    let graph = Arc::new(g.finish().unwrap());
    let places = vec![Some(x.clone()), Some(y.clone())];
    device.compile(graph.clone(), Placement::new(&graph, device, places).unwrap()).unwrap()
}

fn pattern(len: u64, seed: u64) -> bytes::Bytes {
    (0..len).map(|i| (i.wrapping_mul(seed) >> 7) as u8).collect::<Vec<_>>().into()
}

#[test]
fn enqueuing_does_not_wait_for_the_card() {
    let host = Host::new();
    let card = card(&host, Duration::from_millis(50));
    let (x, y) = (slice(card.as_ref(), 16), slice(card.as_ref(), 16));
    let graph = negation(card.as_ref(), &x, &y);
    let queue = card.queue().unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        queue.write(&x, pattern(16, 3)).unwrap();
        queue.execute(&graph).unwrap();
    }
    let event = queue.signal().unwrap();
    let read = queue.read(&y).unwrap();
    let enqueued = start.elapsed();
    assert!(read.wait(LONG).is_ok());
    let done = start.elapsed();
    assert!(done >= Duration::from_millis(50), "{done:?}");
    assert!(enqueued < done / 2, "{enqueued:?} of {done:?}");
    // In flight together: not 41 times the way there.
    assert!(done < 20 * Duration::from_millis(50), "{done:?}");
    // Another device of the host waits for what the card signals.
    let other = cpu(&host).queue().unwrap();
    other.wait(event).unwrap();
    other.finish(LONG).unwrap();
}

#[test]
fn what_is_behind_a_weight_of_blocks_is_in_its_buffer_and_zero() {
    let card = card(&Host::new(), Duration::ZERO);
    // Which multiplies blocks.
    assert!(card.speed().is_some());
    let mut g = GraphBuilder::new();
    let w = g.weight("w", DType::Q8_0, &[32, 4]).unwrap();
    let x = g.weight("x", DType::F32, &[32, 1]).unwrap();
    let y = g.push(MulMat, &[w, x]).unwrap();
    g.output(y);
    let graph = Arc::new(g.finish().unwrap());
    // Of floats nothing is read beyond their end.
    let [x, y] = [128, 16].map(|size| Some(slice(card.as_ref(), size)));
    let placed = |w: Slice| Placement::new(&graph, card.as_ref(), vec![Some(w), x.clone(), y.clone()]);
    let short = slice(card.as_ref(), 4 * 34 + 509);
    let error = placed(short).unwrap_err().to_string();
    assert!(error.contains("leaf w: 509 bytes of its buffer are behind it; leave 510 zeros there"), "{error}");

    let whole = slice(card.as_ref(), 4 * 34 + 510);
    let run = card.compile(graph.clone(), placed(whole.part(0, 4 * 34).unwrap()).unwrap()).unwrap();
    for (at, fails) in [(4 * 34 - 1, false), (4 * 34, true), (4 * 34 + 509, true)] {
        let queue = card.queue().unwrap();
        queue.fill(&whole, 0).unwrap();
        queue.fill(&whole.part(at, 1).unwrap(), 1).unwrap();
        queue.execute(&run).unwrap();
        match queue.finish(LONG) {
            Ok(()) => assert!(!fails, "{at}"),
            Err(Error::Device { op: Some(op), detail, .. }) => {
                assert!(fails && op == "leaf w" && detail.contains("not zero"), "{at}: {op}: {detail}");
            }
            Err(other) => panic!("{at}: {other}"),
        }
    }
}

#[test]
fn tensors_cross_between_memories_that_do_not_reach_each_other() {
    let host = Host::new();
    let (card, cpu) = (card(&host, Duration::from_micros(200)), cpu(&host));
    let second = detached_device(&host, "SECOND", DetachedOptions::default());
    let devices: [&dyn Device; 3] = [card.as_ref(), cpu.as_ref(), second.as_ref()];
    let mut ticket = 0;
    // Nothing, a few bytes, and some pieces with a rest.
    for len in [0, 5, (7 << 20) + 3] {
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 2)] {
            for accept_first in [false, true] {
                ticket += 1;
                let (from, to, ticket) = (devices[from], devices[to], Ticket([ticket; 32]));
                let (src, dst) = (slice(from, len.max(1)), slice(to, len.max(1)));
                let (src, dst) = (src.part(0, len).unwrap(), dst.part(0, len).unwrap());
                let (offers, accepts) = (from.queue().unwrap(), to.queue().unwrap());
                let bytes = pattern(len, u64::from(ticket.0[0]) + 1);
                offers.write(&src, bytes.clone()).unwrap();
                let offer = || from.peer().unwrap().offer(offers.as_ref(), ticket, &src, to).unwrap();
                let accept = || to.peer().unwrap().accept(accepts.as_ref(), ticket, &dst).map(drop).unwrap();
                if accept_first {
                    accept();
                    std::thread::sleep(Duration::from_millis(5));
                    offer();
                } else {
                    offer();
                    accept();
                }
                // What comes behind the offer does not change what was offered.
                offers.fill(&src, 0).unwrap();
                assert_eq!(accepts.read(&dst).unwrap().wait(LONG).unwrap(), bytes, "{len} {accept_first}");
                offers.finish(LONG).unwrap();
            }
        }
    }
    let far = detached_device(&Host::new(), "FAR", DetachedOptions::default());
    assert!(!card.peer().unwrap().reaches(far.as_ref()));
}

#[test]
fn wrong_values_are_found_late_and_poison_what_follows() {
    let host = Host::new();
    let (card, cpu) = (card(&host, Duration::from_millis(5)), cpu(&host));
    let mut g = GraphBuilder::new();
    let table = g.input("table", DType::F32, &[4, 3]).unwrap();
    let rows = g.input("rows", DType::I32, &[1]).unwrap();
    let picked = g.push(GetRows, &[table, rows]).unwrap();
    g.name(picked, "picked");
    g.output(picked);
    let graph = Arc::new(g.finish().unwrap());
    let sizes = graph.tensors().iter().map(|t| t.layout().span() as u64);
    let slices: Vec<Slice> = sizes.map(|size| slice(card.as_ref(), size)).collect();
    let places = slices.iter().cloned().map(Some).collect();
    let run = card.compile(graph.clone(), Placement::new(&graph, card.as_ref(), places).unwrap()).unwrap();
    let queue = card.queue().unwrap();
    queue.write(&slices[1], bytes::Bytes::copy_from_slice(&99i32.to_le_bytes())).unwrap();
    queue.execute(&run).unwrap();
    // The card has these before it finds out.
    let event = queue.signal().unwrap();
    queue.execute(&run).unwrap();
    let ticket = Ticket([9; 32]);
    card.peer().unwrap().offer(queue.as_ref(), ticket, &slices[2], cpu.as_ref()).unwrap();
    let read = queue.read(&slices[2]).unwrap();
    let other = cpu.queue().unwrap();
    other.wait(event).unwrap();
    let takes = cpu.queue().unwrap();
    let dst = slice(cpu.as_ref(), slices[2].len());
    cpu.peer().unwrap().accept(takes.as_ref(), ticket, &dst).unwrap();
    let error = read.wait(LONG).unwrap_err();
    let named =
        matches!(&error, Error::Device { device, op: Some(op), .. } if device == "CARD" && op.contains("picked"));
    assert!(named, "{error:?}");
    assert_eq!(queue.finish(LONG).unwrap_err(), error);
    assert_eq!(other.finish(LONG).unwrap_err(), error, "an event behind it is never reached");
    assert_eq!(takes.finish(LONG).unwrap_err(), error, "whoever takes what it offers is told");
    // The card is not its queue.
    let again = card.queue().unwrap();
    again.write(&slices[1], bytes::Bytes::copy_from_slice(&2i32.to_le_bytes())).unwrap();
    again.execute(&run).unwrap();
    again.finish(LONG).unwrap();
}

#[test]
fn queues_end_while_the_card_is_at_work() {
    let host = Host::new();
    let (card, cpu) = (card(&host, Duration::from_millis(200)), cpu(&host));
    let start = Instant::now();
    for _ in 0..5 {
        let queue = card.queue().unwrap();
        let (x, y) = (slice(card.as_ref(), 16), slice(card.as_ref(), 16));
        queue.execute(&negation(card.as_ref(), &x, &y)).unwrap();
        let ticket = Ticket(device::fresh_uid().to_le_bytes().repeat(4).try_into().unwrap());
        card.peer().unwrap().offer(queue.as_ref(), ticket, &y, cpu.as_ref()).unwrap();
        let (read, marker) = (queue.read(&y).unwrap(), queue.marker().unwrap());
        let takes = cpu.queue().unwrap();
        cpu.peer().unwrap().accept(takes.as_ref(), ticket, &slice(cpu.as_ref(), 16)).unwrap();
        drop(queue);
        assert!(read.wait(LONG).is_err() && marker.wait(LONG).is_err() && takes.finish(LONG).is_err());
    }
    assert!(start.elapsed() < LONG);
    let memory = card.memory().unwrap();
    assert_eq!(memory.free, memory.total, "nothing of them is left");
}

/// An answer is given on a thread of the queue, which cannot wait for itself.
#[test]
fn a_queue_may_be_dropped_in_an_answer() {
    let host = Host::new();
    let card = card(&host, Duration::from_millis(5));
    let (x, y) = (slice(card.as_ref(), 16), slice(card.as_ref(), 16));
    let queue = card.queue().unwrap();
    queue.execute(&negation(card.as_ref(), &x, &y)).unwrap();
    let marker = queue.marker().unwrap();
    let (to, dropped) = std::sync::mpsc::channel();
    marker.then(move |done| {
        drop(queue);
        to.send(done).unwrap();
    });
    dropped.recv_timeout(LONG).unwrap().unwrap();
}

#[test]
fn times_are_the_hosts_whatever_the_cards_clock_says() {
    let host = Host::new();
    let card = card(&host, Duration::from_millis(2));
    let (x, y) = (slice(card.as_ref(), 1 << 20), slice(card.as_ref(), 1 << 20));
    let graph = negation(card.as_ref(), &x, &y);
    let queue = card.queue().unwrap();
    let spans = Arc::new(Mutex::new(Vec::new()));
    let seen = spans.clone();
    let hook = move |e: outboard_core::TraceEvent<'_>| {
        if e.what == "execute" {
            seen.lock().unwrap().push((e.start, e.end));
        }
    };
    queue.set_trace(Box::new(hook)).unwrap();
    let before = Instant::now();
    (0..5).for_each(|_| queue.execute(&graph).unwrap());
    queue.finish(LONG).unwrap();
    let after = Instant::now();
    drop(queue);
    let spans = spans.lock().unwrap();
    assert_eq!(spans.len(), 5);
    let slack = Duration::from_micros(100);
    for (i, &(start, end)) in spans.iter().enumerate() {
        assert!(start < end && start >= before && end <= after + slack, "{i}");
        assert!(i == 0 || start + slack >= spans[i - 1].1, "graphs run one after the other");
    }
    assert!(spans[0].0 >= before + Duration::from_millis(2), "it begins when the card does");
}

#[test]
fn memory_is_the_cards_and_bounded() {
    let host = Host::new();
    let card = card(&host, Duration::ZERO);
    let error = card.alloc((64 << 20) + 1, Usage::Weights).unwrap_err().to_string();
    assert_eq!(error, "CARD: 64.0 MiB in one allocation, 64.0 MiB is the largest it has");
    let held: Vec<Arc<dyn Buffer>> = (0..4).map(|_| card.alloc(64 << 20, Usage::Weights).unwrap()).collect();
    assert!(matches!(card.alloc(1, Usage::Any), Err(Error::OutOfMemory { needed: 1, free: 0, .. })));
    drop(held);
    // New memory is zero, whatever was there, for another client too.
    #[derive(Debug)]
    struct NoAccount;
    impl MemoryAccount for NoAccount {
        fn take(&self, _: u64, _: &DeviceInfo, _: u64) -> outboard_core::Result<MemoryShare> {
            Ok(Box::new(()))
        }
    }
    let client = || {
        let client = Client { turns: device::fresh_uid(), room: device::fresh_uid(), account: Arc::new(NoAccount) };
        card.for_client(client).unwrap()
    };
    for _ in 0..3 {
        let client = client();
        let queue = client.queue().unwrap();
        let memory = slice(client.as_ref(), 1 << 20);
        assert!(queue.read(&memory).unwrap().wait(LONG).unwrap().iter().all(|&byte| byte == 0));
        queue.fill(&memory, 7).unwrap();
        queue.finish(LONG).unwrap();
    }
}
