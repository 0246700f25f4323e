//! Attention: what it costs, by count, of prompts on tensor cores and of tokens; and that sequences in one tile have nothing of one another.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use bytes::Bytes;
use common::*;
use outboard_core::op::FlashAttn;
use outboard_core::{DType, Device, GraphBuilder};
use outboard_cuda_emulator::{Counts, Launched};

const BLOCK: usize = 128;
/// Two heads share keys and values.
const HEADS: usize = 2;
/// f16 numbers: 1, and none.
const ONE: u16 = 0x3c00;
const NAN: u16 = 0x7e00;

/// A prompt over a paged cache whose sequences have so many blocks each, one behind the other.
struct Prompt {
    d: usize,
    blocks: usize,
    seqs: Vec<i32>,
    pos: Vec<i32>,
    window: usize,
    /// A block of the table that is none.
    missing: Option<usize>,
    /// Values of each sequence, all alike.
    values: Vec<u16>,
}

impl Prompt {
    /// The result, and what the launches of a kernel counted.
    fn run(&self, device: &dyn Device, kernel: &str) -> (Vec<f32>, Vec<Launched>) {
        let (n, seqs) = (self.pos.len(), self.values.len());
        let rows = seqs * self.blocks * BLOCK;
        let mut g = GraphBuilder::new();
        let q = g.input("q", DType::F32, &[self.d, n, HEADS]).unwrap();
        let [k, v] = ["k", "v"].map(|name| g.input(name, DType::F16, &[self.d, rows, 1]).unwrap());
        let pos = g.input("pos", DType::I32, &[n]).unwrap();
        let table = g.input("table", DType::I32, &[self.blocks, seqs]).unwrap();
        let of = g.input("seqs", DType::I32, &[n]).unwrap();
        let op = FlashAttn { scale: 0.1, window: self.window, softcap: 0.0, block: BLOCK };
        let out = g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(of)]).unwrap();
        g.output(out);
        let (executable, places) = compile(device, g.finish().unwrap()).unwrap();
        let queue = device.queue().unwrap();
        let write = |id: outboard_core::TensorId, bytes: Vec<u8>| {
            queue.write(places[id.index()].as_ref().unwrap(), Bytes::from(bytes)).unwrap();
        };
        let ints = |ints: &[i32]| ints.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<_>>();
        write(q, (0..self.d * n * HEADS).flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes()).collect());
        write(k, (0..self.d * rows).flat_map(|i| [0, 0x30 + (i % 11) as u8]).collect());
        let of_row = |row: usize| self.values[row / BLOCK / self.blocks];
        write(v, (0..rows).flat_map(|row| of_row(row).to_le_bytes().repeat(self.d)).collect());
        let block = |i| if self.missing == Some(i) { 99 } else { i as i32 };
        write(table, ints(&(0..seqs * self.blocks).map(block).collect::<Vec<_>>()));
        write(pos, ints(&self.pos));
        write(of, ints(&self.seqs));
        emulator().forget();
        queue.execute(&executable).unwrap();
        let result = read(queue.as_ref(), places[out.index()].as_ref().unwrap());
        queue.finish(LONG).unwrap();
        (result.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(), emulator().launches(kernel))
    }
}

fn tiles_of(d: usize) -> String {
    format!("flash_attn_tiles_{d}")
}

/// Of a token, each key and value that it sees is read once for the heads that share it.
#[test]
fn a_token_reads_what_it_sees_once() {
    let _alone = alone();
    let device = device(LONG);
    for d in [64, 128] {
        let blocks = 8;
        let seen = blocks * BLOCK / 2;
        let token = Prompt {
            d,
            blocks,
            seqs: vec![0],
            pos: vec![seen as i32 - 1],
            window: 0,
            missing: None,
            values: vec![ONE],
        };
        let (result, launches) = token.run(device.as_ref(), "");
        assert!(result.iter().all(|x| (x - 1.0).abs() < 1e-3), "{result:?}");
        let few = launches.iter().find(|launch| launch.kernel.starts_with("flash_attn_few")).unwrap();
        let (wanted, loaded) = (few.counts.load_bytes, 32 * few.counts.load_sectors);
        // Each part of the keys reads the query, and where they are.
        let (cache, others) = ((2 * 2 * d * seen) as u64, u64::from(few.grid[0]) * (HEADS * d * 4) as u64);
        println!("{d}: {wanted} of {loaded} bytes for {cache} + {others}");
        assert!((cache..(cache + others) * 21 / 20).contains(&wanted), "reads {wanted} bytes for {cache} + {others}");
        assert!(loaded < wanted * 11 / 10, "wastes sectors: {loaded} bytes for {wanted}");
        assert_eq!([few.counts.bank_conflicts, few.counts.local_requests], [0, 0]);
    }
}

#[test]
fn a_prompt_on_tensor_cores() {
    let _alone = alone();
    let device = device(LONG);
    counts_are_few(device.as_ref());
    sequences_are_apart(device.as_ref());
    what_no_query_sees_may_be_missing(device.as_ref());
}

/// Of keys that are seen each is read once for a tile, and nothing waits for a bank.
fn counts_are_few(device: &dyn Device) {
    for d in [64, 128] {
        let (queries, blocks) = (96, 8);
        // Half of the keys are seen.
        let first = (blocks * BLOCK / 2 - queries) as i32;
        let pos = (0..queries as i32).map(|i| first + i).collect();
        let prompt = Prompt { d, blocks, seqs: vec![0; queries], pos, window: 0, missing: None, values: vec![ONE] };
        let (result, launches) = prompt.run(device, &tiles_of(prompt.d));
        assert!(result.iter().all(|x| (x - 1.0).abs() < 1e-3), "{result:?}");
        let sum = |of: fn(&Counts) -> u64| launches.iter().map(|launch| of(&launch.counts)).sum::<u64>();
        let (tiles, seen) = ((queries * HEADS).div_ceil(64), blocks * BLOCK / 2);
        let parts = launches[0].grid[0] as usize / tiles;
        let (cache, others) = ((tiles * seen * d * 4) as u64, (parts * queries * HEADS * d * 4) as u64);
        let products = (tiles * 64 * seen * d * 2) as u64;
        let [wanted, loaded, multiplied] =
            [sum(|c| c.load_bytes), sum(|c| 32 * c.load_sectors), sum(|c| c.mma_products)];
        println!("{d}: {wanted} of {loaded} bytes for {cache} + {others}, {multiplied} of {products} products");
        assert!(wanted < (cache + others) * 21 / 20, "reads more than is seen");
        assert!(loaded < wanted * 21 / 20, "wastes sectors");
        assert!((products * 8 / 10..=products).contains(&multiplied), "multiplies what is not seen");
        assert_eq!([sum(|c| c.bank_conflicts), sum(|c| c.local_requests)], [0, 0]);
    }
}

/// Values that are no numbers are those of their sequence alone, although a warp has queries of several.
fn sequences_are_apart(device: &dyn Device) {
    let seqs: Vec<i32> = (0..20).map(|i| i % 2).collect();
    let pos: Vec<i32> = (0..20).map(|i| 100 + 3 * i).collect();
    let prompt =
        |values| Prompt { d: 64, blocks: 2, seqs: seqs.clone(), pos: pos.clone(), window: 0, missing: None, values };
    let (result, _) = prompt(vec![ONE, NAN]).run(device, "");
    for (i, of_query) in result.chunks(64 * HEADS).enumerate() {
        let is_right = |x: &f32| if seqs[i] == 0 { (x - 1.0).abs() < 1e-3 } else { x.is_nan() };
        assert!(of_query.iter().all(is_right), "query {i}: {of_query:?}");
    }
}

/// Between the windows of queries that are far from one another, no block is looked up.
fn what_no_query_sees_may_be_missing(device: &dyn Device) {
    let pos = (0..20).map(|i| if i % 2 == 0 { i } else { 300 + i }).collect();
    let prompt = Prompt { d: 64, blocks: 3, seqs: vec![0; 20], pos, window: 10, missing: Some(1), values: vec![ONE] };
    let (result, launches) = prompt.run(device, &tiles_of(prompt.d));
    assert!(launches.len() == 1 && result.iter().all(|x| (x - 1.0).abs() < 1e-3), "{result:?}");
}
