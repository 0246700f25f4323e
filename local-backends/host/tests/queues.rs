//! Queues, timelines and transfers of host devices, with kernels that fail, block and meet on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::{Unary, UnaryKind};
use outboard_core::*;
use outboard_host::*;
use outboard_system::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// NEG negates, SQRT fails, ABS panics, EXP runs until it is aborted, SIN waits until two are in it at the same time, COS waits twice for somebody, LOG gives what is
/// in its scratch memory and leaves sevens there.
struct Toy {
    meet: Arc<Barrier>,
}

struct ToyProgram {
    graph: Arc<Graph>,
    tensors: Vec<TensorPtr>,
    meet: Arc<Barrier>,
}

impl Kernels for Toy {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        matches!(graph.tensor(id).op(), Some(Op::Unary(_)))
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>> {
        Ok(Box::new(ToyProgram { graph, tensors, meet: self.meet.clone() }))
    }
}

impl Program for ToyProgram {
    fn scratch(&self) -> u64 {
        let is_log = |id| matches!(self.graph.tensor(id).op(), Some(Op::Unary(Unary { kind: UnaryKind::Log })));
        if self.graph.nodes().any(is_log) { 16 } else { 0 }
    }

    fn run(&self, run: Run<'_>) -> std::result::Result<(), NodeError> {
        for id in self.graph.nodes() {
            let fail =
                |detail: Option<&str>| NodeError { node: self.graph.label(id), detail: detail.map(str::to_owned) };
            let Some(Op::Unary(Unary { kind })) = self.graph.tensor(id).op() else { continue };
            match kind {
                UnaryKind::Sqrt => return Err(fail(Some("broken on purpose"))),
                UnaryKind::Abs => panic!("on purpose"),
                UnaryKind::Exp => {
                    while !run.abort.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return Err(fail(None));
                }
                UnaryKind::Sin => {
                    self.meet.wait();
                }
                UnaryKind::Cos => {
                    self.meet.wait();
                    self.meet.wait();
                }
                _ => {}
            }
            let src = self.graph.tensor(id).sources().next().unwrap();
            let (x, y) = (self.tensors[src.index()], self.tensors[id.index()]);
            if *kind == UnaryKind::Log {
                // SAFETY: the result has 16 bytes, as has the scratch memory.
                unsafe { std::ptr::copy_nonoverlapping(run.scratch.as_ptr(), y.ptr, 16) };
                run.scratch.fill(7);
                continue;
            }
            for i in 0..y.layout.elements() {
                // SAFETY: both tensors are contiguous F32 of this many elements.
                unsafe { *y.ptr.cast::<f32>().add(i) = -*x.ptr.cast::<f32>().add(i) };
            }
        }
        Ok(())
    }
}

struct Rig {
    host: Arc<Host>,
    meet: Arc<Barrier>,
    budget: Arc<MemoryBudget>,
}

impl Rig {
    fn new() -> Rig {
        Rig { host: Host::new(), meet: Arc::new(Barrier::new(2)), budget: MemoryBudget::new(Some(1 << 24)) }
    }

    fn device(&self, name: &str) -> Arc<LocalDevice> {
        let info = DeviceInfo::new(name, DeviceKind::Cpu, "toy", 1 << 24);
        host_device(&self.host, info, &self.budget, Arc::new(Toy { meet: self.meet.clone() }))
    }
}

/// A client whose memory is counted by nobody.
#[derive(Debug)]
struct NoAccount;

impl MemoryAccount for NoAccount {
    fn take(&self, _: u64, _: &DeviceInfo, _: u64) -> Result<MemoryShare> {
        Ok(Box::new(()))
    }
}

/// A device as another client has it.
fn client(device: &LocalDevice) -> Arc<dyn Device> {
    let client = Client { turns: device::fresh_uid(), room: device::fresh_uid(), account: Arc::new(NoAccount) };
    device.for_client(client).unwrap()
}

fn slice(device: &dyn Device, size: u64) -> Slice {
    Slice::whole(device.alloc(size, Usage::Any).unwrap())
}

/// One op on four numbers.
fn program(device: &dyn Device, kind: UnaryKind, x: &Slice, y: &Slice) -> Arc<dyn Executable> {
    let mut g = GraphBuilder::new();
    let input = g.input("x", DType::F32, &[4]).unwrap();
    let node = g.push(Unary { kind }, &[input]).unwrap();
    g.name(node, "the.node");
    let graph = Arc::new(g.finish().unwrap());
    let places = vec![Some(x.clone()), Some(y.clone())];
    device.compile(graph.clone(), Placement::new(&graph, device, places).unwrap()).unwrap()
}

fn floats(values: [f32; 4]) -> Bytes {
    Bytes::from(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

#[test]
fn commands_run_in_order() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let (x, y) = (slice(d.as_ref(), 16), slice(d.as_ref(), 16));
    let exe = program(d.as_ref(), UnaryKind::Neg, &x, &y);
    let q = d.queue().unwrap();
    q.write(&x, floats([1., 2., 3., 4.])).unwrap();
    q.execute(&exe).unwrap();
    let first = q.read(&y).unwrap();
    q.copy(&y, &x).unwrap();
    q.execute(&exe).unwrap();
    let second = q.read(&y).unwrap();
    q.fill(&y.part(4, 4).unwrap(), 0).unwrap();
    let third = q.read(&y).unwrap();
    q.finish(LONG).unwrap();
    assert_eq!(first.wait(LONG).unwrap(), floats([-1., -2., -3., -4.]));
    assert_eq!(second.wait(LONG).unwrap(), floats([1., 2., 3., 4.]));
    assert_eq!(third.wait(LONG).unwrap(), floats([1., 0., 3., 4.]));
}

#[test]
fn misuse_is_refused_and_harmless() {
    let rig = Rig::new();
    let (d, other) = (rig.device("D0"), rig.device("D1"));
    let q = d.queue().unwrap();
    let (mine, theirs) = (slice(d.as_ref(), 16), slice(other.as_ref(), 16));
    assert!(matches!(q.write(&mine, Bytes::from_static(b"abc")), Err(Error::Request(_))));
    assert!(matches!(q.read(&theirs), Err(Error::Misuse(_))));
    assert!(matches!(q.copy(&theirs, &mine), Err(Error::Misuse(_))));
    let exe = program(other.as_ref(), UnaryKind::Neg, &theirs, &slice(other.as_ref(), 16));
    assert!(matches!(q.execute(&exe), Err(Error::Misuse(_))));
    // Copies that overlap, and one onto itself.
    let [a, b] = [0, 4].map(|start| mine.part(start, 12).unwrap());
    assert!(matches!(q.copy(&a, &b), Err(Error::Request(why)) if why.contains("overlap")));
    q.copy(&a, &a).unwrap();
    // Slices of no bytes go nowhere.
    let none = mine.part(16, 0).unwrap();
    q.write(&none, Bytes::new()).unwrap();
    q.fill(&none, 1).unwrap();
    q.copy(&none, &none).unwrap();
    assert!(q.read(&none).unwrap().wait(LONG).unwrap().is_empty());
    // The places of one graph are not those of a larger one.
    let graph = |numbers: usize| {
        let mut g = GraphBuilder::new();
        let input = g.input("x", DType::F32, &[numbers]).unwrap();
        g.push(Unary { kind: UnaryKind::Neg }, &[input]).unwrap();
        Arc::new(g.finish().unwrap())
    };
    let places = vec![Some(slice(d.as_ref(), 16)), Some(slice(d.as_ref(), 16))];
    let placement = Placement::new(&graph(4), d.as_ref(), places).unwrap();
    let wrong = d.compile(graph(64), placement.clone());
    assert!(matches!(wrong, Err(Error::Request(why)) if why.contains("16 bytes, 256 needed")));
    assert!(other.compile(graph(4), placement).is_err());
    let file = d.import(&Bytes::from_static(&[0; 64])).unwrap();
    if let Some(file) = file {
        assert!(matches!(q.fill(&Slice::whole(file), 1), Err(Error::Request(_))));
    }
    q.finish(LONG).unwrap();
}

#[test]
fn the_first_error_stays_and_spreads() {
    let rig = Rig::new();
    let (a, b) = (rig.device("D0"), rig.device("D1"));
    let (x, y) = (slice(a.as_ref(), 16), slice(a.as_ref(), 16));
    let (qa, qb) = (a.queue().unwrap(), b.queue().unwrap());
    let good = qa.signal().unwrap();
    qa.execute(&program(a.as_ref(), UnaryKind::Sqrt, &x, &y)).unwrap();
    let bad = qa.signal();
    let read = qa.read(&y);
    let error = qa.finish(LONG).unwrap_err();
    assert_eq!(error.to_string(), "D0, SQRT the.node: broken on purpose");
    if let Ok(read) = read {
        assert_eq!(read.wait(LONG).unwrap_err(), error);
    }
    assert_eq!(qa.fill(&y, 0).unwrap_err(), error);
    qb.wait(good).unwrap();
    qb.finish(LONG).unwrap();
    if let Ok(bad) = bad {
        qb.wait(bad).unwrap();
        assert_eq!(qb.finish(LONG).unwrap_err(), error);
    }
    // The device is not its queue.
    let again = a.queue().unwrap();
    again.execute(&program(a.as_ref(), UnaryKind::Neg, &x, &y)).unwrap();
    again.finish(LONG).unwrap();
}

#[test]
fn a_panic_is_an_error_of_its_queue() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let (x, y) = (slice(d.as_ref(), 16), slice(d.as_ref(), 16));
    let q = d.queue().unwrap();
    q.execute(&program(d.as_ref(), UnaryKind::Abs, &x, &y)).unwrap();
    assert!(q.finish(LONG).unwrap_err().to_string().contains("panicked"));
    let q = d.queue().unwrap();
    q.execute(&program(d.as_ref(), UnaryKind::Neg, &x, &y)).unwrap();
    q.finish(LONG).unwrap();
}

#[test]
fn two_devices_compute_at_the_same_time() {
    let rig = Rig::new();
    let spans = Arc::new(Mutex::new(Vec::new()));
    let seen = spans.clone();
    rig.host.set_trace(move |e| {
        if e.what == "execute" {
            seen.lock().unwrap().push((e.device.to_owned(), e.start, e.end));
        }
    });
    // Each waits in the middle of its graph for the other: devices that took turns would never end.
    let devices = [rig.device("D0"), rig.device("D1")];
    let queues: Vec<_> = devices
        .iter()
        .map(|d| {
            let q = d.queue().unwrap();
            q.execute(&program(d.as_ref(), UnaryKind::Sin, &slice(d.as_ref(), 16), &slice(d.as_ref(), 16))).unwrap();
            q
        })
        .collect();
    queues.iter().for_each(|q| q.finish(LONG).unwrap());
    let spans = spans.lock().unwrap();
    let (a, b) = (&spans[0], &spans[1]);
    assert!(a.0 != b.0 && a.1 < b.2 && b.1 < a.2, "{spans:?}");
}

#[test]
fn the_trace_of_a_queue_is_its_own_and_begins_with_its_turn() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let (x, y) = (slice(d.as_ref(), 16), slice(d.as_ref(), 16));
    let (q, other) = (d.queue().unwrap(), d.queue().unwrap());
    let spans = Arc::new(Mutex::new(Vec::new()));
    let seen = spans.clone();
    let hook = move |e: TraceEvent<'_>| seen.lock().unwrap().push((e.queue, e.what, e.start, e.end));
    q.set_trace(Box::new(hook.clone())).unwrap();
    assert!(matches!(q.set_trace(Box::new(hook.clone())), Err(Error::Misuse(_))), "a queue has one trace");
    other.set_trace(Box::new(hook)).unwrap();
    let exe = program(d.as_ref(), UnaryKind::Neg, &x, &y);
    let silent = d.queue().unwrap();
    for _ in 0..20 {
        [&q, &other, &silent].iter().for_each(|q| q.execute(&exe).unwrap());
    }
    [&q, &other, &silent].iter().for_each(|q| q.finish(LONG).unwrap());
    // The hook runs behind the command, so that the last ones may still be on their way when they are answered.
    drop((q, other));
    let mut graphs: Vec<_> = spans.lock().unwrap().iter().filter(|s| s.1 == "execute").cloned().collect();
    assert_eq!(graphs.len(), 40);
    graphs.sort_by_key(|s| s.2);
    assert!(graphs.windows(2).all(|w| w[0].3 <= w[1].2), "graphs of one device take turns: {graphs:?}");
}

#[test]
fn aborting_ends_what_runs() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let (x, y) = (slice(d.as_ref(), 16), slice(d.as_ref(), 16));
    let exe = program(d.as_ref(), UnaryKind::Exp, &x, &y);
    let (q, behind) = (d.queue().unwrap(), d.queue().unwrap());
    q.execute(&exe).unwrap();
    behind.execute(&exe).unwrap();
    let pending = q.read(&y).unwrap();
    d.abort();
    assert_eq!(q.finish(LONG).unwrap_err(), Error::Cancelled);
    assert_eq!(behind.finish(LONG).unwrap_err(), Error::Cancelled);
    assert_eq!(pending.wait(LONG).unwrap_err(), Error::Cancelled);
    let q = d.queue().unwrap();
    q.execute(&program(d.as_ref(), UnaryKind::Neg, &x, &y)).unwrap();
    q.finish(LONG).unwrap();
}

#[test]
fn a_dropped_queue_leaves_nobody_waiting() {
    let rig = Rig::new();
    let (a, b) = (rig.device("D0"), rig.device("D1"));
    let (x, y) = (slice(a.as_ref(), 16), slice(a.as_ref(), 16));
    let (qa, qb) = (a.queue().unwrap(), b.queue().unwrap());
    qa.execute(&program(a.as_ref(), UnaryKind::Exp, &x, &y)).unwrap();
    let pending = qa.read(&y).unwrap();
    let event = qa.signal().unwrap();
    qa.write(&x, Bytes::from(vec![0; 16])).unwrap();
    a.peer().unwrap().offer(qa.as_ref(), Ticket([3; 32]), &x, b.as_ref()).unwrap();
    qb.wait(event).unwrap();
    let waiting = qb.read(&slice(b.as_ref(), 4)).unwrap();
    let qc = b.queue().unwrap();
    b.peer().unwrap().accept(qc.as_ref(), Ticket([3; 32]), &slice(b.as_ref(), 16)).unwrap();
    let start = Instant::now();
    drop(qa);
    assert!(pending.wait(LONG).is_err());
    assert!(waiting.wait(LONG).is_err());
    assert!(qc.finish(LONG).is_err());
    assert!(matches!(b.queue().unwrap().wait(event), Err(Error::Request(_))));
    assert!(start.elapsed() < LONG);
    // A queue that waits for an event that never comes ends as promptly.
    let (q, never) = (b.queue().unwrap(), a.queue().unwrap());
    q.wait(Event { device: a.uid(), queue: never.uid(), value: 99 }).unwrap();
    drop(q);
    assert!(start.elapsed() < LONG);
}

#[test]
fn tensors_cross_in_any_order() {
    let rig = Rig::new();
    let (a, b) = (rig.device("D0"), rig.device("D1"));
    let (qa, qb) = (a.queue().unwrap(), b.queue().unwrap());
    let (xa, ya, xb, yb) = (slice(a.as_ref(), 16), slice(a.as_ref(), 16), slice(b.as_ref(), 16), slice(b.as_ref(), 16));
    qa.write(&xa, floats([1., 2., 3., 4.])).unwrap();
    qb.write(&xb, floats([5., 6., 7., 8.])).unwrap();
    let (pa, pb) = (a.peer().unwrap(), b.peer().unwrap());
    assert!(pa.reaches(b.as_ref()) && !pa.reaches(Rig::new().device("D2").as_ref()));
    // Both accept before they offer the other way round; neither may wait for the other's offer of later.
    pa.offer(qa.as_ref(), Ticket([1; 32]), &xa, b.as_ref()).unwrap();
    pa.accept(qa.as_ref(), Ticket([2; 32]), &ya).unwrap();
    pb.accept(qb.as_ref(), Ticket([1; 32]), &yb).unwrap();
    pb.offer(qb.as_ref(), Ticket([2; 32]), &xb, a.as_ref()).unwrap();
    assert_eq!(qa.read(&ya).unwrap().wait(LONG).unwrap(), floats([5., 6., 7., 8.]));
    assert_eq!(qb.read(&yb).unwrap().wait(LONG).unwrap(), floats([1., 2., 3., 4.]));
    // A size that differs poisons the one who accepts.
    pa.offer(qa.as_ref(), Ticket([4; 32]), &xa, b.as_ref()).unwrap();
    // The queue may be poisoned before `accept` returns its event: then that is the same error.
    let accepted = pb.accept(qb.as_ref(), Ticket([4; 32]), &yb.part(0, 8).unwrap());
    assert!(accepted.as_ref().err().is_none_or(|e| e.to_string().contains("accepted as 8")), "{accepted:?}");
    assert!(qb.finish(LONG).unwrap_err().to_string().contains("16 bytes was accepted as 8"));
    qa.finish(LONG).unwrap();
}

#[test]
fn memory_is_bounded_and_returns() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let before = d.memory().unwrap().free;
    let e = d.alloc(1 << 30, Usage::Weights).unwrap_err();
    assert!(matches!(e, Error::OutOfMemory { needed, .. } if needed == 1 << 30), "{e}");
    let (x, y) = (slice(d.as_ref(), 16), slice(d.as_ref(), 4 << 20));
    let exe = program(d.as_ref(), UnaryKind::Neg, &x, &y);
    drop((x, y));
    // A compiled graph keeps its memory.
    assert_eq!(rig.budget.used(), 16 + (4 << 20));
    let q = d.queue().unwrap();
    q.execute(&exe).unwrap();
    q.finish(LONG).unwrap();
    drop((exe, q));
    assert_eq!((rig.budget.used(), d.memory().unwrap().free), (0, before));
}

#[test]
fn files_are_memory() {
    let dir = std::env::temp_dir().join(format!("outboard-host-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("f");
    std::fs::write(&path, b"").unwrap();
    assert!(open_mapped(&path).unwrap().is_empty());
    std::fs::write(&path, vec![7u8; 100]).unwrap();
    let rig = Rig::new();
    let d = rig.device("D0");
    let buffer = d.import(&open_mapped(&path).unwrap()).unwrap().unwrap();
    assert!(buffer.is_read_only() && rig.budget.used() == 0);
    let q = d.queue().unwrap();
    assert_eq!(q.read(&Slice::whole(buffer)).unwrap().wait(LONG).unwrap(), vec![7u8; 100]);
    assert!(open_mapped(&dir).is_err() && open_mapped(&dir.join("none")).is_err());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn bytes_that_come_later() {
    let device = Rig::new().device("D0");
    let queue = device.queue().unwrap();
    let whole = slice(device.as_ref(), 8);
    let read = |queue: &Arc<dyn Queue>| queue.read(&whole)?.wait(LONG);
    let (to, data) = Pending::new("elsewhere");
    queue.write_later(&whole, data).unwrap();
    let after = queue.read(&whole).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    to.complete(Ok(vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defgh")]));
    assert_eq!(after.wait(LONG).unwrap(), "abcdefgh");
    // Of another length, an error, and a giver that goes away: each poisons its queue.
    for given in [Some(Ok(vec![Bytes::from_static(b"short")])), Some(Err(Error::Cancelled)), None] {
        let queue = device.queue().unwrap();
        let (to, data) = Pending::new("elsewhere");
        queue.write_later(&whole, data).unwrap();
        match given {
            Some(result) => to.complete(result),
            None => drop(to),
        }
        assert!(read(&queue).is_err());
    }
    assert_eq!(read(&queue).unwrap(), "abcdefgh");
    // A queue that is dropped waits for nothing.
    let (_to, data) = Pending::new("elsewhere");
    queue.write_later(&whole, data).unwrap();
    let start = Instant::now();
    drop(queue);
    assert!(start.elapsed() < LONG);
}

#[test]
fn scratch_memory_is_one_clients_own() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let run = |device: &dyn Device| {
        let (x, y) = (slice(device, 16), slice(device, 16));
        let q = device.queue().unwrap();
        q.execute(&program(device, UnaryKind::Log, &x, &y)).unwrap();
        q.read(&y).unwrap().wait(LONG).unwrap()
    };
    let (a, b) = (client(&d), client(&d));
    let kept = |device: &dyn Device| {
        let unused = [(); 2].map(|()| slice(device, 16));
        program(device, UnaryKind::Log, &unused[0], &unused[1])
    };
    let hers = kept(a.as_ref());
    assert_eq!(run(a.as_ref()), [0; 16].as_slice());
    assert_eq!(run(a.as_ref()), [7; 16].as_slice(), "what a client's own programs have left");
    assert_eq!(run(b.as_ref()), [0; 16].as_slice());
    assert_eq!(run(d.as_ref()), [0; 16].as_slice());
    // Nothing is left when the last program has gone.
    drop(hers);
    assert_eq!(rig.budget.used(), 0);
    assert_eq!(run(a.as_ref()), [0; 16].as_slice());
}

#[test]
fn nobody_writes_where_a_graph_computes() {
    let rig = Rig::new();
    let d = rig.device("D0");
    let (x, y) = (slice(d.as_ref(), 16), slice(d.as_ref(), 16));
    let (q, other) = (d.queue().unwrap(), d.queue().unwrap());
    q.write(&x, floats([1., 2., 3., 4.])).unwrap();
    q.execute(&program(d.as_ref(), UnaryKind::Cos, &x, &y)).unwrap();
    rig.meet.wait();
    // The graph is in the middle of its node now. What it reads may be read, what it writes may not be written.
    assert_eq!(other.read(&x).unwrap().wait(LONG).unwrap().len(), 16);
    other.fill(&y, 0x5e).unwrap();
    assert!(matches!(other.finish(Duration::from_millis(200)), Err(Error::Timeout { .. })));
    rig.meet.wait();
    other.finish(LONG).unwrap();
    q.finish(LONG).unwrap();
    assert_eq!(q.read(&y).unwrap().wait(LONG).unwrap(), [0x5e; 16].as_slice());
}
