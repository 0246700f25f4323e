//! Memory of the host that a device uses where it is, such as a mapped file: on integrated cards, and on drivers that run on processors, as here. Without a
//! device that does so, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod driver;

use bytes::Bytes;
use driver::{Broken, FAULT, LONG, LOST_WHEN_GIVEN, NONE};
use outboard_core::local::LocalDevice;
use outboard_core::op::Scale;
use outboard_core::{DType, Device, GraphBuilder, Host, Placement, Slice, Usage};
use outboard_host::MemoryBudget;
use outboard_vulkan::{OpenOptions, find, vulkan_device};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PAGE: usize = 4096;

/// A mapped file of so many bytes, as models are mapped: number `i` of it is `i`.
fn mapped(len: usize) -> Bytes {
    let mut file = tempfile::tempfile().unwrap();
    let numbers: Vec<u8> = (0..len.div_ceil(4)).flat_map(|i| (i as f32).to_le_bytes()).collect();
    file.write_all(&numbers[..len]).unwrap();
    // SAFETY: a file of this process alone, which nobody changes.
    Bytes::from_owner(unsafe { memmap2::Mmap::map(&file) }.unwrap())
}

/// Whether a device uses memory of the host where it is; without that, a line.
fn uses_it(device: &dyn Device) -> bool {
    let info = device.info();
    if !info.unified {
        println!("skipped: {} has memory of its own, or cannot use the host's", info.description);
    }
    info.unified
}

fn device() -> Option<Arc<LocalDevice>> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    let budget = MemoryBudget::new(Some(64 << 20));
    let device = vulkan_device(&Host::new(), found, "Vulkan0", &budget, &OpenOptions::default()).unwrap();
    uses_it(device.as_ref()).then_some(device)
}

#[test]
fn weights_are_read_where_they_are() {
    let Some(device) = device() else { return };
    let before = device.memory().unwrap().free;
    let bytes = mapped(3 * PAGE - 100);
    let file = device.import(&bytes).unwrap().expect("page by page");
    assert!(file.is_read_only() && file.size() == bytes.len() as u64);
    assert_eq!(device.memory().unwrap().free, before, "it is no memory of the device's");
    let mut g = GraphBuilder::new();
    let x = g.weight("x", DType::F32, &[256]).unwrap();
    let y = g.push(Scale { scale: 2.0, bias: 1.0 }, &[x]).unwrap();
    g.output(y);
    let graph = Arc::new(g.finish().unwrap());
    // As tensors lie in a file, at a multiple of 32 bytes that begins no page.
    let weight = Slice::new(file.clone(), (PAGE + 32) as u64, 1024).unwrap();
    let result = Slice::whole(device.alloc(1024, Usage::Any).unwrap());
    let placement = Placement::new(&graph, device.as_ref(), vec![Some(weight), Some(result.clone())]).unwrap();
    let executable = device.compile(graph, placement).unwrap();
    let queue = device.queue().unwrap();
    queue.execute(&executable).unwrap();
    let first = (PAGE + 32) / 4;
    let want: Vec<u8> = (first..first + 256).flat_map(|i| (2.0 * i as f32 + 1.0).to_le_bytes()).collect();
    assert_eq!(queue.read(&result).unwrap().wait(LONG).unwrap(), want);
    assert_eq!(queue.read(&Slice::whole(file.clone())).unwrap().wait(LONG).unwrap(), bytes);
    // What is a file's is not written.
    let to = Slice::new(file, 0, 4).unwrap();
    assert!(queue.write(&to, Bytes::from_static(&[1; 4])).is_err());
    assert_eq!(bytes[..4], [0; 4]);
}

/// A copy is made of what begins inside a page, and of what ends where kernels may not read behind it.
#[test]
fn what_is_no_whole_pages_is_not_used_in_place() {
    let Some(device) = device() else { return };
    let bytes = mapped(3 * PAGE);
    for part in [0..3 * PAGE, 0..3 * PAGE - 8, 64..2 * PAGE, 0..0] {
        assert!(device.import(&bytes.slice(part.clone())).unwrap().is_none(), "{part:?}");
    }
    assert!(device.import(&bytes.slice(PAGE..2 * PAGE + 64)).unwrap().is_some());
}

/// Some drivers lose a device that reads a file's memory. The one that is in use is not.
#[test]
fn a_driver_that_loses_the_device_gets_copies() {
    let Some(broken) = Broken::new() else { return };
    let device = &broken.device;
    if !uses_it(device.as_ref()) {
        return;
    }
    let bytes = mapped(2 * PAGE - 64);
    FAULT.store(LOST_WHEN_GIVEN, Ordering::Relaxed);
    let imported = device.import(&bytes);
    FAULT.store(NONE, Ordering::Relaxed);
    assert!(imported.unwrap().is_none());
    let whole = Slice::whole(device.alloc(64, Usage::Any).unwrap());
    assert_eq!(device.queue().unwrap().read(&whole).unwrap().wait(LONG).unwrap(), vec![0; 64]);
    assert!(device.import(&bytes).unwrap().is_none(), "it is not tried again");
}
