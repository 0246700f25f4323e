//! The driver: streams, events, graphs, devices, memory, injected errors, and that nothing is left.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]
mod common;

use common::{Card, MEMORY, code, emulator, ptx};
use cudarc::driver::result::{self, event, graph, stream};
use cudarc::driver::sys;
use outboard_cuda_emulator::Config;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Injected errors and what is left are the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    emulator();
    guard
}

const STREAM: stream::StreamKind = stream::StreamKind::NonBlocking;

#[test]
fn devices_say_what_they_are() {
    let _alone = alone();
    assert_eq!(result::device::get_count().unwrap(), 2);
    let devices = [0, 1].map(|i| result::device::get(i).unwrap());
    assert_ne!(
        result::device::get_uuid(devices[0]).unwrap().bytes,
        result::device::get_uuid(devices[1]).unwrap().bytes
    );
    assert!(result::device::get_name(devices[0]).unwrap().contains("sm_90"));
    // SAFETY: a device that is there.
    let attribute = |a| unsafe { result::device::get_attribute(devices[1], a).unwrap() };
    use sys::CUdevice_attribute as A;
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 227 << 10);
    // SAFETY: as above.
    assert_eq!(unsafe { result::device::total_mem(devices[0]).unwrap() }, MEMORY as usize);
    let mut id = [0i8; 16];
    // SAFETY: as above, and a text of sixteen bytes.
    unsafe { sys::cuDeviceGetPCIBusId(id.as_mut_ptr().cast(), 16, devices[1]).result().unwrap() };
    assert_eq!(id[..12].iter().map(|c| *c as u8 as char).collect::<String>(), "0000:02:00.0");
    assert_eq!(result::device::get(2).map_err(code), Err(101));
    assert_eq!(emulator().live().contexts, 0);
}

/// Memory of the context of this thread, or the code of the error.
fn take(bytes: usize) -> Result<u64, u32> {
    // SAFETY: a card's context is that of the thread.
    unsafe { result::malloc_sync(bytes) }.map_err(code)
}

fn free(at: u64) -> Result<(), u32> {
    // SAFETY: the emulator looks whether there is memory, and nothing reads it afterwards.
    unsafe { result::free_sync(at) }.map_err(code)
}

#[test]
fn memory_has_a_limit_and_is_counted() {
    let _alone = alone();
    let card = Card::new(1);
    let all = take(MEMORY as usize - 4096).unwrap();
    assert_eq!(result::mem_get_info().unwrap(), (4096, MEMORY as usize));
    assert_eq!(take(4097), Err(2));
    assert_eq!(free(all + 1), Err(1));
    free(all).unwrap();
    assert_eq!(free(all), Err(1));
    // In the order of a stream: memory whose end has been asked for counts as free.
    // SAFETY: the stream is the card's.
    let in_order = || unsafe { result::malloc_async(card.stream, MEMORY as usize).unwrap() };
    let first = in_order();
    // SAFETY: it was just taken on that stream.
    unsafe { result::free_async(first, card.stream).unwrap() };
    let second = in_order();
    assert_ne!(first, second);
    // SAFETY: the emulator finds that the memory is gone.
    assert_eq!(unsafe { result::memset_d8_async(first, 0, 16, card.stream) }.map_err(code), Err(1));
    drop(card);
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

#[test]
fn fills_and_copies() {
    let _alone = alone();
    let card = Card::new(0);
    let a = card.put(&[7u32; 100]);
    // SAFETY: five of the hundred words.
    unsafe { sys::cuMemsetD32Async(a + 40, 0x01020304, 5, card.stream).result().unwrap() };
    let b = card.empty::<u32>(100);
    // SAFETY: all words of both.
    unsafe { result::memcpy_dtod_async(b, a, 400, card.stream).unwrap() };
    let got: Vec<u32> = card.get(b, 100).unwrap();
    assert!((0..100).all(|i| got[i] == if (10..15).contains(&i) { 0x01020304 } else { 7 }));
    // SAFETY: the emulator finds that it is a byte too many.
    assert_eq!(unsafe { result::memcpy_dtod_async(b, a, 401, card.stream) }.map_err(code), Err(1));
}

static GATE: AtomicU32 = AtomicU32::new(0);

/// Holds a stream until the test lets it go on.
extern "C" fn gate(_: *mut c_void) {
    let start = Instant::now();
    while GATE.load(Ordering::Acquire) == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn streams_go_on_by_themselves_and_wait_for_events() {
    let _alone = alone();
    GATE.store(0, Ordering::Release);
    let card = Card::with(0, "basic.sm_80");
    let other = stream::create(STREAM).unwrap();
    let x: Vec<i32> = (0..32).collect();
    let (dx, dy) = (card.put(&x), card.empty::<i32>(32));
    let (before, after) = (event::create(flags()).unwrap(), event::create(flags()).unwrap());
    // SAFETY: memory, streams and events of the card's, which live until the streams are waited for; the host function has no argument.
    unsafe {
        event::record(before, card.stream).unwrap();
        stream::launch_host_function(card.stream, gate, std::ptr::null_mut()).unwrap();
        card.launch("reverse", 1, (32, 1), 128, &[&dx, &dy]).unwrap();
        event::record(after, card.stream).unwrap();
        stream::wait_event(other, after, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        // Pinned memory is written when the copy comes to it, not before.
        let pinned: *mut i32 = result::malloc_host(128, 0).unwrap().cast();
        pinned.write(-1);
        result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(pinned, 32), dy, other).unwrap();
        event::synchronize(before).unwrap();
        assert_eq!(event::query(after).map_err(code), Err(600));
        assert_eq!(sys::cuStreamQuery(other).result().map_err(code), Err(600));
        assert_eq!(event::elapsed(before, after).map_err(code), Err(600));
        assert_eq!(pinned.read_volatile(), -1);
        std::thread::sleep(Duration::from_millis(10));
        GATE.store(1, Ordering::Release);
        stream::synchronize(other).unwrap();
        assert_eq!(pinned.read_volatile(), 31);
        assert!(event::elapsed(before, after).unwrap() >= 10.0);
        result::free_host(pinned.cast()).unwrap();
        event::destroy(before).unwrap();
        event::destroy(after).unwrap();
        stream::destroy(other).unwrap();
    }
    drop(card);
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

fn flags() -> sys::CUevent_flags {
    sys::CUevent_flags::CU_EVENT_DEFAULT
}

#[test]
fn graphs_are_captured_over_two_streams_and_run_again() {
    let _alone = alone();
    let card = Card::with(0, "basic.sm_80");
    let other = stream::create(STREAM).unwrap();
    let (x, y) = (card.put(&[1f32; 128]), card.put(&[0f32; 128]));
    let (fork, join) = (event::create(flags()).unwrap(), event::create(flags()).unwrap());
    let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: streams, events and memory of the card's, which live until the graph is destroyed.
    unsafe {
        stream::begin_capture(card.stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        card.launch("axpy", 1, (32, 1), 0, &[&2f32, &x, &y]).unwrap();
        event::record(fork, card.stream).unwrap();
        stream::wait_event(other, fork, wait).unwrap();
        result::memcpy_dtod_async(x, y, 4, other).unwrap();
        event::record(join, other).unwrap();
        stream::wait_event(card.stream, join, wait).unwrap();
        assert_eq!(stream::is_capturing(other).unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        let captured = stream::end_capture(card.stream).unwrap();
        assert_eq!(stream::is_capturing(other).unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(card.get::<f32>(y, 1).unwrap(), [0.0]);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let executable = graph::instantiate(captured, flags).unwrap();
        graph::destroy(captured).unwrap();
        graph::upload(executable, card.stream).unwrap();
        for wanted in [(2.0, 2.0), (6.0, 4.0), (18.0, 6.0)] {
            graph::launch(executable, card.stream).unwrap();
            let y: Vec<f32> = card.get(y, 128).unwrap();
            assert_eq!((y[0], y[127]), wanted);
        }
        graph::exec_destroy(executable).unwrap();
        assert_eq!(graph::launch(executable, card.stream).map_err(code), Err(400));
        // Waiting for a stream that captures spoils what was captured.
        stream::begin_capture(card.stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        assert_eq!(card.finish().map_err(code), Err(900));
        assert_eq!(stream::end_capture(card.stream).map_err(code), Err(901));
    }
    drop(card);
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

#[test]
fn two_devices_copy_to_each_other_and_address_each_other_if_they_may() {
    let _alone = alone();
    let (first, second) = (Card::with(0, "basic.sm_80"), Card::with(1, "basic.sm_80"));
    first.current();
    let x = first.put(&(0..32).collect::<Vec<i32>>());
    second.current();
    let (y, z) = (second.empty::<i32>(32), second.empty::<i32>(32));
    let calls = emulator().calls("cuMemcpyPeerAsync");
    // SAFETY: so many bytes of both, which live to the end of the test.
    unsafe { result::memcpy_peer_async(second.context, y, first.context, x, 128, second.stream).unwrap() };
    // SAFETY: the emulator finds that the memory is of another context.
    let wrong = unsafe { result::memcpy_peer_async(first.context, y, first.context, x, 128, second.stream) };
    assert_eq!((wrong.map_err(code), emulator().calls("cuMemcpyPeerAsync")), (Err(1), calls + 2));
    second.run("reverse", 1, (32, 1), 128, &[&y, &z]);
    assert_eq!(second.get::<i32>(z, 2).unwrap(), [31, 30]);
    // SAFETY: a context that lives.
    let enable = |of: &Card| unsafe { sys::cuCtxEnablePeerAccess(of.context, 0).result().map_err(code) };
    let config = emulator().config();
    emulator().configure(&Config { apart: 1, ..config });
    assert_eq!(enable(&first), Err(217));
    emulator().configure(&config);
    assert_eq!(enable(&first), Ok(()));
    assert_eq!(enable(&first), Err(704));
    second.run("reverse", 1, (32, 1), 128, &[&x, &z]);
    // The other way it was not allowed.
    first.current();
    first.launch("reverse", 1, (32, 1), 128, &[&z, &x]).unwrap();
    assert_eq!(first.finish().map_err(code), Err(700));
    drop((first, second));
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

#[test]
fn a_fault_stays_with_its_context_alone() {
    let _alone = alone();
    let broken = Card::with(0, "faults.sm_80");
    let (x, y) = (broken.put(&[1i32; 64]), broken.put(&[1i32; 64]));
    broken.launch("bounds_broken", 1, (64, 1), 0, &[&x, &y]).unwrap();
    assert_eq!(broken.finish().map_err(code), Err(700));
    // SAFETY: the emulator refuses, or nothing reads it afterwards.
    assert_eq!(unsafe { result::malloc_sync(16) }.map_err(code), Err(700));
    assert_eq!(broken.launch("bounds_mended", 1, (64, 1), 0, &[&x, &y]).map_err(code), Err(700));
    let whole = Card::with(0, "faults.sm_80");
    let (x, y) = (whole.put(&[1i32; 64]), whole.put(&[1i32; 64]));
    whole.run("bounds_mended", 1, (64, 1), 0, &[&x, &y]);
    drop((broken, whole));
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

#[test]
fn a_kernel_that_hangs_ends_with_its_context() {
    let _alone = alone();
    let card = Card::with(0, "basic.sm_80");
    let (x, y) = (card.put(&[1f32; 64]), card.empty::<f32>(64));
    emulator().hang_kernel("strided", 1);
    card.run("strided", 1, (64, 1), 0, &[&x, &y, &1i32]);
    card.launch("strided", 1, (64, 1), 0, &[&x, &y, &1i32]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: the stream is the card's.
    assert_eq!(unsafe { sys::cuStreamQuery(card.stream).result() }.map_err(code), Err(600));
    // Somebody waits for it when the context is destroyed.
    let (context, stream) = (card.context as usize, card.stream as usize);
    let (ready, is_ready) = std::sync::mpsc::channel();
    // SAFETY: the context and its stream are there until the wait ends, which the emulator sees to.
    let waiter = std::thread::spawn(move || unsafe {
        result::ctx::set_current(context as sys::CUcontext).unwrap();
        ready.send(()).unwrap();
        stream::synchronize(stream as sys::CUstream).map_err(code)
    });
    is_ready.recv().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(card);
    assert_eq!(waiter.join().unwrap(), Err(709));
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

/// What a device does in its life; every call of it fails in turn.
fn life() -> Result<(), u32> {
    struct Destroyed(sys::CUcontext);
    impl Drop for Destroyed {
        fn drop(&mut self) {
            // This call may be the one that fails.
            // SAFETY: it was created, and is destroyed once.
            let failed = unsafe { sys::cuCtxDestroy_v2(self.0) }.result().is_err();
            if failed {
                // SAFETY: the call before was refused.
                let _ = unsafe { sys::cuCtxDestroy_v2(self.0) };
            }
        }
    }
    // SAFETY: what is used was made in this block, and what an error leaves of it ends with the context; arguments live until the launch returns.
    unsafe {
        let context = Destroyed(result::ctx::create_v3(0, result::device::get(0).map_err(code)?).map_err(code)?);
        let _ = &context;
        let on = stream::create(STREAM).map_err(code)?;
        let image = CString::new(ptx("basic.sm_80")).unwrap();
        let module = result::module::load_data(image.as_ptr().cast()).map_err(code)?;
        let function = result::module::get_function(module, c"strided".into()).map_err(code)?;
        let (x, y) = (result::malloc_sync(256).map_err(code)?, result::malloc_async(on, 256).map_err(code)?);
        let pinned = result::malloc_host(256, 0).map_err(code)?;
        result::memset_d8_async(x, 1, 256, on).map_err(code)?;
        let stride = 1i32;
        let mut args =
            [(&raw const x).cast_mut().cast(), (&raw const y).cast_mut().cast(), (&raw const stride).cast_mut().cast()];
        result::launch_kernel(function, (1, 1, 1), (64, 1, 1), 0, on, &mut args).map_err(code)?;
        let done = event::create(flags()).map_err(code)?;
        event::record(done, on).map_err(code)?;
        result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 256), y, on).map_err(code)?;
        event::synchronize(done).map_err(code)?;
        result::free_async(y, on).map_err(code)?;
        stream::synchronize(on).map_err(code)?;
        result::free_sync(x).map_err(code)?;
        result::free_host(pinned).map_err(code)?;
        event::destroy(done).map_err(code)?;
        stream::destroy(on).map_err(code)?;
        result::module::unload(module).map_err(code)
    }
}

#[test]
fn every_call_can_fail_and_nothing_is_left() {
    let _alone = alone();
    assert_eq!(life(), Ok(()));
    let mut failed = 0;
    for after in 0..100 {
        emulator().fail_call("", after, 999);
        let answer = life();
        emulator().clear_faults();
        assert!(answer == Ok(()) || answer == Err(999), "{answer:?}");
        assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default(), "after {after} calls");
        if answer == Ok(()) {
            break;
        }
        failed += 1;
    }
    assert_eq!(failed, 21);
}

#[test]
fn named_errors_come_where_they_are_wanted() {
    let _alone = alone();
    let card = Card::with(0, "basic.sm_80");
    emulator().fail_call("cuMemAlloc_v2", 1, 2);
    let x = card.put(&[1f32; 64]);
    // SAFETY: the emulator refuses, or nothing reads it afterwards.
    assert_eq!(unsafe { result::malloc_sync(16) }.map_err(code), Err(2));
    let y = card.empty::<f32>(64);
    // A sticky fault comes where the kernel is waited for, and stays.
    emulator().fail_kernel("strided", 0, 719);
    card.launch("strided", 1, (64, 1), 0, &[&x, &y, &1i32]).unwrap();
    assert_eq!(card.finish().map_err(code), Err(719));
    assert_eq!(card.finish().map_err(code), Err(719));
    drop(card);
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

#[test]
fn the_primary_context_is_counted() {
    let _alone = alone();
    let device = result::device::get(1).unwrap();
    // SAFETY: the emulator counts who has the context, and refuses what comes when nobody has it.
    unsafe {
        let first = result::primary_ctx::retain(device).unwrap();
        assert_eq!(result::primary_ctx::retain(device).unwrap(), first);
        result::ctx::set_current(first).unwrap();
        let _left = result::malloc_sync(100).unwrap();
        result::primary_ctx::release(device).unwrap();
        assert_eq!(emulator().live().device_bytes, 100);
        result::primary_ctx::release(device).unwrap();
        assert_eq!(result::primary_ctx::release(device).map_err(code), Err(201));
        assert_eq!(result::malloc_sync(16).map_err(code), Err(709));
        result::ctx::set_current(std::ptr::null_mut()).unwrap();
    }
    assert_eq!(emulator().live(), outboard_cuda_emulator::Live::default());
}

/// A process of its own gets the emulator by its name, and is set up by its environment.
#[test]
fn another_process_gets_it_by_preloading() {
    let _alone = alone();
    let program = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(program);
    child.args(["--exact", "a_child_that_counts_devices", "--nocapture"]);
    child.env("LD_PRELOAD", outboard_cuda_emulator::Emulator::file().unwrap());
    child.env(outboard_cuda_emulator::VARIABLE, "devices=3,cc=75").env("OUTBOARD_CUDA_EMULATOR_CHILD", "1");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("3 devices: Emulated CUDA device (sm_75)"),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_child_that_counts_devices() {
    if std::env::var_os("OUTBOARD_CUDA_EMULATOR_CHILD").is_none() {
        return println!("this is the other half of another_process_gets_it_by_preloading");
    }
    result::init().unwrap();
    let name = result::device::get_name(result::device::get(0).unwrap()).unwrap();
    println!("{} devices: {name}", result::device::get_count().unwrap());
}
