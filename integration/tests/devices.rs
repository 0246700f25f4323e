//! What a server's devices compute, and that they do it side by side.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::{Filter, run};
use outboard_core::Host;
use outboard_core::op::MulMat;
use outboard_core::{DType, Device, Executable, GraphBuilder, Placement, Queue, Slice, Usage};
use outboard_host::MemoryBudget;
use outboard_integration::Server;
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_rpc_server::{Limits, ServerConfig, Trust};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Products on each device.
const TIMES: usize = 50;
const WAIT: Duration = Duration::from_secs(120);

#[test]
fn a_remote_device_computes_what_the_reference_does() {
    let server = Server::start(&["-d", "cpu:2"]);
    let devices = connect(&[Endpoint::parse(&server.addr).unwrap()], &ClientOptions::default()).unwrap();
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let report = run(devices[0].as_ref(), reference.as_ref(), &Filter::default()).unwrap();
    println!("{report}");
    assert!(report.ok(), "{report}");
}

/// A product on a device, its queue and its memory.
fn work(device: &Arc<dyn Device>) -> (Arc<dyn Queue>, Arc<dyn Executable>, Slice) {
    const N: usize = 512;
    let mut g = GraphBuilder::new();
    let a = g.state("a", DType::F32, &[N, N]).unwrap();
    let b = g.state("b", DType::F32, &[N, N]).unwrap();
    let y = g.push(MulMat, &[a, b]).unwrap();
    g.output(y);
    let graph = Arc::new(g.finish().unwrap());
    let bytes = (4 * N * N) as u64;
    let memory = Slice::whole(device.alloc(3 * bytes, Usage::Any).unwrap());
    let places = graph.ids().map(|id| Some(memory.part(id.index() as u64 * bytes, bytes).unwrap())).collect();
    let placement = Placement::new(&graph, device.as_ref(), places).unwrap();
    let executable = device.compile(graph, placement).unwrap();
    let queue = device.queue().unwrap();
    queue.fill(&memory, 0).unwrap();
    (queue, executable, memory)
}

#[test]
fn two_devices_of_an_endpoint_compute_at_the_same_time() {
    let host = Host::new();
    type Span = (String, Instant, Instant);
    let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
    let to = spans.clone();
    host.set_trace(move |e| {
        if e.what == "execute" {
            to.lock().unwrap().push((e.device.to_owned(), e.start, e.end));
        }
    });
    let specs = DeviceSpec::parse_list("cpu:1,cpu:1").unwrap();
    let devices = local_devices(&host, &specs, None, None).unwrap();
    let addr = "127.0.0.1:0".parse().unwrap();
    let server = outboard_rpc_server::Server::start(ServerConfig {
        addr,
        devices,
        limits: Limits::default(),
        trust: Trust::default(),
    })
    .unwrap();
    let endpoint = Endpoint::parse(&server.local_addr().to_string()).unwrap();
    let devices = connect(&[endpoint], &ClientOptions::default()).unwrap();
    let work: Vec<_> = devices.iter().map(work).collect();
    for _ in 0..TIMES {
        for (queue, executable, _) in &work {
            queue.execute(executable).unwrap();
        }
    }
    for (queue, ..) in &work {
        queue.finish(WAIT).unwrap();
    }
    let spans = spans.lock().unwrap();
    let of = |name: &str| spans.iter().filter(|s| s.0.ends_with(name)).cloned().collect::<Vec<Span>>();
    let (first, second) = (of("CPU0"), of("CPU1"));
    assert!(first.len() == TIMES && second.len() == TIMES, "{spans:?}");
    let overlapping = first.iter().filter(|a| second.iter().any(|b| a.1 < b.2 && b.1 < a.2)).count();
    println!("{overlapping} of {} products of CPU0 ran while CPU1 computed", first.len());
    assert!(overlapping > 0, "no product of one device ran while the other computed: {spans:?}");
}
