//! What products cost, by count: those with one column, where decoding spends its time, and tiles on tensor cores, where prompts do. The tables
//! are committed; `OUTBOARD_UPDATE_GOLDEN=1` writes them anew.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::op::MulMat;
use outboard_core::{DType, Device, GraphBuilder};
use outboard_cuda_emulator::{Counts, Kind, Launched};
use std::fmt::Write;
use std::path::Path;

/// If it says something, the table is written.
const UPDATE: &str = "OUTBOARD_UPDATE_GOLDEN";
/// Length of a row, as in a model of 8B, and some rows of many, enough to keep the emulator's card busy: what a row costs does not depend on how many
/// there are.
const LENGTH: usize = 4096;
const ROWS: usize = 256;
/// Bytes of a column as blocks.
const PACKED: usize = LENGTH + LENGTH / 4;
/// Columns and rows of a product that is computed in large tiles, of 128 each.
const COLUMNS: usize = 128;
const ROWS_OF_TILES: usize = 512;
/// Cycles in which a quarter of a multiprocessor does one product of 16 rows, 8 columns and 16 elements on its tensor core: 2048 multiply-adds, at the
/// published rates of f16 with sums in f32 (A100: 312 TFLOP/s, 108 multiprocessors, 1.41 GHz; H100: 989, 132, 1.83, of which `mma.sync` reaches
/// 63 % (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024); RTX 4090: 165, 128, 2.52).
const CYCLES: [(&str, f64); 3] = [("A100", 8.0), ("H100", 6.3), ("RTX 4090", 32.0)];

/// Instructions of warps that cards issue in the time that memory takes for a byte: multiprocessors, with four a cycle each, and bandwidth as published
/// (RTX 4090: 128, 2.52 GHz, 1.008 TB/s; H100: 132, 1.83 GHz, 3.35 TB/s).
const OF_BYTE: [(&str, f64); 2] = [("RTX 4090", 1.28), ("H100", 0.288)];

/// What the launches of a product of so many rows and columns counted.
fn product(device: &dyn Device, dtype: DType, rows: usize, columns: usize) -> Vec<Launched> {
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", dtype, &[LENGTH, rows]).unwrap();
    let columns = g.input("columns", DType::F32, &[LENGTH, columns]).unwrap();
    let product = g.push(MulMat, &[weights, columns]).unwrap();
    g.output(product);
    let (executable, _places) = compile(device, g.finish().unwrap()).unwrap();
    let queue = device.queue().unwrap();
    emulator().forget();
    queue.execute(&executable).unwrap();
    queue.finish(LONG).unwrap();
    emulator().launches("")
}

fn sum(launches: &[Launched], of: fn(&Counts) -> u64) -> u64 {
    launches.iter().map(|launch| of(&launch.counts)).sum()
}

/// Bytes of the sectors that are read, to those of weights and of the column, which as blocks is written and read once more.
fn times_read(launches: &[Launched], weights: f64) -> f64 {
    let packed = if launches.len() > 1 { PACKED } else { 0 };
    32.0 * sum(launches, |c| c.load_sectors) as f64 / (weights + (4 * LENGTH + packed) as f64)
}

/// The same of weights: without the column's bytes, which each block of threads reads from a cache.
fn times_weights_read(launches: &[Launched], weights: f64) -> f64 {
    let product = launches.last().unwrap();
    let column = if launches.len() > 1 { PACKED } else { 4 * LENGTH };
    (32.0 * product.counts.load_sectors as f64 - (product.grid[0] as usize * column) as f64) / weights
}

/// A row of the table.
fn line(device: &dyn Device, dtype: DType) -> String {
    let launches = product(device, dtype, ROWS, 1);
    let bytes = (ROWS * dtype.row_bytes(LENGTH).unwrap()) as f64;
    let quantizes = launches.iter().filter(|launch| launch.kernel.starts_with("quantize"));
    let column = quantizes.map(|launch| launch.counts.total()).sum::<u64>();
    let wanted = sum(&launches, |c| c.load_bytes) as f64 / (32 * sum(&launches, |c| c.load_sectors)) as f64;
    let without = sum(&launches, Counts::total) - column;
    let mut line = format!(
        "| {} | {} | {:.3} | {:.3} | {:.2} | {:.2} | {:.0} % | {} | {} |",
        dtype.name(),
        launches.len(),
        sum(&launches, Counts::total) as f64 / bytes,
        column as f64 / bytes,
        times_read(&launches, bytes),
        times_weights_read(&launches, bytes),
        100.0 * wanted,
        sum(&launches, |c| c.bank_conflicts),
        sum(&launches, |c| c.local_requests),
    );
    OF_BYTE.iter().for_each(|(_, most)| write!(line, " {:.2} |", most * bytes / without as f64).unwrap());
    line
}

fn products_with_one_column(device: &dyn Device) -> String {
    let mut table = format!(
        "Products of {ROWS} rows of {LENGTH} with one column, counted by the emulator for compute capability 8.0. For each card: how many \
         times as many instructions, without those for the column, it could issue while it reads the weights.\n\n"
    );
    table += concat!(
        "| weights | launches | instructions of warps for a byte of weights | to quantize the column, of them ",
        "| bytes of sectors that were read, to those needed | the same of weights, with what is not wanted of the column's | wanted of them ",
        "| bank conflicts | local memory |"
    );
    OF_BYTE.iter().for_each(|(card, _)| write!(table, " {card} |").unwrap());
    table += "\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    let weights = DType::ALL.into_iter().filter(|dtype| !matches!(dtype, DType::I32 | DType::Q8_K));
    for dtype in weights {
        writeln!(table, "{}", line(device, dtype)).unwrap();
    }
    table
}

/// What a quarter of a multiprocessor can issue while its tensor core is at work is hidden behind that: of the time that the instructions of a tile take at
/// one a cycle, the share in which the tensor core works.
fn tiles(device: &dyn Device) -> String {
    let mut table = format!(
        "\nTiles of 128 rows and columns, {LENGTH} long, on tensor cores: instructions of warps for one of `mma.sync`, and how long the tensor core \
         works of the time that it takes to issue them.\n\n| weights | instructions | bank conflicts |"
    );
    CYCLES.iter().for_each(|(card, _)| write!(table, " {card} |").unwrap());
    table += "\n|---|--:|--:|--:|--:|--:|\n";
    let is_tiled = |dtype: &DType| !matches!(dtype, DType::F32 | DType::I32 | DType::Q8_K);
    for dtype in DType::ALL.into_iter().filter(is_tiled) {
        let launches = product(device, dtype, ROWS_OF_TILES, COLUMNS);
        let tile = &launches.iter().find(|launch| launch.kernel.ends_with("_128")).unwrap().counts;
        let matrices = tile.of(Kind::Mma) as f64;
        let instructions = tile.total() as f64 / matrices;
        write!(table, "| {} | {instructions:.2} | {:.2} |", dtype.name(), tile.bank_conflicts as f64 / matrices)
            .unwrap();
        CYCLES
            .iter()
            .for_each(|(_, cycles)| write!(table, " {:.0} % |", 100.0 * (cycles / instructions).min(1.0)).unwrap());
        table += "\n";
    }
    table
}

#[test]
fn products_cost_what_is_committed() {
    emulator_of(80);
    let device = device(LONG);
    let table = products_with_one_column(device.as_ref()) + &tiles(device.as_ref());
    println!("{table}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/counts.md");
    if std::env::var_os(UPDATE).is_some_and(|value| !value.is_empty()) {
        std::fs::write(&file, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == table, "{} is not what was counted; {UPDATE}=1 writes it anew", file.display());
}
