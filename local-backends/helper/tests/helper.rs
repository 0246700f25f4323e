//! Devices in helpers: what they compute, what they cost in memory, and how they end. The helper is this program, started again.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faulty;

use bytes::Bytes;
use outboard_conformance::{Filter, run};
use outboard_core::device::{Client, fresh_uid};
use outboard_core::local::{FixedPool, LocalDevice, MemoryPool};
use outboard_core::op::{Unary, UnaryKind};
use outboard_core::{
    DType, Device, DeviceInfo, Error, Executable, Graph, GraphBuilder, Host, MemoryShare, Placement, Result, Slice,
    Usage,
};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_helper::{Launch, Offer, Offers, StartLimit, end_with_the_other_side, helper_device, serve};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(30);
/// What the helper is to have; without it this is a test among others.
const KIND: &str = "OUTBOARD_TEST_HELPER";

#[test]
fn helper_process() {
    let Some(kind) = std::env::var_os(KIND) else { return };
    let device: Arc<dyn Device> = match kind.to_str().unwrap() {
        "detached" => detached_device(&Host::new(), "card", DetachedOptions::default()),
        "refuses" => {
            let why = Error::Request("there is no card here".into());
            return serve(Err(why), None).unwrap();
        }
        // What a driver's initialiser may do.
        "hangs" => {
            end_with_the_other_side().unwrap();
            std::thread::sleep(Duration::from_secs(3600));
            return;
        }
        "leaves a process" => {
            Command::new("sleep").arg("20").spawn().unwrap();
            std::process::abort();
        }
        "dies" => {
            eprintln!("the driver is too old");
            std::process::exit(3);
        }
        _ => faulty::device(),
    };
    let offer = Offer { info: device.info().clone(), is_software: true };
    let offers = Offers { devices: vec![offer], notes: vec!["another one is broken".into()] };
    serve(Ok(offers), Some(device)).unwrap();
}

fn launch(kind: &str) -> Launch {
    let args = ["helper_process", "--exact", "--nocapture"].map(Into::into);
    let env = vec![(KIND.into(), kind.into())];
    Launch { env, hang: Duration::from_secs(2), ..Launch::this_program(args) }
}

/// A device of this process in a helper.
fn open(kind: &str, pool: Option<Arc<dyn MemoryPool>>) -> Arc<LocalDevice> {
    let launch = launch(kind);
    let Offers { mut devices, notes } = launch.offers(kind).unwrap();
    let offer = devices.remove(0);
    assert!(offer.is_software && devices.is_empty() && notes == ["another one is broken"]);
    helper_device(&Host::new(), launch, offer.info, pool)
}

/// A graph of one node with this name.
fn graph(name: &str) -> Arc<Graph> {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[4]).unwrap();
    let y = g.push(Unary { kind: UnaryKind::Relu }, &[x]).unwrap();
    g.name(y, name);
    g.output(y);
    Arc::new(g.finish().unwrap())
}

fn compiled(device: &dyn Device, name: &str) -> Result<Arc<dyn Executable>> {
    let graph = graph(name);
    let whole = Slice::whole(device.alloc(4096, Usage::Any)?);
    let places = graph.ids().map(|id| whole.part(256 * id.index() as u64, 256).ok()).collect();
    let placement = Placement::new(&graph, device, places)?;
    device.compile(graph, placement)
}

fn execute(device: &dyn Device, name: &str) -> Result<()> {
    let executable = compiled(device, name)?;
    let queue = device.queue()?;
    queue.execute(&executable)?;
    queue.finish(WAIT)
}

#[derive(Debug)]
struct Account(Arc<FixedPool>);

impl outboard_core::device::MemoryAccount for Account {
    fn take(&self, _: u64, info: &DeviceInfo, bytes: u64) -> Result<MemoryShare> {
        self.0.take(bytes, &info.id)
    }
}

/// The device as a client has it that may take so many bytes.
fn client(device: &LocalDevice, bytes: u64) -> (Arc<dyn Device>, Arc<FixedPool>) {
    let pool = FixedPool::new(bytes);
    let account = Arc::new(Account(pool.clone()));
    (device.for_client(Client { turns: fresh_uid(), room: fresh_uid(), account }).unwrap(), pool)
}

/// Waits for what comes soon.
fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < end, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_computes_what_the_reference_does() {
    let device = open("detached", None);
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let report = run(device.as_ref(), reference.as_ref(), &Filter::quick()).unwrap();
    println!("{report}");
    assert!(report.ok() && report.unsupported() == 0 && report.cases() > 100, "{report}");
}

#[test]
fn bytes_go_there_and_back_in_pieces_and_in_order() {
    let device = open("faulty", None);
    let buffer = device.alloc(10 << 20, Usage::Any).unwrap();
    let whole = Slice::whole(buffer);
    let queue = device.queue().unwrap();
    assert!(queue.read(&whole).unwrap().wait(WAIT).unwrap().iter().all(|&b| b == 0));
    let bytes: Vec<u8> = (0..whole.len()).map(|i| (i * 31 % 251) as u8).collect();
    for _ in 0..5 {
        queue.fill(&whole, 9).unwrap();
        queue.write(&whole, bytes.clone().into()).unwrap();
    }
    queue.copy(&whole.part(0, 3 << 20).unwrap(), &whole.part(5 << 20, 3 << 20).unwrap()).unwrap();
    let got = queue.read(&whole.part(1, whole.len() - 1).unwrap()).unwrap().wait(WAIT).unwrap();
    assert!(got[..(5 << 20) - 1] == bytes[1..5 << 20] && got[(8 << 20) - 1..] == bytes[8 << 20..]);
    assert!(got[(5 << 20) - 1..(8 << 20) - 1] == bytes[..3 << 20]);
    // Handed to another device of this process, and back.
    let other = reference_device(device.host().unwrap(), "REF", &MemoryBudget::new(None));
    let (there, back) = (other.alloc(whole.len(), Usage::Any).unwrap(), device.alloc(whole.len(), Usage::Any).unwrap());
    let (theirs, ours) = (other.queue().unwrap(), device.queue().unwrap());
    let hand_over = |n: u8,
                     from: (&dyn Device, &dyn outboard_core::Queue, &Slice),
                     to: (&dyn Device, &dyn outboard_core::Queue, &Slice)| {
        let ticket = outboard_core::device::Ticket([n; 32]);
        from.0.peer().unwrap().offer(from.1, ticket, from.2, to.0).unwrap();
        to.0.peer().unwrap().accept(to.1, ticket, to.2).unwrap();
    };
    let (there, back) = (Slice::whole(there), Slice::whole(back));
    hand_over(1, (device.as_ref(), queue.as_ref(), &whole), (other.as_ref(), theirs.as_ref(), &there));
    hand_over(2, (other.as_ref(), theirs.as_ref(), &there), (device.as_ref(), ours.as_ref(), &back));
    assert!(ours.read(&back).unwrap().wait(WAIT).unwrap()[1..] == got[..]);
}

/// Has one queue accept, and then another one offer.
fn hand_over(
    device: &dyn Device,
    (offers, src): (&dyn outboard_core::Queue, &Slice),
    (accepts, dst): (&dyn outboard_core::Queue, &Slice),
) {
    let ticket = outboard_core::device::Ticket([3; 32]);
    device.peer().unwrap().accept(accepts, ticket, dst).unwrap();
    let progress = accepts.progress().unwrap();
    until(|| progress.doing() == outboard_core::Doing::Queue);
    std::thread::sleep(Duration::from_millis(20));
    device.peer().unwrap().offer(offers, ticket, src, device).unwrap();
}

/// What one queue of a device hands to another is behind what that one was given before.
#[test]
fn transfers_between_queues_of_a_device_are_in_order() {
    let device = open("faulty", None);
    let [src, dst, many] = [8, 8, 16 << 20].map(|size| Slice::whole(device.alloc(size, Usage::Any).unwrap()));
    let (offers, accepts) = (device.queue().unwrap(), device.queue().unwrap());
    offers.fill(&src, 9).unwrap();
    offers.finish(WAIT).unwrap();
    (0..200).for_each(|_| accepts.fill(&many, 7).unwrap());
    accepts.fill(&dst, 1).unwrap();
    let mut before = accepts.marker().unwrap();
    hand_over(device.as_ref(), (offers.as_ref(), &src), (accepts.as_ref(), &dst));
    offers.finish(WAIT).unwrap();
    assert!(before.wait_more(Duration::ZERO).is_none(), "the device was done too soon to see anything");
    assert!(accepts.read(&dst).unwrap().wait(WAIT).unwrap()[..] == [9; 8]);
}

/// Whoever is told that an offer came to nothing finds that nothing is written for it any more.
#[test]
fn a_queue_that_is_dropped_ends_its_copies() {
    let device = open("faulty", None);
    let [src, dst] = [4, 4].map(|size| Slice::whole(device.alloc(size, Usage::Any).unwrap()));
    let (offers, accepts, next) = (device.queue().unwrap(), device.queue().unwrap(), device.queue().unwrap());
    offers.write(&src, faulty::SLOW.into()).unwrap();
    offers.finish(WAIT).unwrap();
    hand_over(device.as_ref(), (offers.as_ref(), &src), (accepts.as_ref(), &dst));
    std::thread::sleep(Duration::from_millis(300));
    let dropped = std::thread::spawn(move || drop(offers));
    // The copy was under way, and came to its end or did not.
    let told = accepts.finish(WAIT);
    assert!(matches!(told, Ok(()) | Err(Error::Cancelled)), "{told:?}");
    next.fill(&dst, 6).unwrap();
    next.finish(WAIT).unwrap();
    dropped.join().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(next.read(&dst).unwrap().wait(WAIT).unwrap()[..], [6; 4]);
}

#[test]
fn memory_is_paid_for_here_and_given_back() {
    let pool = FixedPool::new(1 << 20);
    let device = open("faulty", Some(pool.clone()));
    let (first, account) = client(&device, 9000);
    let free = || (pool.info().free, account.info().free);
    let executable = compiled(first.as_ref(), "fine").unwrap();
    assert_eq!(free(), ((1 << 20) - 4096 - faulty::SCRATCH, 9000 - 4096 - faulty::SCRATCH));
    // Neither the graph's own memory nor a buffer may be more than the client has.
    let buffer = first.alloc(3000, Usage::Any).unwrap();
    assert!(matches!(first.alloc(1000, Usage::Any), Err(Error::OutOfMemory { needed: 1000, .. })));
    let (poor, poor_account) = client(&device, 4096);
    let error = compiled(poor.as_ref(), "fine").unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { needed: faulty::SCRATCH, .. }), "{error}");
    until(|| poor_account.info().free == 4096);
    // What is given back is free again when the helper has it no more, and that is before the next one is made.
    drop((executable, buffer));
    drop(first.alloc(9000, Usage::Any).unwrap());
    drop(first.alloc(9000, Usage::Any).unwrap());
    until(|| free() == (1 << 20, 9000));
    // A card's own memory is what its driver says.
    let device = open("faulty", None);
    assert_eq!(device.memory().unwrap().total, faulty::MEMORY);
    assert!(device.alloc(faulty::MEMORY + 1, Usage::Any).is_err());
}

#[test]
fn errors_of_the_device_come_as_they_are_and_others_go_on() {
    let device = open("faulty", None);
    let (one, _) = client(&device, 1 << 20);
    let (other, _) = client(&device, 1 << 20);
    let wrong = execute(one.as_ref(), "wrong").unwrap_err();
    assert_eq!(wrong.to_string(), "faulty, GET_ROWS wrong: row 9 outside 0..5 rows");
    execute(one.as_ref(), "fine").unwrap();
    execute(other.as_ref(), "fine").unwrap();
    let unsupported = execute(one.as_ref(), "unsupported").unwrap_err().to_string();
    assert!(unsupported.starts_with("faulty does not support RELU unsupported"), "{unsupported}");
    one.resume().unwrap();
}

#[test]
fn an_abort_costs_what_lived_in_the_helper_and_the_next_client_gets_another() {
    let pool = FixedPool::new(1 << 20);
    let device = open("faulty", Some(pool.clone()));
    for (fault, how) in [("abort", "signal: 6"), ("exit", "exit status: 7")] {
        let (one, _) = client(&device, 1 << 20);
        let (other, _) = client(&device, 1 << 20);
        let kept = Slice::whole(other.alloc(1000, Usage::Any).unwrap());
        let idle = other.queue().unwrap();
        idle.finish(WAIT).unwrap();
        let start = Instant::now();
        let error = execute(one.as_ref(), fault).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(matches!(&error, Error::Peer { endpoint, .. } if endpoint == "faulty"), "{error}");
        let text = error.to_string();
        assert!(text.contains(how), "{text}");
        assert_eq!(text.contains("GGML_ASSERT(everything is well) failed"), fault == "abort", "{text}");
        // Everybody is told, by what they try and when they ask.
        assert_eq!(idle.read(&kept).unwrap().wait(WAIT).unwrap_err(), error);
        assert_eq!(other.alloc(10, Usage::Any).unwrap_err(), error);
        assert_eq!(other.resume().unwrap_err(), error);
        assert_eq!(one.resume().unwrap_err(), error);
        assert!(one.queue().is_err());
        // Who comes next gets a new one.
        let (next, _) = client(&device, 1 << 20);
        next.resume().unwrap();
        execute(next.as_ref(), "fine").unwrap();
        assert!(execute(other.as_ref(), "fine").is_err());
        drop((idle, kept, one, other, next));
        until(|| pool.info().free == 1 << 20);
    }
}

#[test]
fn a_device_of_this_process_is_opened_again() {
    let pool = FixedPool::new(1 << 20);
    let device = open("faulty", Some(pool.clone()));
    execute(device.as_ref(), "fine").unwrap();
    assert!(device.reopened().is_none(), "nothing is lost");
    let (one, _) = client(&device, 1 << 20);
    execute(one.as_ref(), "abort").unwrap_err();
    assert!(one.reopened().is_none(), "a client is its server's");
    assert!(device.resume().is_err() && execute(device.as_ref(), "fine").is_err());
    let again = device.reopened().unwrap();
    assert!(again.uid() != device.uid() && again.info().id == device.info().id);
    execute(again.as_ref(), "fine").unwrap();
    drop((one, again, device));
    until(|| pool.info().free == 1 << 20);
}

#[test]
fn a_hang_ends_the_helper() {
    let device = open("faulty", None);
    let (one, _) = client(&device, 1 << 20);
    let start = Instant::now();
    let error = execute(one.as_ref(), "hang").unwrap_err().to_string();
    assert!(error.contains("its process was ended: it has said nothing for "), "{error}");
    assert!(start.elapsed() > Duration::from_secs(2) && start.elapsed() < Duration::from_secs(10));
    let (next, _) = client(&device, 1 << 20);
    execute(next.as_ref(), "fine").unwrap();
    // A queue that is dropped does not wait longer than that either.
    let hanging = compiled(next.as_ref(), "hang").unwrap();
    let queue = next.queue().unwrap();
    queue.execute(&hanging).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(queue);
    assert!(next.resume().is_err());
}

/// Of a long write the first piece hangs, so that there is no room for the last ones, and nothing else is waited for.
#[test]
fn a_hang_in_a_long_write_ends_the_helper() {
    let device = open("faulty", None);
    let whole = Slice::whole(device.alloc(20 << 20, Usage::Any).unwrap());
    let queue = device.queue().unwrap();
    let mut bytes = vec![0; 20 << 20];
    bytes[..faulty::HANGS.len()].copy_from_slice(faulty::HANGS);
    queue.write(&whole, bytes.into()).unwrap();
    let error = queue.finish(WAIT).unwrap_err().to_string();
    assert!(error.contains("its process was ended: it has said nothing for "), "{error}");
}

#[test]
fn a_helper_ends_with_who_has_started_it_whatever_its_driver_is_at() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["helper_process", "--exact", "--nocapture"]).env(KIND, "hangs");
    let mut child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it lives as long as we do");
    drop(ours);
    until(|| child.try_wait().unwrap().is_some());
}

#[test]
fn what_a_helper_leaves_behind_does_not_hide_its_end() {
    let start = Instant::now();
    let error = launch("leaves a process").offers("card").unwrap_err().to_string();
    assert!(error.contains("signal: 6"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(15), "the process that it has left lives for 20 s");
}

#[test]
fn whoever_has_hung_a_helper_is_told_not_to_try_again_and_others_are_not() {
    let device = open("faulty", None);
    let [(one, _), (waits, _), (idle, _)] = [(); 3].map(|()| client(&device, 1 << 20));
    [&one, &waits, &idle].into_iter().for_each(|client| execute(client.as_ref(), "fine").unwrap());
    let (hangs, behind) = (compiled(one.as_ref(), "hang").unwrap(), compiled(waits.as_ref(), "fine").unwrap());
    let queues = [one.queue().unwrap(), waits.queue().unwrap()];
    queues[0].execute(&hangs).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    queues[1].execute(&behind).unwrap();
    for queue in &queues {
        let error = queue.finish(WAIT).unwrap_err();
        assert!(matches!(&error, Error::Peer { endpoint, .. } if endpoint == "faulty"), "{error}");
    }
    drop(queues);
    let error = one.resume().unwrap_err();
    let Error::Timeout { what, after } = &error else { panic!("{error}") };
    assert!(what.starts_with("faulty ") && *after >= Duration::from_secs(2), "{error}");
    // One waited for its turn, and the other one for nothing: the helper had no answer to give to them.
    for other in [&waits, &idle] {
        assert!(matches!(other.resume(), Err(Error::Peer { .. })));
    }
    let (next, _) = client(&device, 1 << 20);
    execute(next.as_ref(), "fine").unwrap();
    // Of a crash, nobody is told so.
    execute(next.as_ref(), "abort").unwrap_err();
    assert!(matches!(next.resume(), Err(Error::Peer { .. })));
}

#[test]
fn a_helper_that_ends_again_and_again_is_left_alone_for_a_while() {
    let within = Duration::from_secs(10);
    let launch = Launch { limit: StartLimit { starts: 3, within }, ..launch("faulty") };
    let device = helper_device(&Host::new(), launch, faulty::info(), None);
    let start = Instant::now();
    for _ in 0..3 {
        let (one, _) = client(&device, 1 << 20);
        execute(one.as_ref(), "abort").unwrap_err();
    }
    let (idle, _) = client(&device, 1 << 20);
    let (refused, _) = client(&device, 1 << 20);
    let error = execute(refused.as_ref(), "fine").unwrap_err();
    assert!(start.elapsed() < within, "this host is too slow for this test: {:?}", start.elapsed());
    println!("{error}");
    let text = error.to_string();
    assert!(matches!(&error, Error::Peer { .. }) && text.contains("started 3 times in 10 s"), "{text}");
    assert!(text.contains("everything is well) failed"), "why it ended: {text}");
    // Whoever was refused is not to try again now; who has asked for nothing has lost nothing.
    assert!(matches!(refused.resume(), Err(Error::Timeout { .. })));
    idle.resume().unwrap();
    until(|| start.elapsed() > within + Duration::from_secs(1));
    refused.resume().unwrap();
    execute(refused.as_ref(), "fine").unwrap();
}

#[test]
fn what_is_not_wanted_any_more_stops() {
    let device = open("faulty", None);
    let long = compiled(device.as_ref(), "long").unwrap();
    let queue = device.queue().unwrap();
    queue.execute(&long).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    drop(queue);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let queue = device.queue().unwrap();
    queue.execute(&long).unwrap();
    let done = queue.marker().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    device.abort();
    assert_eq!(done.wait(WAIT), Err(Error::Cancelled));
    execute(device.as_ref(), "fine").unwrap();
}

#[test]
fn helpers_end_with_their_device() {
    if !cfg!(target_os = "linux") {
        return println!("skipped: there is no /proc to find them in");
    }
    // Variables of a process are what it was started with.
    let tag = format!("OUTBOARD_TEST_TAG={}", std::process::id());
    let env =
        [launch("faulty").env, vec![("OUTBOARD_TEST_TAG".into(), std::process::id().to_string().into())]].concat();
    let running = || {
        let environ =
            |entry: std::io::Result<std::fs::DirEntry>| std::fs::read(entry.ok()?.path().join("environ")).ok();
        let all = std::fs::read_dir("/proc").unwrap().filter_map(environ);
        all.filter(|env| env.split(|&b| b == 0).any(|variable| variable == tag.as_bytes())).count()
    };
    assert_eq!(running(), 0);
    let device = helper_device(&Host::new(), Launch { env, ..launch("faulty") }, faulty::info(), None);
    assert_eq!(running(), 0, "nobody has asked for anything");
    execute(device.as_ref(), "fine").unwrap();
    assert_eq!(running(), 1);
    drop(device);
    until(|| running() == 0);
}

#[test]
fn what_is_no_helper_is_said_in_a_line() {
    let of = |launch: &Launch| launch.offers("card").unwrap_err().to_string();
    let none = Launch { program: "/nowhere/helper".into(), ..launch("faulty") };
    assert!(of(&none).starts_with("card: its process cannot be started: No such file"), "{}", of(&none));
    let other = Launch { program: "/bin/true".into(), args: Vec::new(), ..launch("faulty") };
    assert!(of(&other).starts_with("card: its process has ended (exit status: 0)"), "{}", of(&other));
    let shell = |script: &str| Launch {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        start: Duration::from_secs(1),
        ..launch("faulty")
    };
    let babble = shell("printf '%s' nonsense-nonsense >&0; sleep 20");
    assert!(of(&babble).contains("it said what cannot be understood"), "{}", of(&babble));
    // One byte, in a slot that nobody has filled.
    let empty = shell(r"printf '\000\000\000\000\001\000\000\000\010\000\000\000' >&0; sleep 20");
    assert!(of(&empty).contains("a slot without bytes"), "{}", of(&empty));
    let silent = shell("exec sleep 20");
    assert!(of(&silent).contains("in 1 s it has not said what it has"), "{}", of(&silent));
    assert_eq!(of(&launch("refuses")), "there is no card here");
    let dies = of(&launch("dies"));
    assert!(dies.contains("exit status: 3") && dies.ends_with(": the driver is too old"), "{dies}");
}

#[test]
fn many_queues_at_once() {
    let device = open("faulty", None);
    std::thread::scope(|scope| {
        for n in 0..8u8 {
            let (device, _) = client(&device, 8 << 20);
            scope.spawn(move || {
                let executable = compiled(device.as_ref(), "fine").unwrap();
                let queue = device.queue().unwrap();
                let buffer = Slice::whole(device.alloc(3 << 20, Usage::Any).unwrap());
                for round in 0..20u8 {
                    queue.write(&buffer, Bytes::from(vec![n ^ round; 3 << 20])).unwrap();
                    queue.execute(&executable).unwrap();
                    let got = queue.read(&buffer).unwrap().wait(WAIT).unwrap();
                    assert!(got.iter().all(|&b| b == n ^ round));
                }
            });
        }
    });
}
