//! The bytes of every message, kept in `golden/`: a change of the wire shows here first. `OUTBOARD_UPDATE_GOLDEN=1` rewrites
//! the files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_proto::v1::*;
use prost::Message;
use std::fmt::Write as _;
use std::path::Path;

fn check<M: Message + Default + PartialEq + std::fmt::Debug>(name: &str, message: &M) {
    let bytes = message.encode_to_vec();
    let mut hex = String::new();
    for line in bytes.chunks(32) {
        line.iter().for_each(|b| write!(hex, "{b:02x}").unwrap());
        hex.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.hex"));
    if std::env::var_os("OUTBOARD_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &hex).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, hex, "{name}: the wire has changed");
    assert_eq!(M::decode(bytes.as_slice()).unwrap(), *message, "{name}");
}

fn session() -> Option<Session> {
    Some(Session { id: 0x0123_4567_89ab_cdef, secret: Bytes::from_static(&[7; 32]) })
}

fn slice(buffer: u64) -> Option<Slice> {
    Some(Slice { buffer, offset: 4096, len: 1 << 33 })
}

fn device() -> Device {
    Device {
        name: "CPU0".into(),
        kind: "CPU".into(),
        description: "a processor".into(),
        device_id: "0000:01:00.0".into(),
        backend: "cpu".into(),
        memory_total: 1 << 34,
        memory_free: 1 << 33,
        capabilities: vec!["avx2".into(), "f16".into()],
        alignment: 64,
        reaches: vec!["CPU1".into()],
        memory_pool: "host".into(),
        max_alloc: 1 << 32,
        unified: true,
        batch_rows: 128,
        run_rows: 7.0,
        uniform_rows: 3,
        attention: 3.5,
        bandwidth: 2e10,
        flops: 1e11,
        weight_tail: 510,
    }
}

#[test]
fn unary() {
    check("hello_request", &HelloRequest { min_version: 1, max_version: 2, client: "a client".into() });
    let hello = HelloResponse {
        version: 1,
        session: session(),
        incarnation: u64::MAX,
        devices: vec![device()],
        lease_ms: 10_000,
        features: vec!["bulk".into()],
        server: "a server".into(),
    };
    check("hello_response", &hello);
    check("devices_request", &DevicesRequest {});
    check("devices_response", &DevicesResponse { devices: vec![device()] });
    check("memory_request", &MemoryRequest { device: "CPU0".into() });
    check("memory_response", &MemoryResponse { total: 5, free: 3 });
    let graph = Bytes::from_static(b"graph");
    check("supports_request", &SupportsRequest { session: session(), device: "CPU0".into(), graph });
    check("supports_response", &SupportsResponse { supported: Bytes::from_static(&[0xff, 1]) });
}

fn digest() -> Bytes {
    Bytes::from_static(&[5; 32])
}

#[test]
fn blobs() {
    let question = Blobs { digests: Bytes::from(vec![5; 64]), lens: vec![4096, 1 << 33], ..Default::default() };
    check("blobs_question", &question);
    let places = Blobs { buffers: vec![2, 300], offsets: vec![0, 64], ..question };
    check("blobs_places", &places);
    let blobs = Bytes::from_static(b"blobs");
    check("have_blobs_request", &HaveBlobsRequest { session: session(), blobs: blobs.clone() });
    check("have_blobs_response", &HaveBlobsResponse { have: Bytes::from_static(&[1]) });
    check("place_blobs_request", &PlaceBlobsRequest { session: session(), blobs: blobs.clone() });
    check("check_blobs_request", &CheckBlobsRequest { session: session(), blobs });
    check("check_blobs_response", &CheckBlobsResponse { good: Bytes::from_static(&[1]) });
    check("place_blobs_response", &PlaceBlobsResponse { placed: Bytes::from_static(&[3]) });
}

#[test]
fn trace() {
    check("trace_request", &TraceRequest { session: session(), record: true });
    let span = |what: &str, start_us| TraceSpan { what: what.into(), start_us, end_us: start_us + 300 };
    let spans = vec![span("accept", 1_000_000), span("execute", 1_000_300)];
    let queues = vec![QueueTrace { queue: 9, device: "CPU0".into(), spans }];
    check("trace_response", &TraceResponse { now_us: 2_000_000, queues, dropped: 5 });
}

#[test]
fn progress() {
    check("progress_request", &ProgressRequest { session: session() });
    let graph = QueueProgress {
        queue: 9,
        device: "CPU0".into(),
        steps: 1 << 40,
        activity: Activity::Graph.into(),
        blind: true,
    };
    let waits = QueueProgress { queue: 300, activity: Activity::Server.into(), blind: false, ..graph.clone() };
    check("progress_response", &ProgressResponse { queues: vec![graph, waits] });
}

#[test]
fn errors() {
    use error::Kind;
    let device = DeviceError { device: "CPU0".into(), op: "MUL_MAT y".into(), detail: "lost".into() };
    for (name, kind) in [
        ("error_request", Kind::Request("no".into())),
        ("error_device", Kind::Device(device)),
        ("error_out_of_memory", Kind::OutOfMemory(OutOfMemory { device: "CPU0".into(), needed: 9, free: 1 })),
        ("error_timeout", Kind::Timeout(TimeoutError { what: "an event".into(), after_ms: 1500 })),
        ("error_cancelled", Kind::Cancelled(Cancelled {})),
        ("error_misuse", Kind::Misuse("bug".into())),
        ("error_peer", Kind::Peer(PeerError { endpoint: "a:1".into(), detail: "gone".into() })),
    ] {
        check(name, &Error { kind: Some(kind) });
    }
}

#[test]
fn graph() {
    use attr::Value;
    let attr = |name: &str, value| Attr { name: name.into(), value: Some(value) };
    let leaf =
        Tensor { name: "w".into(), dtype: "Q4_0".into(), ne: vec![64, 8], leaf: "WEIGHT".into(), ..Default::default() };
    let node = Tensor {
        name: "y".into(),
        dtype: "F32".into(),
        ne: vec![8, 3],
        nb: vec![4, 32, 96, 96],
        op: "SOME_OP".into(),
        srcs: vec![1, 0, 2],
        attrs: vec![
            attr("int", Value::Int(-3)),
            attr("float", Value::Float(0.5)),
            attr("ints", Value::Ints(Ints { values: vec![1, -1] })),
            attr("text", Value::Text("F16".into())),
        ],
        output: true,
        ..Default::default()
    };
    check("graph", &Graph { tensors: vec![leaf, node] });
    check(
        "places",
        &Places { tensors: vec![0, 2], buffers: vec![5, 300], offsets: vec![0, 64], lens: vec![1, 1 << 40] },
    );
}

#[test]
fn control() {
    use control_reply::Reply;
    use control_request::Request;
    let alloc = Alloc { request: 1, buffer: 2, device: "CPU0".into(), size: 1 << 40, usage: "WEIGHTS".into() };
    let compile = Compile {
        request: 3,
        executable: 4,
        device: "CPU0".into(),
        graph: Bytes::from_static(b"graph"),
        places: Bytes::from_static(b"places"),
    };
    let free = Free { buffers: vec![2, 300], executables: vec![4], fences: vec![Fence { queue: 9, commands: 1000 }] };
    for (name, request) in [
        ("control_attach", Request::Attach(session().unwrap())),
        ("control_alloc", Request::Alloc(alloc)),
        ("control_compile", Request::Compile(compile)),
        ("control_free", Request::Free(free)),
        ("control_goodbye", Request::Goodbye(Goodbye {})),
        ("control_resume", Request::Resume(Resume { session: session(), buffers: vec![2, 300], executables: vec![4] })),
    ] {
        check(name, &ControlRequest { request: Some(request) });
    }
    let error = Some(Error { kind: Some(error::Kind::Request("no".into())) });
    for (name, reply) in [
        ("control_attached", Reply::Attached(Attached {})),
        ("control_done", Reply::Done(Done { request: 3, error })),
        ("control_bye", Reply::Bye(Bye {})),
        ("control_resumed", Reply::Resumed(Resumed { session: session() })),
    ] {
        check(name, &ControlReply { reply: Some(reply) });
    }
}

#[test]
fn queue() {
    use command::Command as C;
    use reply::Reply as R;
    let ticket = Bytes::from_static(&[9; 32]);
    for (name, command) in [
        ("queue_open", C::Open(OpenQueue { session: session(), queue: 9, device: "CPU0".into() })),
        ("queue_write", C::Write(Write { dst: slice(2), data: Bytes::from_static(b"data") })),
        ("queue_write_bulk", C::WriteBulk(WriteBulk { transfer: 1, dst: slice(2), digest: Bytes::new() })),
        ("queue_write_bulk_digest", C::WriteBulk(WriteBulk { transfer: 1, dst: slice(2), digest: digest() })),
        ("queue_read", C::Read(Read { request: 1, src: slice(2), bulk: true })),
        ("queue_execute", C::Execute(Execute { executable: 4 })),
        ("queue_copy", C::Copy(Copy { src: slice(2), dst: slice(3) })),
        ("queue_fill", C::Fill(Fill { dst: slice(2), value: 255 })),
        ("queue_wait", C::Wait(Wait { queue: 9, value: 1000 })),
        ("queue_signal", C::Signal(Signal { value: 1001 })),
        ("queue_offer", C::Offer(Offer { ticket: ticket.clone(), src: slice(2), to: "CPU1".into(), target: None })),
        (
            "queue_offer_peer",
            C::Offer(Offer { ticket: ticket.clone(), src: slice(2), to: "CPU1".into(), target: target() }),
        ),
        ("queue_accept", C::Accept(Accept { ticket: ticket.clone(), dst: slice(3), value: 7, source: None })),
        (
            "queue_accept_peer",
            C::Accept(Accept {
                ticket,
                dst: slice(3),
                value: 7,
                source: Some(PeerSource { name: "a:1".into(), incarnation: 8 }),
            }),
        ),
        ("queue_finish", C::Finish(Finish { request: 2 })),
    ] {
        check(name, &Command { command: Some(command) });
    }
    for (name, reply) in [
        ("queue_opened", R::Opened(Opened {})),
        ("queue_data", R::Data(Data { request: 1, data: Bytes::from_static(b"data") })),
        ("queue_done", R::Done(Done { request: 2, error: None })),
        ("queue_failed", R::Failed(Error { kind: Some(error::Kind::Request("no".into())) })),
    ] {
        check(name, &Reply { reply: Some(reply) });
    }
}

fn target() -> Option<PeerTarget> {
    Some(PeerTarget {
        address: "b:2".into(),
        incarnation: 0x8899_aabb_ccdd_eeff,
        session: 0x0123_4567_89ab_cdef,
        grant: Bytes::from_static(&[3; 32]),
        welcome: Bytes::from_static(&[4; 32]),
    })
}

#[test]
fn peer() {
    use peer_down::Part as Down;
    use peer_up::Part as Up;
    let ticket = || Bytes::from_static(&[9; 32]);
    let error = || Some(Error { kind: Some(error::Kind::Request("no".into())) });
    let chunk = Chunk { transfer: 1, data: Bytes::from_static(b"data") };
    for (name, part) in [
        (
            "peer_open",
            Up::Open(OpenPeer {
                min_version: 1,
                max_version: 2,
                from: 7,
                to: 8,
                session: 5,
                grant: Bytes::from_static(&[3; 32]),
            }),
        ),
        ("peer_chunk", Up::Chunk(chunk)),
        ("peer_push", Up::Push(Push { transfer: 1, session: 5, ticket: ticket(), size: 2304, queue: 6 })),
        ("peer_failed", Up::Failed(PushFailed { session: 5, ticket: ticket(), error: error() })),
    ] {
        check(name, &PeerUp { part: Some(part) });
    }
    for (name, part) in [
        ("peer_welcome", Down::Welcome(Welcome { version: 1, proof: Bytes::from_static(&[4; 32]) })),
        ("peer_refused", Down::Refused(Refused { transfer: 1, queue: 6, error: error() })),
    ] {
        check(name, &PeerDown { part: Some(part) });
    }
    check("peer_reach_request", &ReachRequest { session: session(), target: target() });
    check("peer_reach_response", &ReachResponse { obstacle: "connection refused".into() });
    check("peer_traffic_request", &TrafficRequest { session: session() });
    check("peer_traffic_response", &TrafficResponse { peer_bytes: 1 << 40 });
}

#[test]
fn bulk() {
    use bulk_up::Part;
    let chunk = || Chunk { transfer: 1, data: Bytes::from_static(b"data") };
    check("bulk_open", &BulkUp { part: Some(Part::Open(OpenBulk { session: session(), queue: 9 })) });
    check("bulk_up_chunk", &BulkUp { part: Some(Part::Chunk(chunk())) });
    check("bulk_down_chunk", &BulkDown { chunk: Some(chunk()) });
}
