//! Memory of the host that a device uses where it is, such as a mapped file: on integrated cards, and on drivers that run on processors, as here. Without a
//! device that does so, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::Scale;
use outboard_core::{DType, Device, GraphBuilder, Host, Placement, Slice, Usage};
use outboard_host::MemoryBudget;
use outboard_vulkan::{OpenOptions, find, vulkan_device};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const PAGE: usize = 4096;

/// Pages of zeros, in place.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

struct Pages(Vec<Page>);

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a page is its bytes, without any between them.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * PAGE) }
    }
}

/// The first `len` bytes of whole pages, in memory that begins with a page: element `i` of it is `i`.
fn pages(len: usize) -> Bytes {
    let mut pages = vec![Page([0; PAGE]); len.div_ceil(PAGE)];
    for (p, page) in pages.iter_mut().enumerate() {
        for (i, element) in page.0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *element = ((p * PAGE / 4 + i) as f32).to_le_bytes();
        }
    }
    Bytes::from_owner(Pages(pages)).slice(..len)
}

/// A device that uses memory of the host where it is.
fn device() -> Option<Arc<LocalDevice>> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    let device = vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &OpenOptions::default());
    let device = device.unwrap();
    if !device.info().unified {
        println!("skipped: {} has memory of its own, or cannot use the host's", found.description);
        return None;
    }
    Some(device)
}

#[test]
fn weights_are_read_where_they_are() {
    let Some(device) = device() else { return };
    let before = device.memory().unwrap().free;
    let bytes = pages(3 * PAGE - 100);
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
    let bytes = pages(3 * PAGE);
    for part in [0..3 * PAGE, 0..3 * PAGE - 8, 64..2 * PAGE, 0..0] {
        assert!(device.import(&bytes.slice(part.clone())).unwrap().is_none(), "{part:?}");
    }
    assert!(device.import(&bytes.slice(PAGE..2 * PAGE + 64)).unwrap().is_some());
}
