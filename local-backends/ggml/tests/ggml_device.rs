//! ggml's CPU device through the contract, where [`VARIABLE`](outboard_ggml::VARIABLE) names its libraries; without them a line says so. That it
//! computes what it has to is a matter of `local-backends/tests/conformance.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::{
    Argsort, Cast, Cpy, FlashAttn, GetRows, MulMat, MulMatId, Order, Rope, RopeMode, SetRows, SoftMax, View,
};
use outboard_core::{DType, Device, Error, Graph, GraphBuilder, Host, Placement, Slice, TensorId, Usage};
use outboard_ggml::{Library, OpenError, VARIABLE, find, open};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(30);

/// ggml's CPU device; `None`, with a line, without ggml.
fn cpu() -> Option<Arc<LocalDevice>> {
    let Some(found) = find().iter().find(|device| device.name == "CPU") else {
        assert!(std::env::var_os(VARIABLE).is_none(), "no CPU device in {VARIABLE}");
        println!("skipped: {VARIABLE} does not name ggml's libraries");
        return None;
    };
    Some(open(&Host::new(), found, "ggml:CPU", 2, &MemoryBudget::new(Some(1 << 30))))
}

#[test]
fn memory_is_zeroed_written_filled_copied_and_paid_for() {
    let Some(device) = cpu() else { return };
    let queue = device.queue().unwrap();
    let before = device.memory().unwrap().free;
    let buffer = device.alloc(1001, Usage::Any).unwrap();
    let other = device.alloc(3 << 20, Usage::Any).unwrap();
    assert!(device.memory().unwrap().free <= before - (3 << 20));
    let part = |b: &Arc<_>, offset, len| Slice::new(Arc::clone(b), offset, len).unwrap();
    assert!(queue.read(&Slice::whole(buffer.clone())).unwrap().wait(WAIT).unwrap().iter().all(|&b| b == 0));
    queue.write(&part(&buffer, 3, 5), Bytes::from_static(b"hello")).unwrap();
    queue.copy(&part(&buffer, 2, 7), &part(&other, 1, 7)).unwrap();
    queue.copy(&part(&other, 1, 7), &part(&other, 1, 7)).unwrap();
    queue.copy(&part(&other, 1, 7), &part(&buffer, 994, 7)).unwrap();
    assert_eq!(queue.read(&part(&buffer, 993, 8)).unwrap().wait(WAIT).unwrap(), &b"\0\0hello\0"[..]);
    // More than one piece.
    queue.fill(&part(&other, 7, (3 << 20) - 8), 9).unwrap();
    let all = queue.read(&Slice::whole(other.clone())).unwrap().wait(WAIT).unwrap();
    assert_eq!((&all[..8], all[(3 << 20) - 2], all[(3 << 20) - 1]), (&b"\0\0hello\x09"[..], 9, 0));
    assert!(all[8..(3 << 20) - 1].iter().all(|&b| b == 9));
    assert_eq!(device.alloc(0, Usage::Any).unwrap().size(), 0);
    assert!(matches!(device.alloc(2 << 30, Usage::Any), Err(Error::OutOfMemory { .. })));
    drop((queue, buffer, other));
    assert_eq!(device.memory().unwrap().free, before);
}

/// Places for all roots in one buffer.
fn placed(device: &dyn Device, graph: &Graph) -> (Slice, Vec<Option<Slice>>) {
    let whole = Slice::whole(device.alloc(4096, Usage::Any).unwrap());
    let place = |i: usize| whole.part(256 * i as u64, 256).unwrap();
    let slices = graph.ids().map(|id| (graph.tensor(id).root() == id).then(|| place(id.index()))).collect();
    (whole, slices)
}

/// `table`, of which row `ids[0]` is set to 7, and then row `ids[1]` read.
fn set_and_get() -> Graph {
    let mut g = GraphBuilder::new();
    let table = g.state("table", DType::F32, &[4, 5]).unwrap();
    let row = g.input("row", DType::F32, &[4, 1]).unwrap();
    let at = g.input("at", DType::I32, &[1]).unwrap();
    let from = g.input("from", DType::I32, &[1]).unwrap();
    let table = g.push(SetRows, &[table, row, at]).unwrap();
    let out = g.push(GetRows, &[table, from]).unwrap();
    g.output(out);
    g.finish().unwrap()
}

#[test]
fn a_row_that_is_not_there_is_an_error_and_nothing_is_written() {
    let Some(device) = cpu() else { return };
    let graph = Arc::new(set_and_get());
    let (whole, slices) = placed(device.as_ref(), &graph);
    let [table, row, at, from, out] = [0, 1, 2, 3, 5].map(|i| slices[i].clone().unwrap());
    let placement = Placement::new(&graph, device.as_ref(), slices).unwrap();
    let executable = device.compile(graph, placement).unwrap();
    let int = |i: i32| Bytes::copy_from_slice(&i.to_le_bytes());
    for (set, get, fails) in
        [(4, 4, None), (5, 0, Some("SET_ROWS")), (-1, 0, Some("SET_ROWS")), (0, 5, Some("GET_ROWS"))]
    {
        let queue = device.queue().unwrap();
        queue.fill(&whole, 0).unwrap();
        queue.write(&row.part(0, 16).unwrap(), [7.0f32; 4].iter().flat_map(|v| v.to_le_bytes()).collect()).unwrap();
        queue.write(&at.part(0, 4).unwrap(), int(set)).unwrap();
        queue.write(&from.part(0, 4).unwrap(), int(get)).unwrap();
        queue.execute(&executable).unwrap();
        let done = queue.read(&out.part(0, 4).unwrap()).unwrap().wait(WAIT);
        match (fails, done) {
            (None, done) => assert_eq!(done.unwrap(), &7.0f32.to_le_bytes()[..]),
            (Some(op), Err(Error::Device { op: Some(named), detail, .. })) => {
                assert!(named.contains(op) && detail.contains("outside 0..5 rows"), "{named}: {detail}");
                let table = device.queue().unwrap().read(&table).unwrap().wait(WAIT).unwrap();
                assert!(table.iter().all(|&b| b == 0));
            }
            (_, other) => panic!("{set} {get}: {other:?}"),
        }
    }
}

/// Attention over a cache of so many rows, with blocks of 128 by a table or without.
fn attention(rows: usize, is_paged: bool) -> Graph {
    let mut g = GraphBuilder::new();
    let q = g.input("q", DType::F32, &[64, 2, 2]).unwrap();
    let [k, v] = ["k", "v"].map(|name| g.state(name, DType::F32, &[64, rows, 1]).unwrap());
    let pos = g.input("pos", DType::I32, &[2]).unwrap();
    let table = g.state("table", DType::I32, &[rows / 128, 1]).unwrap();
    let seqs = g.input("seqs", DType::I32, &[2]).unwrap();
    let op = FlashAttn { scale: 0.125, window: 0, softcap: 0.0, block: if is_paged { 128 } else { 0 } };
    let [table, seqs] = [table, seqs].map(|id| is_paged.then_some(id));
    let out = g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, table, seqs]).unwrap();
    g.output(out);
    g.finish().unwrap()
}

/// Whatever part of the cache attention looks at, it has the rows that queries see, and what is behind them may be anything.
#[test]
fn attention_looks_at_the_rows_that_are_used() {
    let Some(device) = cpu() else { return };
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    for is_paged in [false, true] {
        let graph = Arc::new(attention(2048, is_paged));
        let run = |device: &dyn Device, last: i32, block: i32, garbage: usize| -> Vec<f32> {
            let place = |id| Slice::whole(device.alloc(graph.tensor(id).layout().span() as u64, Usage::Any).unwrap());
            let places: Vec<Slice> = graph.ids().map(place).collect();
            let slices = places.iter().cloned().map(Some).collect();
            let placement = Placement::new(&graph, device, slices).unwrap();
            let executable = device.compile(graph.clone(), placement).unwrap();
            let queue = device.queue().unwrap();
            let value = |i: usize| if i / 64 < garbage { (i / 64 * 31 % 17) as f32 * 0.1 - 0.8 } else { f32::NAN };
            let cache: Bytes = (0..64 * 2048).flat_map(|i| value(i).to_le_bytes()).collect();
            let ints = |values: &[i32]| -> Bytes { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
            let table: Vec<i32> = (0..16).map(|b| if b == 0 { block } else { 15 }).collect();
            let x: Bytes = (0..256).flat_map(|i| (i as f32 * 0.01 - 1.0).to_le_bytes()).collect();
            let values = [x, cache.clone(), cache, ints(&[0, last]), ints(&table), ints(&[0, 0])];
            // Again and again, as a text goes on.
            for _ in 0..3 {
                places.iter().zip(&values).for_each(|(place, data)| queue.write(place, data.clone()).unwrap());
                queue.execute(&executable).unwrap();
            }
            let out = queue.read(places.last().unwrap()).unwrap().wait(WAIT).unwrap();
            out.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        for (last, block, garbage) in [(3, 0, 512), (127, 3, 512), (3, 4, 768), (90, 11, 1536)] {
            // Without a table, the position is the row.
            let last = if is_paged { last } else { 128 * block + last };
            let got = run(device.as_ref(), last, block, garbage);
            let want = run(reference.as_ref(), last, block, 2048);
            let far = got.iter().zip(&want).find(|(a, b)| a.is_nan() || (*a - *b).abs() > 1e-3);
            assert!(far.is_none(), "{is_paged}, {last} of block {block}: {far:?}");
        }
    }
}

/// Queries that see a block of the cache millions of times: the host looks at all of them, as long as somebody wants that.
#[test]
fn long_tables_are_looked_at_while_that_is_wanted() {
    let Some(device) = cpu() else { return };
    let (blocks, tokens) = (1 << 22, 20_000);
    let mut g = GraphBuilder::new();
    let q = g.input("q", DType::F32, &[64, tokens, 1]).unwrap();
    let [k, v] = ["k", "v"].map(|name| g.state(name, DType::F16, &[64, 512, 1]).unwrap());
    let pos = g.input("pos", DType::I32, &[tokens]).unwrap();
    let table = g.state("table", DType::I32, &[blocks, 1]).unwrap();
    let seqs = g.input("seqs", DType::I32, &[tokens]).unwrap();
    let op = FlashAttn { scale: 0.125, window: 0, softcap: 0.0, block: 128 };
    g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)]).unwrap();
    let graph = Arc::new(g.finish().unwrap());
    let place = |id| Slice::whole(device.alloc(graph.tensor(id).layout().span() as u64, Usage::Any).unwrap());
    let places: Vec<Slice> = graph.ids().map(place).collect();
    let placement = Placement::new(&graph, device.as_ref(), places.iter().cloned().map(Some).collect()).unwrap();
    let executable = device.compile(graph, placement).unwrap();
    let queue = device.queue().unwrap();
    let last = (blocks * 128 - 1) as i32;
    queue.write(&places[pos.index()], last.to_le_bytes().repeat(tokens).into()).unwrap();
    queue.execute(&executable).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    drop(queue);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Products one behind the other that take seconds.
fn long() -> Graph {
    let mut g = GraphBuilder::new();
    let w = g.weight("w", DType::F32, &[2048, 2048]).unwrap();
    let mut x = g.input("x", DType::F32, &[2048, 512]).unwrap();
    for _ in 0..100 {
        x = g.push(MulMat, &[w, x]).unwrap();
    }
    g.output(x);
    g.finish().unwrap()
}

#[test]
fn others_write_allocate_and_compile_while_a_graph_runs() {
    let Some(device) = cpu() else { return };
    let graph = Arc::new(long());
    let bytes = |id| graph.tensor(id).layout().span() as u64;
    let place = |id| Some(Slice::whole(device.alloc(bytes(id), Usage::Any).unwrap()));
    let placement = Placement::new(&graph, device.as_ref(), graph.ids().map(place).collect()).unwrap();
    let executable = device.compile(graph.clone(), placement).unwrap();
    let [busy, queue] = [(); 2].map(|()| device.queue().unwrap());
    let before = device.progress().unwrap();
    busy.execute(&executable).unwrap();
    let end = Instant::now() + WAIT;
    while device.progress().unwrap() == before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let small = Arc::new(set_and_get());
    let (whole, slices) = placed(device.as_ref(), &small);
    let placement = Placement::new(&small, device.as_ref(), slices).unwrap();
    device.compile(small, placement).unwrap();
    queue.write(&whole.part(0, 4).unwrap(), Bytes::from_static(b"here")).unwrap();
    assert_eq!(queue.read(&whole.part(0, 4).unwrap()).unwrap().wait(WAIT).unwrap(), &b"here"[..]);
    let done = device.progress().unwrap() - before;
    assert!((1..100).contains(&done), "{done} nodes");
}

#[test]
fn a_graph_that_runs_counts_its_nodes_and_stops_when_its_queue_is_dropped() {
    let Some(device) = cpu() else { return };
    let graph = Arc::new(long());
    let place = |id| Slice::whole(device.alloc(graph.tensor(id).layout().span() as u64, Usage::Any).unwrap());
    // Every second result lies where the one before the last did.
    let two = [2, 3].map(|i| place(graph.ids().nth(i).unwrap()));
    let slices = graph.ids().map(|id| Some(if id.index() < 2 { place(id) } else { two[id.index() % 2].clone() }));
    let placement = Placement::new(&graph, device.as_ref(), slices.collect()).unwrap();
    let executable = device.compile(graph.clone(), placement).unwrap();
    let queue = device.queue().unwrap();
    let start = Instant::now();
    queue.execute(&executable).unwrap();
    let (mut last, mut changes) = (device.progress(), 0);
    while changes < 3 {
        assert!(start.elapsed() < WAIT, "it computes nothing");
        std::thread::sleep(Duration::from_millis(1));
        changes += usize::from(std::mem::replace(&mut last, device.progress()) != last);
    }
    let done = queue.marker().unwrap();
    let dropped = Instant::now();
    drop(queue);
    assert!(done.wait(WAIT).is_err(), "it was done after {:?}", start.elapsed());
    assert!(dropped.elapsed() < Duration::from_secs(5), "it took {:?} to stop", dropped.elapsed());
}

#[test]
fn what_ggml_has_not_is_said_before_it_runs() {
    let Some(device) = cpu() else { return };
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[4, 5]).unwrap();
    let sorted = g.push(Argsort { order: Order::Ascending }, &[x]).unwrap();
    g.name(sorted, "order");
    let graph = Arc::new(g.finish().unwrap());
    assert_eq!(device.supports(&graph).unwrap().flags(), [true, false]);
    let (_, slices) = placed(device.as_ref(), &graph);
    let placement = Placement::new(&graph, device.as_ref(), slices).unwrap();
    let error = device.compile(graph, placement).unwrap_err().to_string();
    assert_eq!(error, "ggml:CPU does not support ARGSORT order");
}

/// Whether the device takes the last node of a graph.
fn takes(device: &dyn Device, make: impl FnOnce(&mut GraphBuilder) -> TensorId) -> bool {
    let mut g = GraphBuilder::new();
    let last = make(&mut g);
    g.output(last);
    device.supports(&g.finish().unwrap()).unwrap().contains(last)
}

/// Nobody pays for what ggml needs beside tensors, and a client says how large they are.
#[test]
fn what_ggml_would_need_much_memory_for_is_left_to_others() {
    let Some(device) = cpu() else { return };
    let takes = |make: &dyn Fn(&mut GraphBuilder) -> TensorId| takes(device.as_ref(), make);
    let f32 = |g: &mut GraphBuilder, name: &str, ne: &[usize]| g.input(name, DType::F32, ne).unwrap();
    for (columns, fits) in [(1 << 12, true), (1 << 14, false)] {
        let product = |g: &mut GraphBuilder| {
            let a = g.weight("a", DType::F16, &[4096, 1]).unwrap();
            let b = f32(g, "b", &[4096, columns]);
            g.push(MulMat, &[a, b]).unwrap()
        };
        assert_eq!(takes(&product), fits, "{columns} columns");
    }
    for (n, fits) in [(1 << 20, true), (1 << 24, false)] {
        let soft_max = |g: &mut GraphBuilder| {
            let x = f32(g, "x", &[n, 2]);
            g.push(SoftMax { scale: 1.0 }, &[x]).unwrap()
        };
        assert_eq!(takes(&soft_max), fits, "a softmax of {n}");
        let cast = |g: &mut GraphBuilder| {
            let x = f32(g, "x", &[n, 2]);
            g.push(Cast { dtype: DType::Q8_0 }, &[x]).unwrap()
        };
        assert_eq!(takes(&cast), fits, "a cast of {n}");
    }
    for (experts, fits) in [(128, true), (1 << 20, false)] {
        let product = |g: &mut GraphBuilder| {
            let a = g.weight("a", DType::F32, &[1, 1, experts]).unwrap();
            let (b, ids) = (f32(g, "b", &[1, 1, 1]), g.input("ids", DType::I32, &[1, 1]).unwrap());
            g.push(MulMatId, &[a, b, ids]).unwrap()
        };
        assert_eq!(takes(&product), fits, "{experts} experts");
    }
    for (d, fits) in [(128, true), (1 << 16, false)] {
        let attention = |g: &mut GraphBuilder| {
            let [q, k, v] = ["q", "k", "v"].map(|name| f32(g, name, &[d, 64, 1]));
            let op = FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 0 };
            g.push_opt(op, &[Some(q), Some(k), Some(v), None, None, None]).unwrap()
        };
        assert_eq!(takes(&attention), fits, "heads of {d}");
    }
}

/// Rows of blocks that do not begin at whole blocks, which its kernels round to some; a cap of logits without a mask, which they lay on what is
/// behind the last key.
#[test]
fn what_ggml_would_compute_wrongly_is_left_to_others() {
    let Some(device) = cpu() else { return };
    for (apart, fits) in [(34, true), (1, false)] {
        let product = |g: &mut GraphBuilder| {
            let root = g.weight("root", DType::Q8_0, &[32 * 200]).unwrap();
            let row = 8 * 34;
            let nb = [34, row + apart, 16 * (row + apart), 16 * (row + apart)];
            let a = g.push(View { ne: [256, 16, 1, 1], nb, offset: 0 }, &[root]).unwrap();
            let b = g.input("b", DType::F32, &[256, 4]).unwrap();
            g.push(MulMat, &[a, b]).unwrap()
        };
        assert_eq!(takes(device.as_ref(), product), fits, "{apart} bytes apart");
    }
    for (softcap, fits) in [(0.0, true), (5.0, false), (-5.0, false)] {
        let attention = |g: &mut GraphBuilder| {
            let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, DType::F32, &[64, 70, 1]).unwrap());
            let op = FlashAttn { scale: 1.0, window: 0, softcap, block: 0 };
            g.push_opt(op, &[Some(q), Some(k), Some(v), None, None, None]).unwrap()
        };
        assert_eq!(takes(device.as_ref(), attention), fits, "a cap of {softcap}");
    }
}

#[test]
fn a_folder_that_is_no_ggml_is_said_in_a_line() {
    let none = Library::open(Path::new("/nowhere"), None).unwrap_err();
    assert_eq!(none, OpenError::NoBase("/nowhere".into()));
    assert_eq!(none.to_string(), "/nowhere: there is no libggml-base in it, which llama.cpp installs");
    let folder = std::env::temp_dir().join(format!("outboard-ggml-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let base = folder.join(format!("{}ggml-base{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX));
    std::fs::write(&base, "no library").unwrap();
    let error = Library::open(&folder, None).unwrap_err();
    assert!(matches!(&error, OpenError::Load { file, .. } if *file == base), "{error}");
    let error = Library::open(&base, None).unwrap_err().to_string();
    assert!(error.ends_with("this is a file, not the folder of libggml-base, which llama.cpp installs"), "{error}");
    let other = base.with_extension("so.0.23.0");
    std::fs::write(&other, "no library either").unwrap();
    let error = Library::open(&folder, None).unwrap_err();
    assert!(matches!(&error, OpenError::TwoBases { .. }) && error.to_string().contains("two versions"), "{error}");
    // Two names of one file are usual.
    #[cfg(unix)]
    {
        std::fs::remove_file(&other).unwrap();
        std::os::unix::fs::symlink(&base, &other).unwrap();
        assert!(matches!(Library::open(&folder, None).unwrap_err(), OpenError::Load { .. }));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_lacks_functions_is_said_with_their_names() {
    // One that every process of Rust has.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let other = maps.split_whitespace().find(|word| word.contains("/libgcc_s.so")).unwrap();
    let folder = std::env::temp_dir().join(format!("outboard-ggml-lacks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(other, folder.join("libggml-base.so")).unwrap();
    let error = Library::open(&folder, None).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(&error, OpenError::Missing { missing, .. } if missing.0.len() > 80), "{error}");
    assert!(error.to_string().contains("libggml-base.so: it lacks ggml_version, ggml_log_set, "), "{error}");
}

/// Whether the device says that it computes the last node of a graph.
fn supported(device: &dyn Device, g: GraphBuilder) -> bool {
    let graph = g.finish().unwrap();
    *device.supports(&graph).unwrap().flags().last().unwrap()
}

fn view(ne: [usize; 4], nb: [usize; 4]) -> View {
    View { ne, nb, offset: 0 }
}

// What follows ended ggml, or wrote where it must not, before it was refused.

#[test]
fn products_over_nothing_of_parts_of_something_are_refused() {
    let Some(device) = cpu() else { return };
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[64]).unwrap();
    let a = g.push(view([0, 4, 2, 1], [4, 4, 16, 32]), &[x]).unwrap();
    let b = g.push(view([0, 4, 3, 1], [4, 4, 16, 64]), &[x]).unwrap();
    g.push(MulMat, &[a, b]).unwrap();
    assert!(!supported(device.as_ref(), g));
}

#[test]
fn blocks_that_a_stride_repeats_are_refused() {
    let Some(device) = cpu() else { return };
    let mut g = GraphBuilder::new();
    let w = g.weight("w", DType::Q4_0, &[32]).unwrap();
    let x = g.input("x", DType::F32, &[32, 1]).unwrap();
    let repeated = g.push(view([32, 4, 1, 1], [18, 0, 0, 0]), &[w]).unwrap();
    g.push(MulMat, &[repeated, x]).unwrap();
    assert!(!supported(device.as_ref(), g));
}

#[test]
fn rope_has_a_factor_for_every_pair_of_a_row() {
    let Some(device) = cpu() else { return };
    for (width, factors, can) in [(64, 32, true), (64, 1, false), (65, 33, false)] {
        let mut g = GraphBuilder::new();
        let x = g.input("x", DType::F32, &[width, 1, 1]).unwrap();
        let pos = g.input("pos", DType::I32, &[1]).unwrap();
        let factors = g.input("factors", DType::F32, &[factors]).unwrap();
        let rope = Rope {
            mode: RopeMode::Neox,
            n_dims: if can { 64 } else { 2 },
            n_ctx_orig: 0,
            freq_base: 10000.0,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        g.push(rope, &[x, pos, factors]).unwrap();
        assert_eq!(supported(device.as_ref(), g), can, "{width}");
    }
}

/// A product with so many experts, by ids that lie in so many numbers.
fn experts(experts: usize, ids: &[usize], numbers: Option<usize>) -> GraphBuilder {
    let mut g = GraphBuilder::new();
    let w = g.weight("w", DType::F32, &[1, 1, experts]).unwrap();
    let x = g.input("x", DType::F32, &[1, 1, ids[1]]).unwrap();
    let ids = match numbers {
        None => g.input("ids", DType::I32, ids).unwrap(),
        Some(numbers) => {
            let all = g.input("ids", DType::I32, &[numbers]).unwrap();
            g.push(view([ids[0], ids[1], 1, 1], [4, 4, 4, 4]), &[all]).unwrap()
        }
    };
    g.push(MulMatId, &[w, x, ids]).unwrap();
    g
}

#[test]
fn ids_of_experts_do_not_take_memory_that_nobody_has_paid_for() {
    let Some(device) = cpu() else { return };
    assert!(supported(device.as_ref(), experts(4, &[8, 16], None)));
    // A list for each of a million experts.
    assert!(!supported(device.as_ref(), experts(1 << 20, &[1, 1 << 10], None)));
    // Ids that share their bytes.
    assert!(!supported(device.as_ref(), experts(4, &[64, 1 << 10], Some(2048))));
}

#[test]
fn rows_that_32_bits_do_not_count_are_refused() {
    let Some(device) = cpu() else { return };
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[64]).unwrap();
    let q = g.push(view([0, 1 << 20, 3 << 10, 1], [4, 0, 0, 0]), &[x]).unwrap();
    let k = g.push(view([0, 1, 1, 1], [4, 0, 0, 0]), &[x]).unwrap();
    let v = g.push(view([1, 1, 1, 1], [4, 4, 4, 4]), &[x]).unwrap();
    g.push(FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 0 }, &[q, k, v]).unwrap();
    assert!(!supported(device.as_ref(), g));
}

#[test]
fn blocks_are_not_taken_apart_into_strides() {
    let Some(device) = cpu() else { return };
    for (nb, can) in [([4, 128, 0, 0], true), ([16, 4, 0, 0], false)] {
        let mut g = GraphBuilder::new();
        let w = g.weight("w", DType::Q4_0, &[32, 4]).unwrap();
        let all = g.input("all", DType::F32, &[128]).unwrap();
        let to = g.push(view([32, 4, 1, 1], [nb[0], nb[1], 512, 512]), &[all]).unwrap();
        g.push(Cpy, &[w, to]).unwrap();
        assert_eq!(supported(device.as_ref(), g), can, "{nb:?}");
    }
}
