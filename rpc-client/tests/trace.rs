//! What a server tells of when commands ran.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::Queue;
use outboard_rpc_client::{RemoteDevice, RemoteSpan, Tracing};
use std::time::{Duration, Instant};

/// Fetches until `count` spans have come: they are recorded behind their commands, whose answers may come before.
fn fetch(device: &RemoteDevice, count: usize) -> Vec<RemoteSpan> {
    let mut spans = Vec::new();
    let start = Instant::now();
    while spans.len() < count {
        assert!(start.elapsed() < WAIT, "{spans:?}");
        spans.extend(device.trace(Tracing::GoOn).unwrap().spans);
    }
    spans
}

#[test]
fn a_session_sees_its_own_queues_while_it_wants_to() {
    let (server, _) = server();
    let (mine, others) = (devices(&server), devices(&server));
    let device = RemoteDevice::of(mine[1].as_ref()).unwrap();
    let p = program();
    let placed = Placed::new(&mine[1], &p);
    let (queue, other) = (mine[1].queue().unwrap(), others[0].queue().unwrap());
    let run = |queue: &dyn Queue| {
        queue.fill(&placed.slice(&p, p.x), 0).unwrap();
        queue.fill(&placed.slice(&p, p.ids), 0).unwrap();
        queue.execute(&placed.executable).unwrap();
        queue.finish(WAIT).unwrap();
    };
    run(queue.as_ref());
    let first = device.trace(Tracing::GoOn).unwrap();
    assert!(first.spans.is_empty() && first.dropped == 0, "recorded without being asked: {first:?}");
    let before = Instant::now();
    other.fill(&buffer(&others[0], 64), 1).unwrap();
    other.finish(WAIT).unwrap();
    run(queue.as_ref());
    let after = Instant::now();
    // Two fills, the graph, and the read by which the server answers `finish`.
    let spans = fetch(device, 4);
    assert_eq!(spans.iter().map(|s| s.what.as_str()).collect::<Vec<_>>(), ["fill", "fill", "execute", "read"]);
    let now = device.trace(Tracing::GoOn).unwrap();
    for span in &spans {
        assert_eq!((span.queue, &span.device), (queue.uid(), &mine[1].info().id));
        let slack = now.error + Duration::from_micros(2);
        let (start, end) = (now.local(span.start_us).unwrap(), now.local(span.end_us).unwrap());
        assert!(start + slack >= before && end <= after + slack && start <= end, "{span:?}: {:?}", now.error);
    }
    device.trace(Tracing::Stop).unwrap();
    run(queue.as_ref());
    assert!(device.trace(Tracing::Stop).unwrap().spans.is_empty(), "recorded although it was told to stop");
}
