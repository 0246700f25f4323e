//! What a CUDA device promises beside its results, on the emulator: memory that is cleared and given back, bytes at any place, wrong values that
//! are named.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use bytes::Bytes;
use common::*;
use outboard_core::op::{MulMat, Rope, RopeMode, SetRows, TopK, View};
use outboard_core::{DType, Device, Error, GraphBuilder, Host, TensorId};
use outboard_cuda::{Found, OpenOptions, VIRTUAL, cuda_device, find};
use std::time::{Duration, Instant};

fn open() -> std::sync::Arc<outboard_core::local::LocalDevice> {
    device(LONG)
}

#[test]
fn cards_say_what_they_are() {
    emulator();
    let ids: Vec<_> = find().iter().map(|card| card.device_id.as_str()).collect();
    assert_eq!(ids, ["0000:01:00.0", "0000:02:00.0"]);
    let card = &find()[1];
    assert!((card.number, card.capability, card.memory) == (1, 80, MEMORY), "{card:?}");
    assert!(card.description.contains("compute capability 8.0, CUDA 12.2"), "{card:?}");
    let device = open();
    let info = device.info();
    assert!(info.backend == "cuda" && info.id == "CUDA0" && info.capabilities == ["sm_80"], "{info:?}");
}

/// Names the number of devices for [`each_part_computes`].
const PARTS: &str = "OUTBOARD_TEST_PARTS";

/// Where the environment divides the cards; on its own it says nothing.
#[test]
fn each_part_computes() {
    let Ok(parts) = std::env::var(PARTS) else { return println!("skipped: {PARTS} says nothing") };
    emulator();
    assert_eq!(find().len().to_string(), parts);
    let open = |found: &Found| cuda_device(&Host::new(), found, "CUDA", &OpenOptions::default()).unwrap();
    let devices: Vec<_> = find().iter().map(open).collect();
    for device in &devices {
        assert!(device.info().memory_total < MEMORY / 3, "{:?}", device.info());
        Work::new(device.clone()).unwrap().computes();
    }
}

#[test]
fn a_card_is_several_devices() {
    let mut parts = std::process::Command::new(std::env::current_exe().unwrap());
    parts.args(["--exact", "each_part_computes", "--nocapture"]).env(VIRTUAL, "3").env(PARTS, "6");
    let out = parts.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && !said.contains("skipped"), "{said}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn memory_is_cleared_and_given_back() {
    let device = open();
    let free = device.memory().unwrap().free;
    let queue = device.queue().unwrap();
    for size in [1, 4096, 20 << 20] {
        let first = slice(device.as_ref(), size);
        queue.fill(&first, 0x5e).unwrap();
        assert!(read(queue.as_ref(), &first).iter().all(|&byte| byte == 0x5e), "{size}");
        drop(first);
        let now = || device.memory().unwrap().free;
        wait_for(
            || now() + (1 << 20) > free,
            || format!("{size}: {} of {free}, the queue holds what it has done", now()),
        );
        let second = slice(device.as_ref(), size);
        assert!(read(queue.as_ref(), &second).iter().all(|&byte| byte == 0), "{size}");
    }
}

#[test]
fn a_graph_holds_nothing_when_it_is_done() {
    let device = open();
    let free = device.memory().unwrap().free;
    let work = Work::new(device.clone()).unwrap();
    work.computes();
    drop(work);
    let now = || device.memory().unwrap().free;
    wait_for(|| now() + 4096 >= free, || format!("{} of {free}", now()));
}

#[test]
fn bytes_go_to_any_place() {
    let device = open();
    let queue = device.queue().unwrap();
    // More than fits the pinned memory that is under way.
    let len = (21 << 20) + 5;
    let whole = slice(device.as_ref(), len);
    let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    queue.write(&whole, bytes.clone().into()).unwrap();
    let mut want = bytes;
    for (at, n, value) in [(0, 1, 1), (3, 2, 2), (5, 9, 3), (1001, 4096, 4), (len - 3, 3, 5)] {
        queue.fill(&whole.part(at, n).unwrap(), value).unwrap();
        want[at as usize..(at + n) as usize].fill(value);
    }
    queue.copy(&whole.part(1, 1000).unwrap(), &whole.part(7003, 1000).unwrap()).unwrap();
    want.copy_within(1..1001, 7003);
    assert!(read(queue.as_ref(), &whole) == want);
    let part = whole.part(4097, 333).unwrap();
    assert!(read(queue.as_ref(), &part) == want[4097..4430]);
}

#[test]
fn a_wrong_value_is_named_and_the_next_run_is_right() {
    let device = open();
    let mut g = GraphBuilder::new();
    let [table, rows, picked] = lookup(&mut g).map(TensorId::index);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap()).unwrap();
    let at = |i: usize| places[i].as_ref().unwrap();
    for wrong in [4, -1, i32::MIN, i32::MAX] {
        let queue = device.queue().unwrap();
        queue.write(at(rows), Bytes::copy_from_slice(&wrong.to_le_bytes())).unwrap();
        queue.execute(&executable).unwrap();
        let error = queue.finish(LONG).unwrap_err();
        let Error::Device { device, op: Some(op), detail } = &error else { panic!("{error:?}") };
        assert!(device == "CUDA0" && op.contains("picked"), "{error:?}");
        assert_eq!(detail, &format!("row {wrong} is outside 0..4"));
    }
    let queue = device.queue().unwrap();
    queue.fill(at(table), 0x3f).unwrap();
    queue.write(at(rows), Bytes::copy_from_slice(&3i32.to_le_bytes())).unwrap();
    queue.execute(&executable).unwrap();
    assert!(read(queue.as_ref(), at(picked)).iter().all(|&byte| byte == 0x3f));
}

/// Blocks may begin at any byte; nothing beside them is written.
#[test]
fn blocks_at_odd_bytes() {
    let device = open();
    let mut g = GraphBuilder::new();
    let bytes = g.state("bytes", DType::Q8_0, &[32, 3]).unwrap();
    let view = View { ne: [32, 2, 1, 1], nb: [34, 35, 70, 70], offset: 3 };
    let dst = g.push(view, &[bytes]).unwrap();
    let (src, ids) = (g.input("src", DType::F32, &[32, 2]).unwrap(), g.input("ids", DType::I32, &[2]).unwrap());
    let set = g.push(SetRows, &[dst, src, ids]).unwrap();
    g.output(set);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap()).unwrap();
    let queue = device.queue().unwrap();
    let at = |id: TensorId| places[id.index()].as_ref().unwrap();
    queue.fill(at(bytes), 0xee).unwrap();
    let values: Vec<u8> = (0..64).flat_map(|i| ((i % 32 - 16) as f32 * 1.37).to_le_bytes()).collect();
    queue.write(at(src), values.into()).unwrap();
    queue.write(at(ids), [0i32, 1].map(i32::to_le_bytes).concat().into()).unwrap();
    queue.execute(&executable).unwrap();
    let got = read(queue.as_ref(), at(bytes));
    assert!(got[..3].iter().chain(&got[37..38]).chain(&got[72..]).all(|&byte| byte == 0xee), "{got:x?}");
    assert_eq!(got[3..37], got[38..72], "rows of the same numbers");
    // The scale, 16 * 1.37 / 127 as a half, and the first element, which is -127 of it.
    let scale = u16::from_le_bytes([got[3], got[4]]);
    assert!((0x3185..=0x3187).contains(&scale), "{scale:#x}");
    assert_eq!(got[5] as i8, -127);
}

/// What would keep the host or the device busy for long is not supported; asking costs next to nothing.
#[test]
fn work_is_bounded() {
    let device = open();
    let supported = |g: GraphBuilder, id: TensorId| device.supports(&g.finish().unwrap()).unwrap().contains(id);
    let start = Instant::now();
    let mut g = GraphBuilder::new();
    let n = (1 << 31) - 2;
    let (x, pos) = (g.input("x", DType::F32, &[n, 1, 1]).unwrap(), g.input("pos", DType::I32, &[1]).unwrap());
    let rotated = g.push(Rope::plain(RopeMode::Neox, n, 10000.0), &[x, pos]).unwrap();
    assert!(!supported(g, rotated));
    let mut g = GraphBuilder::new();
    let dst = g.state("dst", DType::F32, &[1, 1 << 24]).unwrap();
    let src = g.input("src", DType::F32, &[1, 1 << 24]).unwrap();
    let ids = g.input("ids", DType::I32, &[1 << 24]).unwrap();
    let set = g.push(SetRows, &[dst, src, ids]).unwrap();
    assert!(!supported(g, set));
    // Tiles of products that have next to no rows, columns or length.
    let mut g = GraphBuilder::new();
    let (a, b) = (g.weight("a", DType::F16, &[1, 1]).unwrap(), g.input("b", DType::F32, &[1, 9, 1 << 25]).unwrap());
    let product = g.push(MulMat, &[a, b]).unwrap();
    assert!(!supported(g, product));
    // Places of more than 24 bits.
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[(1 << 24) + 1, 1]).unwrap();
    let first = g.push(TopK { k: 3 }, &[x]).unwrap();
    assert!(!supported(g, first));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
