//! A context that fails, a kernel that hangs, calls of the driver that fail one by one: errors for whoever uses the device, nothing kept, and the
//! next client finds it open.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::op::{MulMat, Scale};
use outboard_core::{DType, Device, Error, GraphBuilder, Result, Slice, TensorId, Usage};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pieces of pinned memory that a queue has under way at most, each of a quarter of a mebibyte here, and one for what kernels say.
const MOST_PINNED: u64 = 33;
/// How long the device may hang here.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a fault has come to: an error of the device, at an op or not.
fn device_error(error: &Error) -> (Option<&str>, &str) {
    let Error::Device { device, op, detail } = error else { panic!("{error:?}") };
    assert_eq!(device, "CUDA0");
    (op.as_deref(), detail)
}

#[test]
fn a_context_that_fails_is_an_error_and_is_opened_again() {
    let _alone = alone();
    let device = device(LONG);
    let (first, second) = (Work::new(client(device.as_ref())).unwrap(), Work::new(client(device.as_ref())).unwrap());
    first.computes();
    second.computes();
    // An access outside of memory.
    emulator().fail_kernel("get_rows", 0, 700);
    let error = first.run().unwrap_err();
    let (op, said) = device_error(&error);
    assert!(op.is_some_and(|op| op.contains("picked")) && said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error:?}");
    // Whatever is asked of the queue now is answered with it.
    assert_eq!(first.run().unwrap_err().to_string(), error.to_string());
    // Also of another client, which has not seen it happen.
    assert!(device_error(&second.run().unwrap_err()).1.contains("its context has failed"));
    for work in [&first, &second] {
        assert!(matches!(work.device.resume(), Err(Error::Peer { .. })));
        assert!(work.device.queue().is_err());
    }
    // Who comes now finds it open, also while the others are still there.
    Work::new(client(device.as_ref())).unwrap().computes();
    assert_eq!(emulator().live().contexts, 2);
    drop((first, second));
    wait_for(|| emulator().live().contexts == 1, || "the context that has failed is kept".into());
    drop(device);
    nothing_is_left();
}

#[test]
fn a_program_gets_its_device_again() {
    let _alone = alone();
    let device = device(LONG);
    let work = Work::new(device.clone()).unwrap();
    work.computes();
    assert!(device.reopened().is_none());
    emulator().fail_kernel("", 0, 719);
    work.run().unwrap_err();
    Work::new(device.reopened().unwrap()).unwrap().computes();
    drop((work, device));
    nothing_is_left();
}

#[test]
fn no_memory_is_an_error_with_sizes() {
    let _alone = alone();
    let device = device(LONG);
    let work = Work::new(client(device.as_ref())).unwrap();
    let error = work.device.alloc(MEMORY - (65 << 20), Usage::Any).map(|_| ());
    assert!(error.is_ok(), "{error:?}");
    match work.device.alloc(MEMORY, Usage::Any) {
        Err(Error::Request(text)) => assert!(text.contains("CUDA0"), "{text}"),
        other => panic!("{other:?}"),
    }
    // The driver may have less than it says.
    for _ in 0..2 {
        emulator().fail_call("cuMemAlloc_v2", 0, 2);
    }
    match work.device.alloc(4321, Usage::Any) {
        Err(Error::OutOfMemory { device, needed, .. }) => assert_eq!((device.as_str(), needed), ("CUDA0", 4321)),
        other => panic!("{other:?}"),
    }
    work.computes();
    drop((work, device));
    nothing_is_left();
}

#[test]
fn a_device_that_hangs_is_given_up() {
    let _alone = alone();
    let device = device(PATIENCE);
    let (first, second) = (Work::new(client(device.as_ref())).unwrap(), Work::new(client(device.as_ref())).unwrap());
    first.computes();
    second.computes();
    emulator().hang_kernel("get_rows", 0);
    let start = Instant::now();
    let error = first.run().unwrap_err();
    let (op, detail) = device_error(&error);
    assert!(op.is_some_and(|op| op.contains("picked")), "{error:?}");
    assert!(detail.contains("within 1s: it is given up"), "{error:?}");
    assert!(device_error(&second.run().unwrap_err()).1.contains("it hung, and was given up"));
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    // Another one is opened and computes, while the first one still has what it was given.
    let third = Work::new(client(device.as_ref())).unwrap();
    third.computes();
    assert_eq!(emulator().live().contexts, 2);
    drop((first, second));
    // What hung ends with its context.
    wait_for(|| emulator().live().contexts == 1, || "the context that hung is kept".into());
    third.computes();
    drop((third, device));
    nothing_is_left();
}

/// A chain of ops that is given in several pieces.
const NODES: usize = 2500;

#[test]
fn a_run_stops_between_pieces() {
    let _alone = alone();
    let device = device(10 * PATIENCE);
    let mut g = GraphBuilder::new();
    let mut x = g.input("x", DType::F32, &[1]).unwrap();
    for _ in 0..NODES {
        x = g.push(Scale { scale: 1.0, bias: 1.0 }, &[x]).unwrap();
    }
    g.output(x);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap()).unwrap();
    let queue = device.queue().unwrap();
    queue.execute(&executable).unwrap();
    let result = places[x.index()].clone().unwrap();
    assert_eq!(read(queue.as_ref(), &result)[..], (NODES as f32).to_le_bytes());
    emulator().hang_kernel("unary", NODES as u64 / 2);
    queue.execute(&executable).unwrap();
    std::thread::sleep(PATIENCE / 3);
    let start = Instant::now();
    device.abort();
    assert_eq!(queue.finish(LONG), Err(Error::Cancelled));
    assert!(start.elapsed() < 5 * PATIENCE, "{:?}", start.elapsed());
    drop((queue, executable, places, result, device));
    // Whoever waits for what the queue had left gives the device up.
    nothing_is_left();
}

/// Calls of the driver that a client's work makes, and cannot do without.
const CALLS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuFuncSetAttribute",
    "cuGraphLaunch",
    "cuMemcpyDtoDAsync_v2",
    "cuStreamWaitEvent",
];
/// Those without which it is done another way, or that only give back what the context has at its end anyway.
const HARMLESS_CALLS: &[&str] = &[
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuStreamDestroy_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemGetInfo_v2",
];
/// Most calls of a kind that are let pass before one fails.
const MOST_CALLS: u64 = 24;
/// Times that a call is waited for which is not made each time.
const TRIES: usize = 20;

/// What uses everything that a client can: a product in tiles, so often that it is recorded, on two queues, and copies.
fn everything(device: &Arc<dyn Device>) -> Result<()> {
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", DType::F16, &[WIDTH, WIDTH]).unwrap();
    let columns = g.input("columns", DType::F32, &[WIDTH, COLUMNS]).unwrap();
    let product = g.push(MulMat, &[weights, columns]).unwrap();
    g.output(product);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap())?;
    let at = |id: TensorId| places[id.index()].as_ref().unwrap();
    let (queue, other) = (device.queue()?, device.queue()?);
    // 1.0 as a half; columns of the same number.
    queue.write(at(weights), [0x00, 0x3c].repeat(WIDTH * WIDTH).into())?;
    queue.write(at(columns), 0.5f32.to_le_bytes().repeat(WIDTH * COLUMNS).into())?;
    let copied = Slice::whole(device.alloc(at(product).len(), Usage::Any)?);
    for _ in 0..3 {
        queue.execute(&executable)?;
    }
    other.execute(&executable)?;
    other.finish(LONG)?;
    queue.copy(at(product), &copied)?;
    let got = queue.read(&copied)?.wait(LONG)?;
    queue.finish(LONG)?;
    assert!(got.as_chunks::<4>().0.iter().all(|bytes| f32::from_le_bytes(*bytes) == WIDTH as f32 / 2.0), "{got:x?}");
    device.memory().map(drop)
}

/// Extents of that product.
const WIDTH: usize = 64;
const COLUMNS: usize = 9;

/// What comes of it where a call fails for the time after so many, and that nothing is left then, and the next client is served.
fn failing(call: &str, after: u64, code: u32) -> Option<Error> {
    // Kernels and pinned memory are a new context's.
    let device = device(LONG);
    emulator().fail_call(call, after, code);
    let error = everything(&client(device.as_ref())).err();
    emulator().clear_faults();
    everything(&client(device.as_ref())).unwrap_or_else(|error| panic!("{call} {after}: the next one: {error}"));
    drop(device);
    nothing_is_left();
    error
}

#[test]
fn a_call_that_fails_is_an_error_with_its_name() {
    let _alone = alone();
    for call in CALLS {
        // A queue that would wait for another one's run may find it ended, on a machine that is busy.
        let first = (0..TRIES).find_map(|_| failing(call, 0, 1));
        // Until it is not made so often any more.
        let more = (1..MOST_CALLS).map_while(|after| failing(call, after, 1));
        let errors: Vec<_> = first.into_iter().chain(more).map(|error| error.to_string()).collect();
        assert!(!errors.is_empty(), "{call} is not made");
        let is_named = |error: &String| error.contains("CUDA0") && error.contains("CUDA_ERROR_INVALID_VALUE");
        assert!(errors.iter().all(is_named), "{call}: {errors:?}");
    }
}

#[test]
fn calls_that_can_be_done_without() {
    let _alone = alone();
    for call in HARMLESS_CALLS {
        for after in 0..2 {
            assert_eq!(failing(call, after, 1), None, "{call} {after}");
        }
    }
}

/// An error that the context keeps is one whatever call says so.
#[test]
fn a_context_that_fails_while_it_records() {
    let _alone = alone();
    for call in ["cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"] {
        let error = failing(call, 0, 700).unwrap_or_else(|| panic!("{call}")).to_string();
        assert!(error.contains("CUDA0") && error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{call}: {error}");
    }
}

/// Reads that wait behind a graph do not take as much pinned memory as there are.
#[test]
fn what_waits_for_a_kernel_pins_little() {
    const READS: usize = 200;
    let _alone = alone();
    let device = device(PATIENCE);
    let work = Work::new(client(device.as_ref())).unwrap();
    work.computes();
    let bytes = slice(work.device.as_ref(), (64 << 10) + 1);
    let before = emulator().live().host_allocations;
    emulator().hang_kernel("get_rows", 0);
    let running = std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let _ = work.queue.execute(&work.executable);
            let reads: Vec<_> = (0..READS).filter_map(|_| work.queue.read(&bytes).ok()).collect();
            reads.into_iter().filter_map(|read| read.wait(LONG).ok()).count()
        });
        let mut most = 0;
        while !reads.is_finished() {
            most = most.max(emulator().live().host_allocations.saturating_sub(before));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(reads.join().unwrap(), 0);
        most
    });
    assert!((1..=MOST_PINNED).contains(&running), "{running} pieces of pinned memory");
    drop((work, bytes, device));
    nothing_is_left();
}
