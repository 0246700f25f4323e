//! Runs kernels: blocks spread over threads, warps of a block in an order drawn by a seed, 32 lanes an instruction.
mod atomic;
mod block;
mod copies;
mod exchange;
mod matrix;
mod memory;
pub(crate) mod region;
mod shadow;
mod step;
#[cfg(test)]
mod tests;
mod warp;

use crate::code::Kernel;
use crate::count::Counts;
use crate::finding::{Finding, Findings};
pub(crate) use atomic::is_known as atomic_is_known;
use region::Memory;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks for each thread before another is worth its start.
const BLOCKS_PER_THREAD: u64 = 2;

/// What a kernel is launched with.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of shared memory that it adds.
    pub(crate) dynamic_shared: u32,
    pub(crate) params: Vec<u8>,
    /// Draws the order of blocks and warps.
    pub(crate) seed: u64,
}

/// How a launch went.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) findings: Vec<Finding>,
    /// It was told to end before it was done.
    pub(crate) aborted: bool,
}

/// What all blocks of a launch share.
pub(crate) struct Run<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) memory: &'a Memory,
    findings: Findings,
    /// Set from outside, or by a block that cannot go on.
    abort: &'a AtomicBool,
    ended: AtomicBool,
}

impl Run<'_> {
    /// Whether no block should go on.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.abort.load(Ordering::Relaxed)
    }
}

/// A generator of pseudo-random numbers (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// The place of every block in an order that the seed draws: a step that has no divisor in common with the number of blocks.
fn permutation(count: u64, seed: u64) -> impl Fn(u64) -> u64 {
    let mut random = Random(seed);
    let first = random.next() % count;
    let mut step = random.next() % count;
    while greatest_divisor(step.max(1), count) != 1 {
        step = (step + 1) % count;
    }
    let step = step.max(1);
    move |i| ((u128::from(i) * u128::from(step) + u128::from(first)) % u128::from(count)) as u64
}

/// Runs all blocks. `abort` ends it early from another thread.
pub(crate) fn run(launch: &Launch, memory: &Memory, threads: usize, abort: &AtomicBool) -> Outcome {
    let run = Run { launch, memory, findings: Findings::default(), abort, ended: AtomicBool::new(false) };
    let [x, y, z] = launch.grid.map(u64::from);
    let (count, next) = (x * y * z, AtomicU64::new(0));
    let order = permutation(count.max(1), launch.seed);
    let counts = Mutex::new(Counts::default());
    let work = || {
        let mut executor = block::Block::new(&run);
        while !run.is_over() {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                break;
            }
            let at = order(i);
            if let Err(end) = executor.run([(at % x) as u32, (at / x % y) as u32, (at / x / y) as u32]) {
                run.ended.store(true, Ordering::Relaxed);
                if let Some(finding) = end {
                    run.findings.add(*finding);
                }
            }
        }
        counts.lock().unwrap_or_else(PoisonError::into_inner).add(&executor.counts);
    };
    let threads = (threads as u64).min(count / BLOCKS_PER_THREAD).max(1);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be had leaves its blocks to the others.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let aborted = abort.load(Ordering::Relaxed);
    let counts = counts.into_inner().unwrap_or_else(PoisonError::into_inner);
    Outcome { counts, findings: run.findings.all(), aborted }
}
