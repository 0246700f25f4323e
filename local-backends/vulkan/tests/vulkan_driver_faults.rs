//! A device that is lost, that has no memory, or that hangs: errors on the timelines of whoever uses it, nothing freed that it may still use,
//! and the next client finds it open. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod driver;

use driver::*;
use outboard_core::{Error, Slice, Usage};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a fault has come to: an error of the device, at an op or not.
fn device_error(error: &Error) -> (Option<&str>, &str) {
    let Error::Device { device, op, detail } = error else { panic!("{error:?}") };
    assert_eq!(device, "Vulkan0");
    (op.as_deref(), detail)
}

#[test]
fn a_device_that_is_lost_is_an_error_and_is_opened_again() {
    let Some(broken) = Broken::new() else { return };
    for (fault, detail) in [(LOST_WHEN_GIVEN, "cannot be submitted"), (LOST_WHEN_WAITED_FOR, "is not done")] {
        let (first, second) = (broken.client(), broken.client());
        first.computes();
        second.computes();
        FAULT.store(fault, Ordering::Relaxed);
        let error = first.run().unwrap_err();
        let (op, said) = device_error(&error);
        assert!(said.contains(detail) && said.contains("lost"), "{error:?}");
        if fault == LOST_WHEN_WAITED_FOR {
            assert!(op.is_some_and(|op| op.contains("picked")), "{error:?}");
        }
        // Whatever is asked of the queue now is answered with it.
        assert_eq!(first.run().unwrap_err().to_string(), error.to_string());
        FAULT.store(NONE, Ordering::Relaxed);
        // Also of another client, which has not seen it happen.
        let start = Instant::now();
        assert!(device_error(&second.run().unwrap_err()).1.contains("its driver has lost it"));
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        for client in [&first, &second] {
            assert!(matches!(client.device.resume(), Err(Error::Peer { .. })));
            assert!(client.device.queue().and_then(|queue| queue.read(&client.picked)?.wait(LONG)).is_err());
        }
        // Who comes now finds it open, also while the others are still there.
        broken.client().computes();
        release();
    }
}

#[test]
fn a_program_gets_a_lost_device_of_its_own_again() {
    let Some(broken) = Broken::new() else { return };
    let work = Work::new(broken.device.clone());
    work.computes();
    assert!(broken.device.reopened().is_none());
    FAULT.store(LOST_WHEN_GIVEN, Ordering::Relaxed);
    work.run().unwrap_err();
    FAULT.store(NONE, Ordering::Relaxed);
    Work::new(broken.device.reopened().unwrap()).computes();
}

#[test]
fn a_lost_device_gives_its_memory_back() {
    let Some(broken) = Broken::new() else { return };
    drop(broken.client());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let work = broken.client();
    work.computes();
    FAULT.store(LOST_WHEN_GIVEN, Ordering::Relaxed);
    work.run().unwrap_err();
    FAULT.store(NONE, Ordering::Relaxed);
    drop(work);
    drop(broken.client());
    // Of staging memory, a block stays with each of the two devices.
    let left = || ALLOCATIONS.load(Ordering::Relaxed);
    wait_for(|| left() <= before + 1, || format!("{} allocations, {before} before", left()));
}

#[test]
fn no_memory_is_an_error_with_sizes_and_costs_nothing_else() {
    let Some(broken) = Broken::new() else { return };
    let (first, second) = (broken.client(), broken.client());
    first.computes();
    second.computes();
    FAULT.store(NO_MEMORY, Ordering::Relaxed);
    match first.device.alloc(4321, Usage::Any) {
        Err(Error::OutOfMemory { device, needed, .. }) => assert_eq!((device.as_str(), needed), ("Vulkan0", 4321)),
        other => panic!("{other:?}"),
    }
    // What needs none goes on, also in the same queue.
    first.computes();
    let big = vec![0; 40 << 20];
    let queue = first.device.queue().unwrap();
    FAULT.store(NONE, Ordering::Relaxed);
    let place = Slice::whole(first.device.alloc(big.len() as u64, Usage::Any).unwrap());
    FAULT.store(NO_MEMORY, Ordering::Relaxed);
    // The host's memory on the way there is memory, too.
    queue.write(&place, big.into()).unwrap();
    let error = queue.finish(LONG).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    second.computes();
    FAULT.store(NONE, Ordering::Relaxed);
    first.device.resume().unwrap();
    broken.client().computes();
}

#[test]
fn a_device_that_hangs_is_given_up_and_keeps_what_it_may_use() {
    let Some(broken) = Broken::new() else { return };
    let (first, second) = (broken.client(), broken.client());
    first.computes();
    second.computes();
    let held = ALLOCATIONS.load(Ordering::Relaxed);
    FAULT.store(HANGS, Ordering::Relaxed);
    let start = Instant::now();
    let error = first.run().unwrap_err();
    let (op, detail) = device_error(&error);
    assert!(op.is_some_and(|op| op.contains("picked")), "{error:?}");
    assert!(detail.contains("within 1s: it is given up"), "{error:?}");
    assert!(device_error(&second.run().unwrap_err()).1.contains("it hung, and was given up"));
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    // It would hang again: not to be tried.
    assert!(matches!(first.device.resume(), Err(Error::Timeout { .. })));
    drop(first);
    FAULT.store(NONE, Ordering::Relaxed);
    // Another one is opened and computes, while the first one still has what it was given: that was not freed.
    let third = broken.client();
    third.computes();
    std::thread::sleep(3 * PATIENCE);
    let now = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(now >= held, "{now} allocations of {held}: some were freed that a stuck command may use");
    release();
    drop(second);
    let left = || ALLOCATIONS.load(Ordering::Relaxed);
    wait_for(|| left() < now, || format!("{} allocations of {now}", left()));
    third.computes();
}

/// Waiting can be given up before the device is.
#[test]
fn a_client_that_leaves_does_not_wait_for_a_device_that_hangs() {
    // Long enough that it is not given up before the client has left, however busy the machine is.
    let Some(broken) = Broken::with_patience(10 * PATIENCE) else { return };
    let (first, second) = (broken.client(), broken.client());
    first.computes();
    second.computes();
    FAULT.store(HANGS, Ordering::Relaxed);
    first.queue.execute(&first.executable).unwrap();
    wait_for(hangs, || "the device to hang".into());
    let start = Instant::now();
    drop(first);
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    release();
    wait_for(|| second.run().is_ok(), || "the second client".into());
}
