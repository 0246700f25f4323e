//! What a sequence gets from ops that serve several: bit by bit the same alone and among others, and wherever its blocks lie.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_backends::{DeviceSpec, known, local_devices};
use outboard_core::op::{BLOCK_ROWS, FlashAttn, Penalties, Penalty, Sample, Sampler};
use outboard_core::{DType, Device, GraphBuilder, Host, TensorId};
use outboard_scheduler::{Hints, Scheduler, SchedulerOptions};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A graph of inputs, each with its bytes, and one node.
#[derive(Default)]
struct Inputs {
    g: GraphBuilder,
    bytes: Vec<(TensorId, Bytes)>,
}

impl Inputs {
    fn floats(&mut self, name: &str, ne: &[usize], values: Vec<f32>) -> TensorId {
        self.add(name, DType::F32, ne, values.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    fn ints(&mut self, name: &str, ne: &[usize], values: Vec<i32>) -> TensorId {
        self.add(name, DType::I32, ne, values.into_iter().flat_map(i32::to_le_bytes).collect())
    }

    fn add(&mut self, name: &str, dtype: DType, ne: &[usize], bytes: Vec<u8>) -> TensorId {
        let id = self.g.input(name, dtype, ne).unwrap();
        self.bytes.push((id, bytes.into()));
        id
    }

    /// The result's rows of `row` bytes.
    fn run(mut self, device: &Arc<dyn Device>, result: TensorId, row: usize) -> Vec<Vec<u8>> {
        self.g.output(result);
        let mut scheduler = Scheduler::new(vec![device.clone()], SchedulerOptions::default()).unwrap();
        let plan = scheduler.plan(Arc::new(self.g.finish().unwrap()), &Hints::default()).unwrap();
        let program = scheduler.prepare(plan, &HashMap::new()).unwrap();
        scheduler.run(&program, &self.bytes).unwrap();
        let bytes = scheduler.read(&program, result).unwrap().wait(std::time::Duration::from_secs(60)).unwrap();
        bytes.chunks(row).map(<[u8]>::to_vec).collect()
    }
}

/// Numbers between -1 and 1 that a place in some tensor always has.
fn noise(seed: usize, at: usize) -> f32 {
    let mixed = (seed * 7919 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as f32 / (1u64 << 23) as f32) - 1.0
}

/// All that have the op, but ggml's, which adds in the order of the memory.
fn devices(op: &str) -> Vec<Arc<dyn Device>> {
    let mut devices = local_devices(&Host::new(), &DeviceSpec::all(), None, None).unwrap();
    devices.retain(|device| device.info().backend != "ggml" && !known(device.info()).unsupported.contains(&op));
    devices
}

const D: usize = 64;
const HEADS: usize = 2;
const BLOCKS: usize = 3;

/// Attention of sequences to their own keys, in blocks of the cache that are dealt out from `first` on, backwards. Tokens are given by
/// sequence and position.
fn attend(device: &Arc<dyn Device>, tokens: &[(usize, usize)], first: usize) -> Vec<Vec<u8>> {
    let mut seqs: Vec<usize> = tokens.iter().map(|t| t.0).collect();
    seqs.dedup();
    let n_blocks = 16;
    let block_of = |seq: usize, i: usize| {
        let slot = seqs.iter().position(|s| *s == seq).unwrap();
        (first + n_blocks - 1 - (slot * BLOCKS + i)) % n_blocks
    };
    let rows = n_blocks * BLOCK_ROWS;
    // What no sequence uses is no number.
    let cache = |seed: usize| {
        let mut cache = vec![f32::NAN; HEADS * rows * D];
        for &seq in &seqs {
            for (head, position) in (0..HEADS).flat_map(|h| (0..BLOCKS * BLOCK_ROWS).map(move |p| (h, p))) {
                let row = head * rows + block_of(seq, position / BLOCK_ROWS) * BLOCK_ROWS + position % BLOCK_ROWS;
                for (e, v) in cache[row * D..][..D].iter_mut().enumerate() {
                    *v = noise(seed + seq, (head * 4096 + position) * D + e);
                }
            }
        }
        cache
    };
    let n = tokens.len();
    let query =
        |h: usize| tokens.iter().flat_map(move |(s, p)| (0..D).map(move |e| noise(90 + s, (h * 4096 + p) * D + e)));
    let table = seqs.iter().flat_map(|&seq| (0..BLOCKS).map(move |i| (seq, i))).map(|(s, i)| block_of(s, i) as i32);
    let mut inputs = Inputs::default();
    let q = inputs.floats("q", &[D, n, 2 * HEADS], (0..2 * HEADS).flat_map(query).collect());
    let k = inputs.floats("k", &[D, rows, HEADS], cache(10));
    let v = inputs.floats("v", &[D, rows, HEADS], cache(20));
    let pos = inputs.ints("pos", &[n], tokens.iter().map(|t| t.1 as i32).collect());
    let table = inputs.ints("table", &[BLOCKS, seqs.len()], table.collect());
    let column = |t: &(usize, usize)| seqs.iter().position(|s| *s == t.0).unwrap() as i32;
    let seqs = inputs.ints("seqs", &[n], tokens.iter().map(column).collect());
    let op = FlashAttn { scale: 0.125, window: 0, softcap: 0.0, block: BLOCK_ROWS };
    let srcs = [Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)];
    let attended = inputs.g.push_opt(op, &srcs).unwrap();
    inputs.run(device, attended, 4 * D * 2 * HEADS)
}

#[test]
fn attention_of_a_sequence_does_not_depend_on_others_nor_on_where_its_blocks_lie() {
    let chunk = |seq: usize, positions: Range<usize>| positions.map(move |p| (seq, p)).collect::<Vec<_>>();
    let sequences = [chunk(0, 300..301), chunk(1, 100..140), chunk(2, 0..1), chunk(3, 127..128), chunk(4, 250..260)];
    let all = sequences.concat();
    for device in devices("FLASH_ATTN_EXT") {
        let mut together = attend(&device, &all, 0).into_iter();
        for tokens in &sequences {
            let alone = attend(&device, tokens, 5);
            let among: Vec<_> = together.by_ref().take(tokens.len()).collect();
            assert!(alone == among, "{}: {tokens:?}", device.info().id);
        }
    }
}

#[test]
fn a_draw_does_not_depend_on_those_beside_it() {
    const N: usize = 500;
    let samplers = [
        Sampler::GREEDY,
        Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 1 },
        Sampler { temperature: 3.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: u64::MAX },
        Sampler { temperature: 3.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 },
    ];
    let penalties = Penalties { last_n: 9, repeat: 1.3, frequency: 0.2, presence: 0.1 };
    let draw = |device: &Arc<dyn Device>, rows: Range<usize>| {
        let (n, mut inputs) = (rows.len(), Inputs::default());
        let logits = rows.clone().flat_map(|r| (0..N).map(move |i| 4.0 * noise(r, i)));
        let x = inputs.floats("logits", &[N, n], logits.collect());
        let history = inputs.ints("history", &[32], (0..32).map(|i| i * 7 % N as i32).collect());
        let steps = inputs.ints("steps", &[n], rows.clone().map(|r| 5 * r as i32).collect());
        let params = inputs.floats("penalties", &[4, n], rows.clone().flat_map(|_| penalties.params()).collect());
        let x = inputs.g.push(Penalty { block: 0 }, &[x, history, steps, params]).unwrap();
        let params = inputs.floats("params", &[4, n], rows.clone().flat_map(|r| samplers[r].params()).collect());
        let draws = rows.flat_map(|r| samplers[r].draw_of(100 + r as i32));
        let draws = inputs.ints("draws", &[3, n], draws.collect());
        let ids = inputs.g.push(Sample, &[x, params, draws]).unwrap();
        inputs.run(device, ids, 4)
    };
    let mut drawn = Vec::new();
    for device in devices("SAMPLE") {
        let together = draw(&device, 0..samplers.len());
        for (row, id) in together.iter().enumerate() {
            assert_eq!(draw(&device, row..row + 1), std::slice::from_ref(id), "{}: row {row}", device.info().id);
        }
        drawn.push(together);
    }
    assert!(drawn.windows(2).all(|two| two[0] == two[1]), "every device draws the same: {drawn:?}");
}
