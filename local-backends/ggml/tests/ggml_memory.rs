//! Memory of this process with ggml's CPU device in it: a program of its own, because other tests would take some meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::op::MulMat;
use outboard_core::{DType, Device, GraphBuilder, Host, Placement, Slice, Usage};
use outboard_ggml::{VARIABLE, find, open};
use outboard_host::MemoryBudget;
use std::sync::Arc;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(30);

/// ggml keeps what its largest graph has needed: 32 MiB here, once, and not for each queue.
#[test]
fn queues_share_what_ggml_needs_beside_tensors() {
    let Some(found) = find().iter().find(|device| device.name == "CPU") else {
        assert!(std::env::var_os(VARIABLE).is_none(), "no CPU device in {VARIABLE}");
        return println!("skipped: {VARIABLE} does not name ggml's libraries");
    };
    let device = open(&Host::new(), found, "ggml:CPU", 2, &MemoryBudget::new(Some(1 << 30)));
    let mut g = GraphBuilder::new();
    let a = g.weight("a", DType::F16, &[4096, 1]).unwrap();
    let b = g.input("b", DType::F32, &[4096, 4096]).unwrap();
    let product = g.push(MulMat, &[a, b]).unwrap();
    g.output(product);
    let graph = Arc::new(g.finish().unwrap());
    let sizes = [(a, 2 * 4096), (b, 4 * 4096 * 4096), (product, 4 * 4096)];
    let mut places = vec![None; graph.ids().count()];
    for (id, size) in sizes {
        places[id.index()] = Some(Slice::whole(device.alloc(size, Usage::Any).unwrap()));
    }
    let placement = Placement::new(&graph, device.as_ref(), places).unwrap();
    let executable = device.compile(graph, placement).unwrap();
    let run = || {
        let queue = device.queue().unwrap();
        queue.execute(&executable).unwrap();
        queue.finish(WAIT).unwrap();
        queue
    };
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().to_owned();
        line.trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let first = run();
    let before = resident();
    let others: Vec<_> = (0..10).map(|_| run()).collect();
    let more = resident().saturating_sub(before);
    assert!(more < 160 << 20, "{} MiB more with ten queues more", more >> 20);
    drop((first, others));
}
