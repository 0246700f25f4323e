//! Copies straight into another device's memory: bytes, order, cards that may not, faults, and queues that are dropped meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::device::Ticket;
use outboard_core::{Device, Doing, Error, Queue, Result, Slice};
use outboard_cuda::{PEERS, VIRTUAL, find};
use outboard_cuda_emulator::Config;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

const STRAIGHT: &str = "cuMemcpyPeerAsync";
const TO_HOST: &str = "cuMemcpyDtoHAsync_v2";
const FROM_HOST: &str = "cuMemcpyHtoDAsync_v2";
const ENABLE: &str = "cuCtxEnablePeerAccess";
/// How long a device may hang here.
const PATIENCE: Duration = Duration::from_secs(1);
/// Times that a transfer is tried until it goes straight: on a machine that is busy an offer may come before its acceptance waits.
const TRIES: usize = 20;
/// Until an acceptance that has begun waits for its offer.
const SOON: Duration = Duration::from_millis(20);
/// Bytes that take the emulator, filled so often, so long that other things happen meanwhile.
const MANY: u64 = 96 << 20;
const FILLS: usize = 4;

fn ticket() -> Ticket {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    Ticket([NEXT.fetch_add(1, Ordering::Relaxed); 32])
}

/// A client of a device.
struct Side {
    device: Arc<dyn Device>,
    queue: Arc<dyn Queue>,
}

impl Side {
    fn new(device: &dyn Device) -> Result<Side> {
        let device = client(device);
        Ok(Side { queue: device.queue()?, device })
    }

    fn holding(&self, bytes: &[u8]) -> Result<Slice> {
        let slice = Slice::whole(self.device.alloc(bytes.len() as u64, outboard_core::Usage::Any)?);
        self.queue.write(&slice, bytes.to_vec().into())?;
        self.queue.finish(LONG)?;
        Ok(slice)
    }

    /// Begins to wait for an offer, and does so when this returns, or has failed.
    fn accept(&self, ticket: Ticket, dst: &Slice) -> Result<()> {
        self.device.peer().unwrap().accept(self.queue.as_ref(), ticket, dst)?;
        let progress = self.queue.progress().unwrap();
        wait_for(|| progress.doing() == Doing::Queue || self.queue.failure().is_some(), || "no acceptance".into());
        std::thread::sleep(SOON);
        Ok(())
    }

    fn offer(&self, ticket: Ticket, src: &Slice, to: &Side) -> Result<()> {
        self.device.peer().unwrap().offer(self.queue.as_ref(), ticket, src, to.device.as_ref())
    }
}

/// What both queues say of a transfer.
fn hand_over(from: &Side, src: &Slice, to: &Side, dst: &Slice) -> [Result<()>; 2] {
    let ticket = ticket();
    let done = to.accept(ticket, dst).and_then(|()| from.offer(ticket, src, to));
    let [offers, accepts] = [&from.queue, &to.queue].map(|queue| queue.finish(LONG));
    [done.and(offers), accepts]
}

/// A transfer that went straight: none of it by way of the host.
fn straight(from: &Side, src: &Slice, to: &Side, dst: &Slice) {
    let calls = || [STRAIGHT, TO_HOST, FROM_HOST].map(|call| emulator().calls(call));
    let tried = (0..TRIES).find(|_| {
        let [copies, read, written] = calls();
        assert_eq!(hand_over(from, src, to, dst), [Ok(()), Ok(())]);
        calls() == [copies + 1, read, written]
    });
    assert!(tried.is_some(), "none of {TRIES} went straight");
}

/// Numbers that are not the same anywhere near.
fn bytes(len: u64, seed: u64) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn whole(side: &Side, slice: &Slice) -> Vec<u8> {
    read(side.queue.as_ref(), slice).to_vec()
}

#[test]
fn bytes_go_straight() {
    let _alone = alone();
    let [first, second] = pair(LONG);
    let (a, b) = (Side::new(first.as_ref()).unwrap(), Side::new(second.as_ref()).unwrap());
    let same_card = find()[0].device_id[..12] == find()[1].device_id[..12];
    let enabled = emulator().calls(ENABLE);
    let len = (3 << 20) + 77;
    let (src, dst) = (a.holding(&bytes(len, 1)).unwrap(), b.holding(&bytes(len, 2)).unwrap());
    let mut want = bytes(len, 2);
    for (from, to, n) in [(0, 0, len), (1, 3, 1), (5, 1002, 4097), (len - 3, len - 3, 3), (4096, 77, 2 << 20)] {
        straight(&a, &src.part(from, n).unwrap(), &b, &dst.part(to, n).unwrap());
        want[to as usize..(to + n) as usize].copy_from_slice(&bytes(len, 1)[from as usize..(from + n) as usize]);
    }
    assert!(whole(&b, &dst) == want);
    // And back, to another client's memory.
    let other = Side::new(first.as_ref()).unwrap();
    let back = other.holding(&bytes(len, 3)).unwrap();
    straight(&b, &dst, &other, &back);
    assert!(whole(&other, &back) == want);
    assert_eq!(emulator().calls(ENABLE) - enabled, if same_card { 0 } else { 2 }, "once for each way");
    // None at all.
    let nothing = |side: &Side| slice(side.device.as_ref(), 0);
    assert_eq!(hand_over(&a, &nothing(&a), &b, &nothing(&b)), [Ok(()), Ok(())]);
    drop((a, b, other, src, dst, back, first, second));
    nothing_is_left();
}

/// In a pipeline offers come before their acceptances, but behind a graph: as long as that runs they wait.
#[test]
fn an_offer_behind_a_graph_waits_for_its_acceptance() {
    let _alone = alone();
    let [first, second] = pair(LONG);
    let (a, b) = (Side::new(first.as_ref()).unwrap(), Side::new(second.as_ref()).unwrap());
    let many = slice(a.device.as_ref(), MANY);
    let (src, dst) = (a.holding(&bytes(4096, 1)).unwrap(), b.holding(&bytes(4096, 2)).unwrap());
    let calls = || [STRAIGHT, TO_HOST, FROM_HOST].map(|call| emulator().calls(call));
    let tried = (0..TRIES).find(|_| {
        let [copies, read, written] = calls();
        (0..FILLS).for_each(|_| a.queue.fill(&many, 7).unwrap());
        let (ticket, mut fills) = (ticket(), a.queue.marker().unwrap());
        a.offer(ticket, &src, &b).unwrap();
        std::thread::sleep(SOON / 4);
        b.device.peer().unwrap().accept(b.queue.as_ref(), ticket, &dst).unwrap();
        let in_time = fills.wait_more(Duration::ZERO).is_none();
        [&a, &b].iter().for_each(|side| side.queue.finish(LONG).unwrap());
        in_time && calls() == [copies + 1, read, written]
    });
    assert!(tried.is_some(), "none of {TRIES} went straight");
    assert!(whole(&b, &dst) == bytes(4096, 1));
    // Who is never accepted goes on when the device is done with what was before.
    (0..FILLS).for_each(|_| a.queue.fill(&many, 7).unwrap());
    a.offer(ticket(), &src, &b).unwrap();
    a.queue.finish(LONG).unwrap();
    drop((a, b, many, src, dst, first, second));
    nothing_is_left();
}

/// An acceptance is behind what its queue was given before, whatever another card could do meanwhile.
#[test]
fn what_was_given_before_comes_before() {
    let _alone = alone();
    let [first, second] = pair(LONG);
    let (a, b) = (Side::new(first.as_ref()).unwrap(), Side::new(second.as_ref()).unwrap());
    let (src, dst) = (a.holding(&[9; 5000]).unwrap(), b.holding(&[3; 5000]).unwrap());
    let many = slice(b.device.as_ref(), MANY);
    let (first_ticket, second_ticket) = (ticket(), ticket());
    (0..FILLS).for_each(|_| b.queue.fill(&many, 7).unwrap());
    let reads = b.queue.read(&dst).unwrap();
    b.queue.fill(&dst, 1).unwrap();
    let mut before = b.queue.marker().unwrap();
    b.accept(first_ticket, &dst).unwrap();
    a.offer(first_ticket, &src, &b).unwrap();
    a.queue.finish(LONG).unwrap();
    assert!(before.wait_more(Duration::ZERO).is_none(), "the card was done too soon to see anything");
    assert!(whole(&b, &dst) == [9; 5000]);
    assert!(reads.wait(LONG).unwrap()[..] == [3; 5000]);
    // Where the card comes to an end while the acceptance waits, the copy is straight.
    b.queue.fill(&many, 7).unwrap();
    b.queue.fill(&dst, 1).unwrap();
    let before = b.queue.marker().unwrap();
    b.accept(second_ticket, &dst).unwrap();
    before.wait(LONG).unwrap();
    std::thread::sleep(SOON);
    let calls = emulator().calls(STRAIGHT);
    a.offer(second_ticket, &src, &b).unwrap();
    assert!(whole(&b, &dst) == [9; 5000]);
    assert_eq!(emulator().calls(STRAIGHT), calls + 1);
    drop((a, b, src, dst, many, first, second));
    nothing_is_left();
}

/// In processes of their own, because how cards are divided is asked once.
#[test]
fn parts_of_a_card_copy_to_each_other() {
    if find_is_divided() {
        return;
    }
    for test in ["bytes_go_straight", "what_was_given_before_comes_before", "a_call_that_fails_is_an_error_with_a_name"]
    {
        run_with(test, VIRTUAL, "2");
    }
}

/// Runs a test in a process of its own, with this variable.
fn run_with(test: &str, variable: &str, value: &str) {
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let out = program.args(["--exact", test, "--nocapture"]).env(variable, value).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let ran = out.status.success() && said.contains("1 passed");
    assert!(ran, "{said}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn whoever_runs_a_server_may_have_all_go_by_way_of_the_host() {
    if std::env::var_os(PEERS).is_none() {
        return run_with("whoever_runs_a_server_may_have_all_go_by_way_of_the_host", PEERS, "0");
    }
    let _alone = alone();
    let devices = pair(LONG);
    let [a, b] = [0, 1].map(|i| Side::new(devices[i].as_ref()).unwrap());
    let (src, dst) = (a.holding(&bytes(3 << 20, 1)).unwrap(), b.holding(&bytes(3 << 20, 2)).unwrap());
    assert_eq!(hand_over(&a, &src, &b, &dst), [Ok(()), Ok(())]);
    assert!(whole(&b, &dst) == bytes(3 << 20, 1));
    assert_eq!([STRAIGHT, ENABLE].map(|call| emulator().calls(call)), [0, 0]);
}

fn find_is_divided() -> bool {
    std::env::var_os(VIRTUAL).is_some()
}

/// Restores what cards may do.
struct Apart(Config);

impl Drop for Apart {
    fn drop(&mut self) {
        emulator().configure(&self.0);
    }
}

fn apart() -> Apart {
    let config = emulator().config();
    emulator().configure(&Config { apart: 1, ..config });
    Apart(config)
}

#[test]
fn cards_that_may_not_go_by_way_of_the_host() {
    let _alone = alone();
    let refused = |devices: [Arc<outboard_core::local::LocalDevice>; 2]| {
        let [a, b] = [0, 1].map(|i| Side::new(devices[i].as_ref()).unwrap());
        let (src, dst) = (a.holding(&bytes(3 << 20, 1)).unwrap(), b.holding(&bytes(3 << 20, 2)).unwrap());
        let calls = emulator().calls(STRAIGHT);
        assert_eq!(hand_over(&a, &src, &b, &dst), [Ok(()), Ok(())]);
        assert!(whole(&b, &dst) == bytes(3 << 20, 1));
        emulator().calls(STRAIGHT) - calls
    };
    let config = apart();
    assert_eq!(refused(pair(LONG)), 0);
    drop(config);
    // A driver that does not say.
    (0..4).for_each(|_| emulator().fail_call("cuDeviceCanAccessPeer", 0, 1));
    assert_eq!(refused(pair(LONG)), 0);
    nothing_is_left();
}

/// Access that another stream has had already, and access that is not had in the end: the driver copies by way of the host, once.
#[test]
fn access_that_is_refused_late() {
    let _alone = alone();
    for (code, goes_on) in [(704, true), (217, false)] {
        let devices = pair(LONG);
        let [a, b] = [0, 1].map(|i| Side::new(devices[i].as_ref()).unwrap());
        let (src, dst) = (a.holding(&[4; 999]).unwrap(), b.holding(&[5; 999]).unwrap());
        emulator().fail_call(ENABLE, 0, code);
        straight(&a, &src, &b, &dst);
        assert!(whole(&b, &dst) == [4; 999]);
        if goes_on {
            straight(&a, &src, &b, &dst);
        }
        let calls = emulator().calls(STRAIGHT);
        a.queue.fill(&src, 6).unwrap();
        assert_eq!(hand_over(&a, &src, &b, &dst), [Ok(()), Ok(())]);
        assert!(goes_on || emulator().calls(STRAIGHT) == calls);
        assert!(whole(&b, &dst) == [6; 999]);
    }
    nothing_is_left();
}

/// Calls of the driver that a transfer makes, and cannot do without.
const CALLS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemsetD8Async",
    "cuMemHostAlloc",
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    STRAIGHT,
];
/// Those without which it is done another way, or that only give back.
const HARMLESS_CALLS: &[&str] =
    &[ENABLE, "cuDeviceCanAccessPeer", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuMemFree_v2"];
/// Most calls of a kind that are let pass before one fails.
const MOST_CALLS: u64 = 30;

/// A transfer between two new clients.
fn transfer(devices: &[Arc<outboard_core::local::LocalDevice>; 2]) -> Vec<Error> {
    let go = || -> Result<[Result<()>; 2]> {
        let (a, b) = (Side::new(devices[0].as_ref())?, Side::new(devices[1].as_ref())?);
        let (src, dst) = (a.holding(&[8; 1234])?, b.holding(&[0; 1234])?);
        let done = hand_over(&a, &src, &b, &dst);
        if done[1].is_ok() {
            let got = b.queue.read(&dst)?.wait(LONG)?;
            assert!(got[..] == [8; 1234], "{got:x?}");
        }
        Ok(done)
    };
    match go() {
        Ok(done) => done.into_iter().filter_map(Result::err).collect(),
        Err(error) => vec![error],
    }
}

/// What comes of it where a call fails after so many; that the next clients are served, and that nothing is left.
fn failing(call: &str, after: u64) -> Vec<Error> {
    let devices = pair(LONG);
    emulator().fail_call(call, after, 1);
    let errors = transfer(&devices);
    emulator().clear_faults();
    assert_eq!(transfer(&devices), [], "{call} {after}: the next one");
    drop(devices);
    nothing_is_left();
    errors
}

#[test]
fn a_call_that_fails_is_an_error_with_a_name() {
    let _alone = alone();
    for call in CALLS {
        let first = (0..TRIES).map(|_| failing(call, 0)).find(|errors| !errors.is_empty());
        let more = (1..MOST_CALLS).map(|after| failing(call, after)).take_while(|errors| !errors.is_empty());
        let errors: Vec<_> = first.into_iter().chain(more).flatten().map(|error| error.to_string()).collect();
        assert!(!errors.is_empty(), "{call} is not made");
        // An error of the first device is told to the second one; what is left of its own is that the queue has ended.
        let is_named = |error: &String| error.contains("CUDA") && error.contains("CUDA_ERROR_INVALID_VALUE");
        assert!(errors.iter().all(is_named), "{call}: {errors:?}");
    }
    for call in HARMLESS_CALLS {
        assert_eq!(failing(call, 0), [], "{call}");
    }
}

/// The name of the device that an error is of, and what it says.
fn named(error: &Error) -> (&str, &str) {
    let Error::Device { device, detail, .. } = error else { panic!("{error:?}") };
    (device, detail)
}

#[test]
fn a_copy_that_fails_is_an_error_of_the_device_that_has_failed() {
    let _alone = alone();
    // The context of the first device, and that of the second, has failed when the copy is given.
    for failed in [0, 1] {
        let devices = pair(LONG);
        let (a, b) = (Side::new(devices[0].as_ref()).unwrap(), Side::new(devices[1].as_ref()).unwrap());
        let (src, dst) = (a.holding(&[1; 100]).unwrap(), b.holding(&[2; 100]).unwrap());
        straight(&a, &src, &b, &dst);
        emulator().fail_call(STRAIGHT, 0, 700);
        if failed == 1 {
            emulator().fail_call("cuMemGetInfo_v2", 0, 700);
        }
        let told = (0..TRIES).map(|_| hand_over(&a, &src, &b, &dst)).find(|done| done[1].is_err()).unwrap();
        let (device, detail) = named(told[1].as_ref().unwrap_err());
        assert!(device == format!("CUDA{failed}") && detail.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{told:?}");
        assert_eq!(told[0].is_err(), failed == 0, "{told:?}");
        for (i, side) in [&a, &b].into_iter().enumerate() {
            assert_eq!(side.device.resume().is_err(), i == failed, "{i} of {failed}");
        }
        // The one that is sound serves on; a context that is new is copied to as the one before it was.
        if failed == 1 {
            assert!(whole(&a, &src) == [1; 100]);
        }
        assert_eq!(transfer(&devices), []);
        drop((a, b, src, dst, devices));
        nothing_is_left();
    }
}

/// One that has failed is told by its own queue, and whoever offers to it goes on.
#[test]
fn a_device_that_has_failed_is_not_copied_to() {
    let _alone = alone();
    let devices = pair(LONG);
    let (a, b) = (Side::new(devices[0].as_ref()).unwrap(), Side::new(devices[1].as_ref()).unwrap());
    let (src, dst) = (a.holding(&[1; 100]).unwrap(), b.holding(&[2; 100]).unwrap());
    let work = Work::new(b.device.clone()).unwrap();
    let ticket = ticket();
    b.accept(ticket, &dst).unwrap();
    emulator().fail_kernel("", 0, 700);
    work.run().unwrap_err();
    let calls = emulator().calls(STRAIGHT);
    a.offer(ticket, &src, &b).unwrap();
    assert_eq!(named(&b.queue.finish(LONG).unwrap_err()).0, "CUDA1");
    assert_eq!((a.queue.finish(LONG), emulator().calls(STRAIGHT)), (Ok(()), calls));
    drop((a, b, src, dst, work, devices));
    nothing_is_left();
}

/// What a device that hangs may still write to is nobody else's before its context has ended.
#[test]
fn memory_that_a_hanging_device_writes_to_is_kept() {
    let _alone = alone();
    let devices = pair(PATIENCE);
    let (a, b) = (Side::new(devices[0].as_ref()).unwrap(), Side::new(devices[1].as_ref()).unwrap());
    let mut work = Work::new(a.device.clone()).unwrap();
    work.computes();
    let dst = b.holding(&vec![2; 8 << 20]).unwrap();
    let src = slice(a.device.as_ref(), 8 << 20);
    let ticket = ticket();
    b.accept(ticket, &dst).unwrap();
    emulator().hang_kernel("", 0);
    work.queue.execute(&work.executable).unwrap();
    work.device.peer().unwrap().offer(work.queue.as_ref(), ticket, &src, b.device.as_ref()).unwrap();
    let error = b.queue.finish(LONG).unwrap_err();
    let (device, detail) = named(&error);
    assert!(device == "CUDA0" && detail.contains("it is given up"), "{error:?}");
    assert!(b.device.resume().is_ok());
    let kept = emulator().live().device_bytes;
    let next = Side { queue: b.device.queue().unwrap(), device: b.device };
    // The queues are gone; what is left of the first device's client keeps its context.
    work.queue = next.queue.clone();
    drop((dst, b.queue));
    assert!(whole(&next, &next.holding(&[5; 10]).unwrap()) == [5; 10]);
    std::thread::sleep(10 * SOON);
    assert!(emulator().live().device_bytes + (1 << 20) > kept, "{:?} of {kept}", emulator().live());
    drop((work, a, src));
    // Another one of the first device is opened for whoever comes, and the one that hung is gone.
    Work::new(client(devices[0].as_ref())).unwrap().computes();
    wait_for(|| emulator().live().device_bytes < 8 << 20, || format!("{:?}", emulator().live()));
    drop((next, devices));
    nothing_is_left();
}

/// Whoever drops a queue, or is told that it has failed, finds that nothing is written for it any more.
#[test]
fn queues_that_are_dropped_meanwhile() {
    let _alone = alone();
    let devices = pair(LONG);
    for drops_accepting in [true, false] {
        let (a, b) = (Side::new(devices[0].as_ref()).unwrap(), Side::new(devices[1].as_ref()).unwrap());
        let (src, dst) = (a.holding(&[1; 100]).unwrap(), b.holding(&[2; 100]).unwrap());
        let many = slice(a.device.as_ref(), MANY);
        let (ticket, calls) = (ticket(), emulator().calls(STRAIGHT));
        b.accept(ticket, &dst).unwrap();
        (0..FILLS).for_each(|_| a.queue.fill(&many, 7).unwrap());
        let mut filled = a.queue.marker().unwrap();
        a.offer(ticket, &src, &b).unwrap();
        wait_for(|| emulator().calls(STRAIGHT) > calls, || "it does not go straight".into());
        assert!(filled.wait_more(Duration::ZERO).is_none(), "the card was done too soon to see anything");
        let next = Side { queue: b.device.queue().unwrap(), device: b.device };
        let ends = if drops_accepting {
            drop(b.queue);
            std::thread::spawn(move || a.queue.finish(LONG).unwrap())
        } else {
            let ends = std::thread::spawn(move || drop(a));
            assert_eq!(b.queue.finish(LONG), Err(Error::Cancelled));
            ends
        };
        next.queue.fill(&dst, 6).unwrap();
        next.queue.finish(LONG).unwrap();
        ends.join().unwrap();
        assert!(whole(&next, &dst) == [6; 100], "{drops_accepting}");
    }
    drop(devices);
    nothing_is_left();
}
