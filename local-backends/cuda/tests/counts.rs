//! What products with one column cost, by count: that is where decoding spends its time. The table is committed; `OUTBOARD_UPDATE_GOLDEN=1` writes it
//! anew.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::op::MulMat;
use outboard_core::{DType, Device, GraphBuilder};
use outboard_cuda_emulator::{Counts, Launched};
use std::fmt::Write;
use std::path::Path;

/// If it says something, the table is written.
const UPDATE: &str = "OUTBOARD_UPDATE_GOLDEN";
/// Length of a row, as in a model of 8B, and some rows of many: what a row costs does not depend on how many there are.
const LENGTH: usize = 4096;
const ROWS: usize = 64;

/// Bytes of weights, and what the launches counted.
fn product(device: &dyn Device, dtype: DType) -> (u64, Vec<Launched>) {
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", dtype, &[LENGTH, ROWS]).unwrap();
    let column = g.input("column", DType::F32, &[LENGTH, 1]).unwrap();
    let product = g.push(MulMat, &[weights, column]).unwrap();
    g.output(product);
    let (executable, places) = compile(device, g.finish().unwrap()).unwrap();
    let queue = device.queue().unwrap();
    emulator().forget();
    queue.execute(&executable).unwrap();
    queue.finish(LONG).unwrap();
    (places[weights.index()].as_ref().unwrap().len(), emulator().launches(""))
}

/// A row of the table.
fn line(device: &dyn Device, dtype: DType) -> String {
    let (bytes, launches) = product(device, dtype);
    let sum = |of: fn(&Counts) -> u64| launches.iter().map(|launch| of(&launch.counts)).sum::<u64>();
    let needed = bytes + 4 * (LENGTH + ROWS) as u64;
    let quantizes = launches.iter().filter(|launch| launch.kernel.starts_with("quantize"));
    let column = quantizes.map(|launch| launch.counts.total()).sum::<u64>();
    let [loaded, wanted] = [sum(|c| 32 * c.load_sectors), sum(|c| c.load_bytes)];
    format!(
        "| {} | {} | {:.3} | {:.3} | {:.2} | {:.0} % | {} | {} |",
        dtype.name(),
        launches.len(),
        sum(Counts::total) as f64 / bytes as f64,
        column as f64 / bytes as f64,
        loaded as f64 / needed as f64,
        100.0 * wanted as f64 / loaded as f64,
        sum(|c| c.bank_conflicts),
        sum(|c| c.local_requests),
    )
}

#[test]
fn products_with_one_column() {
    let device = device(LONG);
    let mut table = format!("Products of {ROWS} rows of {LENGTH} with one column, counted by the emulator.\n\n");
    table += concat!(
        "| weights | launches | instructions of warps for a byte of weights | to quantize the column, of them ",
        "| bytes of sectors that were read, to those needed | wanted of them | bank conflicts | local memory |\n",
        "|---|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    let weights = DType::ALL.into_iter().filter(|dtype| !matches!(dtype, DType::I32 | DType::Q8_K));
    for dtype in weights {
        writeln!(table, "{}", line(device.as_ref(), dtype)).unwrap();
    }
    println!("{table}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/counts.md");
    if std::env::var_os(UPDATE).is_some_and(|value| !value.is_empty()) {
        std::fs::write(&file, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == table, "{} is not what was counted; {UPDATE}=1 writes it anew", file.display());
}
