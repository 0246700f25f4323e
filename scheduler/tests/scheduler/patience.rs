//! Waits for a device of this process last for as long as it gets further, and no longer.

#[path = "../../../local-backends/reference/tests/common/fated.rs"]
mod fated;

use bytes::Bytes;
use fated::{Fate, fated_device};
use outboard_core::Host;
use outboard_core::op::{Binary, BinaryKind};
use outboard_core::{DType, Device, Error, GraphBuilder, TensorId};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_scheduler::{Hints, Program, Scheduler, SchedulerOptions};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_millis(500);

/// `y = x + x` on a device with a fate, `z = y + y` on another host's: its input goes through this process.
fn relay() -> (Scheduler, Program, [TensorId; 2], Arc<Fate>) {
    let budget = MemoryBudget::new(None);
    let fate = Arc::<Fate>::default();
    let first = fated_device(&Host::new(), "A", &budget, &fate);
    let devices: Vec<Arc<dyn Device>> = vec![first, reference_device(&Host::new(), "B", &budget)];
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let y = g.push(Binary { kind: BinaryKind::Add }, &[x, x]).unwrap();
    let z = g.push(Binary { kind: BinaryKind::Add }, &[y, y]).unwrap();
    g.output(z);
    let graph = Arc::new(g.finish().unwrap());
    let mut scheduler = Scheduler::new(devices, SchedulerOptions { deadline: DEADLINE }).unwrap();
    let hints = Hints { pins: HashMap::from([(y, 0), (z, 1)]), ..Hints::default() };
    let plan = scheduler.plan(graph, &hints).unwrap();
    let program = scheduler.prepare(plan, &HashMap::new()).unwrap();
    (scheduler, program, [x, z], fate)
}

#[test]
fn a_device_that_gets_further_is_waited_for() {
    let (scheduler, program, [x, z], fate) = relay();
    let ones: Bytes = [1f32; 8].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
    fate.takes.store(3 * DEADLINE.as_millis() as u64, Ordering::SeqCst);
    let start = Instant::now();
    scheduler.run(&program, &[(x, ones)]).unwrap();
    scheduler.finish().unwrap();
    assert!(start.elapsed() >= 3 * DEADLINE);
    let out = scheduler.read(&program, z).unwrap().wait(DEADLINE).unwrap();
    assert_eq!(f32::from_le_bytes(*out.first_chunk().unwrap()), 4.0);
    // Without a copy, too.
    let queue = scheduler.queue(0).unwrap();
    let step = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| scheduler.run(&program, &[(x, Bytes::from(vec![0; 32]))]));
        std::thread::sleep(DEADLINE / 2);
        scheduler.finish_queue(queue.as_ref()).unwrap();
    });
    assert!(step.elapsed() >= 3 * DEADLINE);
}

#[test]
fn a_device_that_does_not_is_given_up() {
    let (scheduler, program, [x, _], fate) = relay();
    fate.hangs.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let error = scheduler.run(&program, &[(x, Bytes::from(vec![0; 32]))]).unwrap_err();
    println!("{error}");
    assert!(matches!(&error, Error::Timeout { what, .. } if what == "A to get any further"), "{error}");
    assert!(start.elapsed() >= DEADLINE && start.elapsed() < 10 * DEADLINE, "{:?}", start.elapsed());
    let error = scheduler.finish().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    fate.hangs.store(false, Ordering::SeqCst);
}
