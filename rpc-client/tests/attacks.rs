//! What has been done to ggml's RPC servers, and what else a client could try: each attack on a live server, with a second session on
//! it that must notice nothing. Messages go out as bytes, so that nothing of this project's encoders stands in the way.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
mod hostile;

use common::*;
use hostile::*;
use outboard_core::op::*;
use outboard_core::*;
use outboard_fuzz::mutate::{LIMITS, at_limits};
use outboard_fuzz::raw::{Conn, NOTHING, framed};
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::v1::{self, reply::Reply};
use outboard_proto::{graph, limits};
use outboard_rpc_server::Limits;
use prost::Message;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::result::Result;
use std::time::{Duration, Instant};

#[test]
fn tensors_whose_data_lies_outside_their_buffer() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let graph = || wire([leaf("x", "F32", &[256], &[]), node("ADD", &[256], &[1, 1])]);
        assert!(h.compile(0, graph(), 2).await.is_ok());
        for (place, why) in [
            ((1, 1, SIZE - 1023, 1024), "outside a buffer"),
            ((1, 1, SIZE, 1024), "outside a buffer"),
            ((1, 1, u64::MAX - 1023, 1024), "outside a buffer"),
            ((1, 1, 1024, u64::MAX), "outside a buffer"),
            ((1, 1, u64::MAX, u64::MAX), "outside a buffer"),
            ((1, 1, SIZE - 1020, 1020), "1024 needed"),
            ((1, 1, 1024, 0), "1024 needed"),
            ((1, 1, 1025, 1024), "not a multiple"),
            ((1, 2, 1024, 1024), "not of REF0"),
            ((1, 3, 1024, 1024), "unknown in this session"),
            ((0, 1, 1024, 1024), "has two"),
            ((2, 1, 1024, 1024), "not in the graph"),
            ((u32::MAX, 1, 1024, 1024), "not in the graph"),
        ] {
            contains(h.compile_at(0, graph(), &[(0, 1, 0, 1024), place]).await, why);
        }
        contains(h.compile_at(0, graph(), &[(0, 1, 0, 1024)]).await, "there is none");
        // Views that look further than what they look at.
        for (ne, nb, offset) in [
            ([257, 1, 1, 1], [4, 1028, 1028, 1028], 0),
            ([256, 1, 1, 1], [4, 1024, 1024, 1024], 4),
            ([1, 1, 1, 1], [4, 4, 4, 4], 1024),
            ([1, 1, 1, 1], [4, 4, 4, 4], i64::MAX - 3),
            ([2, 1, 1, 1], [1024, 0, 0, 0], 0),
            ([1, 2, 2, 2], [4, 4, 1 << 40, 1 << 43], 0),
            ([1, i64::MAX, 1, 1], [4, 4, 4, 4], 0),
            ([-1, 1, 1, 1], [4, 4, 4, 4], 0),
            ([1, 1, 1, 1], [4, 4, 4, 4], -4),
        ] {
            let ints = |name: &str, v: [i64; 4]| v1::Attr {
                name: name.into(),
                value: Some(v1::attr::Value::Ints(v1::Ints { values: v.into() })),
            };
            let at = v1::Attr { name: "offset".into(), value: Some(v1::attr::Value::Int(offset)) };
            let (sizes, strides) = (ne.map(|n| n as u64), nb.map(|n| n as u64));
            let attrs = vec![ints("ne", ne), ints("nb", nb), at];
            let view = v1::Tensor { nb: strides.into(), attrs, ..node("VIEW", &sizes, &[1]) };
            let refused = h.compile(0, wire([leaf("x", "F32", &[256], &[]), view]), 1).await;
            assert!(refused.is_err(), "{ne:?} {nb:?} {offset}");
        }
    });
}

#[test]
fn results_that_lie_on_what_they_are_computed_of() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        for device in 0..DEVICES.len() {
            let buffer = device as u64 + 1;
            let unary = || wire([leaf("x", "F32", &[256], &[]), node("SQR", &[256], &[1])]);
            let binary = || wire([leaf("x", "F32", &[256], &[]), node("ADD", &[256], &[1, 1])]);
            // The whole of a source may be taken over by an op that can do that, once.
            assert!(h.compile_at(device, unary(), &[(0, buffer, 0, 1024), (1, buffer, 0, 1024)]).await.is_ok());
            let on_source = "its result would lie on its source";
            for graph in [unary(), binary()] {
                for offset in [32, 512, 992] {
                    let places = [(0, buffer, 0, 1024), (1, buffer, offset, 1024)];
                    contains(h.compile_at(device, graph.clone(), &places).await, on_source);
                    let places = [(0, buffer, offset, 1024), (1, buffer, 0, 1024)];
                    contains(h.compile_at(device, graph.clone(), &places).await, on_source);
                }
                assert!(h.compile_at(device, graph, &[(0, buffer, 0, 1024), (1, buffer, 1024, 1024)]).await.is_ok());
            }
            contains(h.compile_at(device, binary(), &[(0, buffer, 0, 1024), (1, buffer, 0, 1024)]).await, on_source);
            // A product cannot, and a row that is written cannot be read by the same node.
            let product = wire([leaf("w", "F32", &[16, 16], &[]), node("MUL_MAT", &[16, 16], &[1, 1])]);
            contains(h.compile_at(device, product, &[(0, buffer, 0, 1024), (1, buffer, 0, 1024)]).await, on_source);
            let mut cache = leaf("cache", "F32", &[16, 16], &[]);
            cache.leaf = "STATE".into();
            let ids = leaf("ids", "I32", &[16], &[]);
            let write = wire([cache, ids, node("SET_ROWS", &[16, 16], &[1, 1, 2])]);
            contains(h.compile_at(device, write, &[(0, buffer, 0, 1024), (1, buffer, 2048, 64)]).await, on_source);
        }
    });
}

#[test]
fn shapes_and_strides_that_overflow() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        const MAX: u64 = u64::MAX;
        let minus = |n: i64| n as u64;
        for (dtype, ne, nb) in [
            ("F32", vec![MAX], vec![]),
            ("F32", vec![minus(-256)], vec![]),
            ("F32", vec![1 << 32, 1 << 32], vec![]),
            ("F32", vec![1 << 62], vec![]),
            ("F32", vec![1 << 31, 1 << 31, 1 << 2], vec![]),
            ("F32", vec![1 << 16, 1 << 16, 1 << 16, 1 << 16], vec![]),
            ("F32", vec![1, 1, 1, 1, 1], vec![]),
            ("F32", vec![0, 1 << 40, 1 << 40], vec![]),
            ("F32", vec![2, 2], vec![4, MAX, 8, 8]),
            ("F32", vec![2, 2], vec![4, minus(-8), 8, 8]),
            ("F32", vec![2, 2], vec![4, MAX - 3, MAX - 3, MAX - 3]),
            ("F32", vec![2, 2], vec![4, 1 << 63, 8, 8]),
            ("F32", vec![2, 2], vec![4, 8]),
            ("F32", vec![2, 2], vec![3, 8, 16, 16]),
            // Many elements in few bytes: endless work.
            ("F32", vec![1 << 15, 1 << 15, 1, 1], vec![0, 0, 0, 0]),
            // Written where elements lie on one another.
            ("F32", vec![2, 2], vec![4, 4, 8, 8]),
            ("Q4_0", vec![33], vec![]),
            ("Q4_0", vec![32, 2], vec![1, 18, 36, 36]),
            ("Q4_0", vec![MAX - 31], vec![]),
            ("", vec![1], vec![]),
            ("f32", vec![1], vec![]),
            ("F64", vec![1], vec![]),
        ] {
            let refused = h.compile(0, wire([leaf("x", dtype, &ne, &nb)]), 1).await;
            assert!(refused.is_err(), "{dtype} {ne:?} {nb:?}");
            let refused = h.compile(0, wire([leaf("y", "F32", &[1], &[]), node("ADD", &ne, &[1, 1])]), 1).await;
            assert!(refused.is_err() || ne == [1], "{ne:?}");
        }
    });
}

#[test]
fn ops_and_sources_that_are_none() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let x = || leaf("x", "F32", &[8], &[]);
        for op in ["", "ADD\0", "add", "4294967295", "-1", "NONE", "COUNT", "MAP_CUSTOM1", &"A".repeat(3000)] {
            assert!(h.compile(0, wire([x(), node(op, &[8], &[1, 1])]), 2).await.is_err(), "{op:?}");
        }
        for op in Op::names() {
            // Its parameters are missing or its sources are wrong, whatever it is.
            for n in [0, 7, 8, 9, 100, 1000] {
                assert!(h.compile(0, wire([x(), node(op, &[8], &vec![1; n])]), 2).await.is_err(), "{op} of {n}");
            }
            assert!(h.compile(0, wire([x(), node(op, &[8], &[0, 0, 0])]), 2).await.is_err(), "{op} of nothing");
        }
        contains(h.compile(0, wire([x(), node("ADD", &[8], &[1])]), 2).await, "sources");
        contains(h.compile(0, wire([x(), node("ADD", &[8], &[1, 1, 1])]), 2).await, "sources");
        // Itself, one behind it, and both each other; and what is nowhere.
        for srcs in [[2, 2], [1, 2], [3, 1], [u32::MAX, 1], [1, 0]] {
            let graph = wire([x(), node("ADD", &[8], &srcs), node("ADD", &[8], &[2, 2])]);
            assert!(h.compile(0, graph, 3).await.is_err(), "{srcs:?}");
        }
        contains(h.compile(0, wire([x(), x()]), 2).await, "another leaf of that name");
    });
}

#[test]
fn a_graph_of_a_million_nodes() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        const MILLION: usize = 1_000_000;
        // Nodes that are right, as far as they go.
        let tensor = |t: v1::Tensor| wire([t]);
        let [first, more] =
            [leaf("x", "F32", &[1], &[]), v1::Tensor { ne: vec![1], ..node("SQR", &[], &[1]) }].map(tensor);
        assert!(h.compile(0, [first.clone(), more.clone()].concat(), 2).await.is_ok());
        let fits = (limits::MAX_GRAPH - first.len()) / more.len();
        contains(h.compile(0, [first.clone(), more.repeat(fits)].concat(), 2).await, "65536 tensors");
        contains(h.compile(0, [0x0a, 0].repeat(MILLION), 0).await, "node 0");
        contains(h.compile(0, vec![0x0a; limits::MAX_GRAPH + 1], 0).await, "at most");
        // All of them are more than a message may be: the connection ends.
        let whole = [first, more.repeat(MILLION)].concat();
        assert!(whole.len() > limits::MAX_MESSAGE || h.compile(0, whole.clone(), 2).await.is_err());
        let padded = [whole, vec![0x0a; limits::MAX_MESSAGE]].concat();
        assert!(h.compile(0, padded, 2).await.is_err());
    });
}

/// Programs that use a number in memory as an index, with what it must be below: graph, tensors, and which tensor holds the numbers.
fn indexed() -> Vec<(&'static str, Graph, TensorId)> {
    let make = |name, build: &dyn Fn(&mut GraphBuilder) -> Result<TensorId, GraphError>| {
        let mut g = GraphBuilder::new();
        let ids = build(&mut g).unwrap();
        let last = TensorId::from_index(g.len() - 1);
        g.output(last);
        (name, g.finish().unwrap(), ids)
    };
    let f32_of = DType::F32;
    vec![
        make("GET_ROWS", &|g| {
            let (a, ids) = (g.weight("a", f32_of, &[8, 4])?, g.input("ids", DType::I32, &[2])?);
            g.push(GetRows, &[a, ids]).map(|_| ids)
        }),
        make("GET_ROWS of blocks", &|g| {
            let (a, ids) = (g.weight("a", DType::Q4_0, &[32, 4])?, g.input("ids", DType::I32, &[2])?);
            g.push(GetRows, &[a, ids]).map(|_| ids)
        }),
        make("SET_ROWS", &|g| {
            let (dst, x) = (g.state("dst", DType::F16, &[8, 4])?, g.input("x", f32_of, &[8, 2])?);
            let ids = g.input("ids", DType::I32, &[2])?;
            g.push(SetRows, &[dst, x, ids]).map(|_| ids)
        }),
        make("MUL_MAT_ID", &|g| {
            let (a, b) = (g.weight("a", f32_of, &[8, 4, 4])?, g.input("b", f32_of, &[8, 2, 1])?);
            let ids = g.input("ids", DType::I32, &[2, 1])?;
            g.push(MulMatId, &[a, b, ids]).map(|_| ids)
        }),
        make("ADD_ID", &|g| {
            let (a, b) = (g.input("a", f32_of, &[8, 2, 1])?, g.weight("b", f32_of, &[8, 4])?);
            let ids = g.input("ids", DType::I32, &[2, 1])?;
            g.push(AddId, &[a, b, ids]).map(|_| ids)
        }),
        make("FLASH_ATTN_EXT", &|g| {
            let (q, k) = (g.input("q", f32_of, &[8, 2, 2])?, g.state("k", f32_of, &[8, 4, 1])?);
            let (v, pos) = (g.state("v", f32_of, &[8, 4, 1])?, g.input("pos", DType::I32, &[2])?);
            let op = FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 0 };
            g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos)]).map(|_| pos)
        }),
        make("FLASH_ATTN_EXT, its sequences", &|g| {
            let (q, k) = (g.input("q", f32_of, &[1, 2, 1])?, g.state("k", f32_of, &[1, 256, 1])?);
            let (v, pos) = (g.state("v", f32_of, &[1, 256, 1])?, g.input("pos", DType::I32, &[2])?);
            let (table, seqs) = (g.input("table", DType::I32, &[1, 2])?, g.input("seqs", DType::I32, &[2])?);
            let op = FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 128 };
            let srcs = [Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)];
            g.push_opt(op, &srcs).map(|_| seqs)
        }),
        make("FLASH_ATTN_EXT, its table", &|g| {
            let (q, k) = (g.input("q", f32_of, &[1, 1, 1])?, g.state("k", f32_of, &[1, 256, 1])?);
            let (v, pos) = (g.state("v", f32_of, &[1, 256, 1])?, g.input("pos", DType::I32, &[1])?);
            let (table, seqs) = (g.input("table", DType::I32, &[2])?, g.input("seqs", DType::I32, &[1])?);
            let op = FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 128 };
            let mut attend = |offset: usize| {
                let table = g.push(View { ne: [1, 1, 1, 1], nb: [4; 4], offset }, &[table])?;
                g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)])
            };
            let (first, second) = (attend(0)?, attend(4)?);
            g.push(Binary { kind: BinaryKind::Add }, &[first, second]).map(|_| table)
        }),
        make("LOG_PROB", &|g| {
            let (x, ids) = (g.input("x", f32_of, &[4, 2])?, g.input("ids", DType::I32, &[2])?);
            g.push(LogProb, &[x, ids]).map(|_| ids)
        }),
        make("PENALTY, its steps", &|g| {
            let (x, history) = (g.input("x", f32_of, &[8, 2])?, g.input("history", DType::I32, &[4])?);
            let (step, params) = (g.input("step", DType::I32, &[2])?, g.input("params", f32_of, &[4, 2])?);
            g.push(Penalty { block: 0 }, &[x, history, step, params]).map(|_| step)
        }),
        make("PENALTY, its tokens", &|g| {
            let (x, history) = (g.input("x", f32_of, &[4, 1])?, g.input("history", DType::I32, &[2])?);
            let step = g.push(View { ne: [1, 1, 1, 1], nb: [4; 4], offset: 4 }, &[history])?;
            let params = twos(g)?;
            g.push(Penalty { block: 0 }, &[x, history, step, params]).map(|_| history)
        }),
        make("PENALTY, its sequences", &|g| {
            let (x, history) = (g.input("x", f32_of, &[8, 2])?, g.input("history", DType::I32, &[4])?);
            let (step, params) = (g.input("step", DType::I32, &[2])?, g.input("params", f32_of, &[4, 2])?);
            let (table, seqs) = (g.input("table", DType::I32, &[1, 2])?, g.input("seqs", DType::I32, &[2])?);
            g.push(Penalty { block: 2 }, &[x, history, step, params, table, seqs]).map(|_| seqs)
        }),
        make("PENALTY, its table", &|g| {
            let (x, history) = (g.input("x", f32_of, &[8, 1])?, g.input("history", DType::I32, &[4])?);
            let (table, seqs) = (g.input("table", DType::I32, &[2, 1])?, g.input("seqs", DType::I32, &[1])?);
            // A step of 1 in blocks of one token.
            let step = g.push(View { ne: [1, 1, 1, 1], nb: [4; 4], offset: 4 }, &[table])?;
            let params = twos(g)?;
            g.push(Penalty { block: 1 }, &[x, history, step, params, table, seqs]).map(|_| table)
        }),
    ]
}

/// Parameters of a penalty that are all 2, in memory that is zero.
fn twos(g: &mut GraphBuilder) -> Result<TensorId, GraphError> {
    let zeros = g.input("params", DType::F32, &[4, 1])?;
    g.push(Scale { scale: 0.0, bias: 2.0 }, &[zeros])
}

#[test]
fn indices_out_of_range_on_every_device() {
    let scene = Scene::new(Limits::default());
    for (device, _) in DEVICES.iter().enumerate() {
        let is_ggml = device == 1 && std::env::var_os("OUTBOARD_GGML").is_some();
        scene.attack(async |h: &mut Hostile| {
            let buffer = device as u64 + 1;
            let mut refused = Vec::new();
            for (name, graph, ids) in indexed() {
                let n = graph.tensors().len() as u32;
                let roots = graph.ids().filter(|&id| graph.tensor(id).root() == id).map(|id| id.index() as u32);
                let places: Vec<_> = roots.map(|t| (t, buffer, u64::from(t) * 1024, 1024)).collect();
                let executable = match h.compile_at(device, graph::encode(&graph).unwrap(), &places).await {
                    Ok(executable) => executable,
                    Err(e) => {
                        assert!(e.contains("does not support"), "{name}: {e}");
                        refused.push(name);
                        continue;
                    }
                };
                let all = u64::from(n) * 1024;
                let run = |first: i32, second: i32| {
                    let mut data = first.to_le_bytes().to_vec();
                    data.extend(second.to_le_bytes());
                    [
                        C::Fill(v1::Fill { dst: slice(buffer, 0, all), value: 0 }),
                        // Behind the last tensor, where nothing may be written.
                        C::Fill(v1::Fill { dst: slice(buffer, all, SIZE - all), value: 0x5e }),
                        write(buffer, ids.index() as u64 * 1024, data),
                        C::Execute(v1::Execute { executable }),
                    ]
                };
                // The last and the first that there are: whatever has an index takes these.
                assert_eq!(h.commands(device, run(0, 1)).await, None, "{name}");
                for wrong in [-1, i32::MIN, i32::MAX, 8, 4096, 1 << 24, -(1 << 20)] {
                    for (a, b) in [(wrong, 0), (0, wrong)] {
                        // The second number of this one says how far the first ones count.
                        let failed = h.commands(device, run(a, b)).await;
                        let failed = failed.unwrap_or_else(|| panic!("{name} of {a}, {b} on {}", DEVICES[device]));
                        assert!(failed.contains("outside") && failed.contains(DEVICES[device]), "{name}: {failed}");
                    }
                }
                let untouched = read_all(h, device, buffer, all).await;
                assert!(untouched.iter().all(|&b| b == 0x5e), "{name}");
            }
            // ggml has neither penalties nor log-probabilities.
            let lacks = |name: &str| name.starts_with("PENALTY") || name == "LOG_PROB";
            assert!(refused.is_empty() || is_ggml && refused.iter().all(|name| lacks(name)), "{refused:?}");
            // ROPE indexes nothing: any position is an angle.
            let mut g = GraphBuilder::new();
            let (x, pos) = (g.input("x", DType::F32, &[8, 1, 2]).unwrap(), g.input("pos", DType::I32, &[2]).unwrap());
            let y = g.push(Rope::plain(RopeMode::Neox, 8, 10000.0), &[x, pos]).unwrap();
            g.output(y);
            let graph = graph::encode(&g.finish().unwrap()).unwrap();
            let executable = h.compile(device, graph, 3).await.unwrap();
            for (a, b) in [(0, 1), (-1, i32::MIN), (i32::MAX, -2)] {
                let positions = [i32::to_le_bytes(a), i32::to_le_bytes(b)].concat();
                let run = [write(buffer, 1024, positions), C::Execute(v1::Execute { executable })];
                assert_eq!(h.commands(device, run).await, None);
            }
        });
    }
}

/// What a buffer holds from `at` on.
async fn read_all(h: &mut Hostile, device: usize, buffer: u64, at: u64) -> Vec<u8> {
    h.next += 1;
    let mut stream = h.conn.stream("outboard.v1.Outboard/Queue").await.unwrap();
    let open = v1::OpenQueue { session: Some(h.session.clone()), queue: h.next, device: DEVICES[device].into() };
    let read = v1::Read { request: 1, src: slice(buffer, at, SIZE - at), bulk: false };
    for command in [C::Open(open), C::Read(read)] {
        stream.message(&v1::Command { command: Some(command) }.encode_to_vec());
    }
    loop {
        match v1::Reply::decode(stream.next().await.unwrap().unwrap()).unwrap().reply.unwrap() {
            Reply::Opened(_) => {}
            Reply::Data(data) => return data.data.into(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn freeing_twice_and_while_it_is_used() {
    /// Longer than a server waits for a queue that is not open yet.
    const FREED: Duration = Duration::from_secs(15);
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let free = |buffers: &[u64], executables: &[u64]| {
            R::Free(v1::Free { buffers: buffers.into(), executables: executables.into(), fences: vec![] })
        };
        let send =
            |h: &Hostile, request| h.control.message(&v1::ControlRequest { request: Some(request) }.encode_to_vec());
        assert_eq!(h.request(alloc(7, "REF0", 4096)).await, Ok(()));
        let before = scene.budget.used();
        let graph = wire([leaf("x", "F32", &[256], &[]), node("ADD", &[256], &[1, 1])]);
        let executable = h.compile_at(0, graph, &[(0, 7, 0, 1024), (1, 7, 1024, 1024)]).await.unwrap();
        send(h, free(&[7, 7, 7], &[]));
        send(h, free(&[7], &[]));
        // The handle is free at once, and is another buffer then.
        assert_eq!(h.request(alloc(7, "REF0", 64)).await, Ok(()));
        // The graph keeps what it lies in: it runs, on memory that is its own.
        let run = || [C::Execute(v1::Execute { executable })];
        assert_eq!(h.commands(0, run()).await, None);
        assert!(scene.budget.used() >= before + 64);
        assert!(
            h.commands(0, [C::Fill(v1::Fill { dst: slice(7, 0, 65), value: 1 })]).await.unwrap().contains("outside")
        );
        // Commands under way, and the graph freed behind them, many times over.
        let many = (0..200).map(|_| C::Execute(v1::Execute { executable }));
        send(h, free(&[], &[executable, executable]));
        let ended = h.commands(0, many).await;
        assert!(ended.as_ref().is_none_or(|e| e.contains("unknown in this session")), "{ended:?}");
        assert!(h.commands(0, run()).await.unwrap().contains("unknown in this session"));
        // Far more handles than a message may free; fences that never come, which keep a buffer for a while and not for good.
        send(h, free(&vec![1; limits::MAX_FREE + 1], &[]));
        let fence = v1::Fence { queue: u64::MAX, commands: u64::MAX };
        send(h, R::Free(v1::Free { buffers: vec![7], executables: vec![], fences: vec![fence; 1000] }));
        let start = Instant::now();
        while let Err(e) = h.request(alloc(7, "REF0", 64)).await {
            assert!(e.contains("taken") && start.elapsed() < FREED, "{e}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(h.commands(0, [C::Fill(v1::Fill { dst: slice(1, 0, SIZE), value: 1 })]).await, None);
    });
}

#[test]
fn handles_of_another_session() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |victim: &mut Hostile| {
        assert_eq!(victim.request(alloc(50, "REF0", 4096)).await, Ok(()));
        let graph = || wire([leaf("x", "F32", &[8], &[])]);
        let executable = victim.compile_at(0, graph(), &[(0, 50, 0, 1024)]).await.unwrap();
        let mut thief = Hostile::new(Conn::open(scene.server.local_addr()).await.unwrap()).await;
        let (theirs, mine) = (|| slice(50, 0, 8), || slice(1, 0, 8));
        for command in [
            C::Read(v1::Read { request: 1, src: theirs(), bulk: false }),
            C::Read(v1::Read { request: 1, src: theirs(), bulk: true }),
            write(50, 0, vec![1; 8]),
            C::WriteBulk(v1::WriteBulk { transfer: 1, dst: theirs(), digest: Default::default() }),
            C::Fill(v1::Fill { dst: theirs(), value: 1 }),
            C::Copy(v1::Copy { src: theirs(), dst: mine() }),
            C::Copy(v1::Copy { src: mine(), dst: theirs() }),
            C::Execute(v1::Execute { executable }),
            C::Wait(v1::Wait { queue: 5000, value: 1 }),
            C::Offer(v1::Offer { ticket: vec![1; 32].into(), src: theirs(), to: "REF0".into(), target: None }),
            C::Accept(v1::Accept { ticket: vec![1; 32].into(), dst: theirs(), value: 1, source: None }),
        ] {
            let what = format!("{command:?}");
            let failed = thief.commands(0, [command]).await.unwrap_or_else(|| panic!("{what}"));
            assert!(failed.contains("unknown in this session"), "{what}: {failed}");
        }
        contains(thief.compile_at(0, graph(), &[(0, 50, 0, 1024)]).await, "unknown in this session");
        let free = v1::Free { buffers: vec![50], executables: vec![executable], fences: vec![] };
        thief.control.message(&v1::ControlRequest { request: Some(R::Free(free)) }.encode_to_vec());
        // With the number of the victim, and its own secret.
        let forged = v1::Session { id: victim.session.id, secret: thief.session.secret.clone() };
        let traces = v1::TraceRequest { session: Some(forged.clone()), record: true };
        assert!(thief.conn.call("outboard.v1.Outboard/Trace", &traces.encode_to_vec()).await.is_err());
        let progress = v1::ProgressRequest { session: Some(forged.clone()) };
        assert!(thief.conn.call("outboard.v1.Outboard/Progress", &progress.encode_to_vec()).await.is_err());
        assert!(thief.conn.goodbye(&forged).await.is_err());
        assert_eq!(victim.commands(0, [C::Execute(v1::Execute { executable })]).await, None);
        thief.leave(&scene).await;
    });
}

#[test]
fn lengths_without_end() {
    let scene = Scene::new(Limits::default());
    let eib = 8u64 << 60;
    scene.attack(async |h: &mut Hostile| {
        for size in [eib, eib - 1, u64::MAX, u64::MAX - 63, 1 << 44, MEMORY + 1] {
            let refused = h.request(alloc(9, "REF0", size)).await.unwrap_err();
            assert!(refused.contains("OutOfMemory"), "{size}: {refused}");
            let dst = slice(1, 0, size);
            let transfer = C::WriteBulk(v1::WriteBulk { transfer: 1, dst, digest: Default::default() });
            assert!(h.commands(0, [transfer]).await.unwrap().contains("outside"), "{size}");
            let read = C::Read(v1::Read { request: 1, src: slice(1, size, size), bulk: true });
            assert!(h.commands(0, [read]).await.unwrap().contains("outside"), "{size}");
        }
    });
    // Lengths in front of what never comes: of a frame of gRPC, of a field inside, of a chunk. Each ends its connection or its stream.
    let field = |len: u64| {
        let mut message = vec![0x12];
        prost::encoding::encode_varint(len, &mut message);
        message
    };
    let cases: [(&str, Vec<u8>); 8] = [
        ("frame", [0, 0xff, 0xff, 0xff, 0xff, 0x0a].to_vec()),
        ("frame above the limit", [&[0][..], &(limits::MAX_MESSAGE as u32 + 1).to_be_bytes()].concat()),
        ("compressed", [1, 0, 0, 0, 1, 0x0a].to_vec()),
        ("field of 8 EiB", framed(&field(eib)).to_vec()),
        ("field of 16 EiB", framed(&field(u64::MAX)).to_vec()),
        ("number too long", framed(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).to_vec()),
        ("group without end", framed(&[0x0b].repeat(5000)).to_vec()),
        ("tag 0", framed(&[0, 0]).to_vec()),
    ];
    for (what, bytes) in cases {
        for method in ["Outboard/Queue", "Outboard/Control", "Outboard/Hello", "Bulk/Transfer", "Peer/Push"] {
            run(async {
                let conn = Conn::open(scene.server.local_addr()).await.unwrap();
                let Ok(mut stream) = conn.stream(&format!("outboard.v1.{method}")).await else { return };
                stream.bytes(bytes.clone());
                stream.close();
                let end = stream.next().await;
                assert!(!matches!(&end, Ok(Some(_))), "{what} on {method}: {end:?}");
                assert!(!end.as_ref().is_err_and(|e| e.starts_with(NOTHING)), "{what} on {method}: {end:?}");
            });
        }
        scene.unharmed(4);
    }
}

#[test]
fn names_of_a_mebibyte() {
    let scene = Scene::new(Limits::default());
    let long = "n".repeat(1 << 20);
    scene.attack(async |h: &mut Hostile| {
        let short = |error: String| assert!(error.len() <= limits::MAX_ERROR_TEXT + 100, "{} bytes", error.len());
        short(h.request(alloc(9, &long, 64)).await.unwrap_err());
        let named = R::Alloc(v1::Alloc { request: 1, buffer: 9, device: "REF0".into(), size: 64, usage: long.clone() });
        assert_eq!(h.request(named).await, Ok(()));
        for tensor in [
            leaf(&long, "F32", &[1], &[]),
            leaf("x", &long, &[1], &[]),
            node(&long, &[1], &[]),
            v1::Tensor { leaf: long.clone(), ..leaf("x", "F32", &[1], &[]) },
            v1::Tensor { attrs: vec![v1::Attr { name: long.clone(), value: None }], ..node("SQR", &[1], &[1]) },
            v1::Tensor {
                attrs: vec![v1::Attr { name: "to".into(), value: Some(v1::attr::Value::Text(long.clone())) }],
                ..node("CAST", &[1], &[1])
            },
        ] {
            short(h.compile(0, wire([tensor]), 1).await.unwrap_err());
        }
        let open = v1::OpenQueue { session: Some(h.session.clone()), queue: 9, device: long.clone() };
        let mut stream = h.conn.stream("outboard.v1.Outboard/Queue").await.unwrap();
        stream.message(&v1::Command { command: Some(C::Open(open)) }.encode_to_vec());
        short(stream.next().await.unwrap_err());
        let ticket = bytes::Bytes::from(long.clone().into_bytes());
        let to = long.clone();
        let offer = C::Offer(v1::Offer { ticket, src: slice(1, 0, 8), to, target: None });
        short(h.commands(0, [offer]).await.unwrap());
        for (method, message) in [
            ("Memory", v1::MemoryRequest { device: long.clone() }.encode_to_vec()),
            (
                "Supports",
                v1::SupportsRequest {
                    session: Some(h.session.clone()),
                    device: long.clone(),
                    graph: Default::default(),
                }
                .encode_to_vec(),
            ),
        ] {
            short(h.conn.call(&format!("outboard.v1.Outboard/{method}"), &message).await.unwrap_err());
        }
        let hello = v1::HelloRequest { min_version: 1, max_version: 1, client: long.clone() };
        short(h.conn.call("outboard.v1.Outboard/Hello", &hello.encode_to_vec()).await.unwrap_err());
    });
    // A header of a mebibyte.
    let mut socket = TcpStream::connect(scene.server.local_addr()).unwrap();
    let _ = socket.write_all(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat());
    for i in 0..64u8 {
        // HEADERS without an end, then CONTINUATION after CONTINUATION of 16 KiB.
        let kind = if i == 0 { 1 } else { 9 };
        let _ = socket.write_all(&[&[0, 0x40, 0, kind, 0, 0, 0, 0, 1][..], &[0x40; 0x4000]].concat());
    }
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    let end = socket.read_to_end(&mut rest);
    assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    scene.unharmed(5);
}

#[test]
fn integers_at_every_limit() {
    let scene = Scene::new(Limits::default());
    let commands = [
        C::Write(v1::Write { dst: slice(1, 8, 4), data: vec![1; 4].into() }),
        C::Read(v1::Read { request: 3, src: slice(1, 8, 4), bulk: false }),
        C::Execute(v1::Execute { executable: 77 }),
        C::Copy(v1::Copy { src: slice(1, 8, 4), dst: slice(1, 16, 4) }),
        C::Fill(v1::Fill { dst: slice(1, 8, 4), value: 1 }),
        C::Signal(v1::Signal { value: 1 }),
        C::Offer(v1::Offer { ticket: vec![1; 32].into(), src: slice(1, 8, 4), to: "REF0".into(), target: None }),
        C::Finish(v1::Finish { request: 3 }),
    ];
    scene.attack(async |h: &mut Hostile| {
        let mut tried = 0;
        for command in commands {
            let whole = v1::Command { command: Some(command) }.encode_to_vec();
            for message in at_limits(&whole) {
                let done = h.raw_commands(0, [message]).await;
                tried += 1;
                if let Err(e) = done {
                    assert!(!e.starts_with(NOTHING), "{e}");
                    *h = Hostile::new(Conn::open(scene.server.local_addr()).await.unwrap()).await;
                }
            }
        }
        let graph = graph::encode(&program().graph).unwrap().to_vec();
        let places: Vec<_> = (0..5).map(|t| (t, 1, u64::from(t) * 1024, 1024)).collect();
        let requests = [
            alloc(60, "REF0", 64),
            R::Compile(compile(61, 0, graph, &places)),
            R::Free(v1::Free {
                buffers: vec![60],
                executables: vec![61],
                fences: vec![v1::Fence { queue: 3, commands: 5 }],
            }),
        ];
        for request in requests {
            let whole = v1::ControlRequest { request: Some(request) }.encode_to_vec();
            for message in at_limits(&whole) {
                h.control.message(&message);
                tried += 1;
                if let Err(e) = h.settle().await {
                    assert!(!e.starts_with(NOTHING), "{e}");
                    *h = Hostile::new(Conn::open(scene.server.local_addr()).await.unwrap()).await;
                }
            }
        }
        println!("{tried} messages");
        assert!(tried > 20 * LIMITS.len());
    });
}

#[test]
fn ten_thousand_connections() {
    const AT_ONCE: usize = 100;
    let scene = Scene::new(Limits { connections: 64, ..Limits::default() });
    let addr = scene.server.local_addr();
    let mut open = std::collections::VecDeque::new();
    for i in 0..10_000usize {
        // As many at a time as a test may have file descriptors; those that are too many the server closes itself.
        if open.len() == AT_ONCE {
            drop(open.pop_front());
        }
        let mut socket = TcpStream::connect_timeout(&addr, Duration::from_secs(10)).unwrap();
        if i % 3 == 0 {
            let _ = socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        }
        open.push_back(socket);
        if i % 500 == 0 {
            assert!(scene.server.connections() <= 64);
            scene.unharmed(i);
        }
    }
    scene.unharmed(1);
    drop(open);
    eventually(Duration::from_secs(10), || scene.server.connections() < 16);
    // There is room again.
    assert_eq!(devices_of(&scene.server).len(), 2);
}

#[test]
fn connections_that_trickle() {
    let scene = Scene::new(Limits::default());
    let addr = scene.server.local_addr();
    let own = scene.server.connections();
    let preface: Vec<u8> = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // The beginning of a connection; frames that mean nothing, in a connection that never asks for anything; a request that is never
    // whole. A byte every half second each.
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let mut headers = vec![0, 0x10, 0, 1, 0, 0, 0, 0, 1];
    headers.extend([0x40; 64]);
    let kinds: [(usize, Vec<u8>); 3] = [
        (0, preface.clone()),
        (preface.len(), [preface.clone(), ping.repeat(10)].concat()),
        (preface.len(), [preface.clone(), headers].concat()),
    ];
    let mut open: Vec<_> = (0..30)
        .map(|i| {
            let mut socket = TcpStream::connect(addr).unwrap();
            let (at_once, bytes) = &kinds[i % kinds.len()];
            socket.write_all(&bytes[..*at_once]).unwrap();
            socket.set_nonblocking(true).unwrap();
            (socket, *at_once, bytes)
        })
        .collect();
    let start = Instant::now();
    // The server gives such a connection 30 s.
    const PATIENCE: Duration = Duration::from_secs(45);
    while scene.server.connections() > own {
        assert!(start.elapsed() < PATIENCE, "{} connections are still open", scene.server.connections() - own);
        for (socket, at, bytes) in &mut open {
            let _ = socket.read(&mut [0; 1024]);
            let _ = socket.write(&[bytes[*at % bytes.len()]]);
            *at += 1;
        }
        scene.unharmed(7);
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("closed after {:?}", start.elapsed());
}
