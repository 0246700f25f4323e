//! Launches: what a kernel may be launched with, and what becomes of its findings.
use super::context::Context;
use super::inject::KernelFault;
use super::module::Function;
use super::pointer::In;
use super::{Answer, Code, MAX_RECORDS, Record, driver, lock, log};
use crate::exec::region::Memory;
use crate::exec::{self, Launch, Outcome};
use crate::finding::Fault;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a kernel that hangs looks whether its context has ended.
const LOOK: Duration = Duration::from_millis(2);

/// A kernel with all that it needs to run.
pub(super) type Kernel = Launch;

/// Grid, block and bytes of shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
}

/// A launch of a shape that the device can do.
pub(super) fn prepare(function: &Function, shape: Shape, params: Vec<u8>) -> Answer<Kernel> {
    let Shape { grid, block, shared } = shape;
    let threads = block.iter().try_fold(1u32, |all, n| all.checked_mul(*n)).ok_or(Code::INVALID_VALUE)?;
    let fits = grid.iter().chain(&block).all(|n| *n > 0)
        && grid[0] <= i32::MAX as u32
        && grid[1] <= 65535
        && grid[2] <= 65535
        && block[2] <= 64
        && threads <= 1024;
    if !fits || shared > *lock(&function.dynamic_limit) {
        return Err(Code::INVALID_VALUE);
    }
    if threads > function.kernel.max_threads {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    Ok(Launch { kernel: function.kernel.clone(), grid, block, dynamic_shared: shared, params, seed: 0 })
}

/// The parameters of a kernel, from pointers to each (`kernelParams`) or from one buffer (`extra`).
pub(super) fn parameters(function: &Function, each: In<In<u8>>, extra: In<usize>) -> Answer<Vec<u8>> {
    let kernel = &function.kernel;
    let mut all = vec![0; kernel.param_bytes as usize];
    if !each.is_null() {
        for (i, (offset, size)) in kernel.params.iter().enumerate() {
            let bytes = each.get(i)?.bytes(*size as usize)?;
            all[*offset as usize..(*offset + *size) as usize].copy_from_slice(&bytes);
        }
    } else if !extra.is_null() {
        // Pairs of a number and a value: 1 is the buffer, 2 where its size is, 0 the end.
        let (mut buffer, mut size) = (0, 0);
        for i in (0..8).step_by(2) {
            match extra.get(i)? {
                1 => buffer = extra.get(i + 1)?,
                2 => size = pointed(extra.get(i + 1)?)?,
                _ => break,
            }
        }
        if size > all.len() {
            return Err(Code::INVALID_VALUE);
        }
        for (i, byte) in all.iter_mut().enumerate().take(size) {
            *byte = in_at::<u8>(buffer).get(i)?;
        }
    } else if !kernel.params.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(all)
}

fn in_at<T: Copy>(address: usize) -> In<T> {
    In::at(address as *const T)
}

fn pointed(address: usize) -> Answer<usize> {
    in_at::<usize>(address).get(0)
}

/// What the order of things is drawn by, another one each time.
pub(super) fn next_seed() -> u64 {
    let driver = driver();
    let turn = driver.launches.fetch_add(1, Ordering::Relaxed);
    lock(&driver.config).seed.wrapping_add(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Runs a kernel to its end.
pub(super) fn perform(launch: &Launch, context: &Context) -> Answer {
    let driver = driver();
    let name = &launch.kernel.name;
    match driver.injected.kernel(name) {
        Some(KernelFault::Fails(code)) => {
            log(&format!("kernel {name} fails because a test wants it to, with {}", code.0));
            return Err(code);
        }
        Some(KernelFault::Hangs) => {
            while !context.abort.load(Ordering::Acquire) {
                std::thread::sleep(LOOK);
            }
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        None => {}
    }
    let config = *lock(&driver.config);
    let launch = Launch { seed: next_seed(), ..launch.clone() };
    let mut devices = vec![false; driver.devices().len()];
    devices[context.device] = true;
    lock(&context.peers).iter().for_each(|peer| devices[*peer] = true);
    let memory = Memory { regions: driver.memory.regions(), devices };
    let outcome = exec::run(&launch, &memory, config.threads as usize, &context.abort);
    settle(&launch, outcome, config.lenient != 0)
}

/// Keeps what a launch counted and found, and says how it ended.
fn settle(launch: &Launch, outcome: Outcome, lenient: bool) -> Answer {
    let driver = driver();
    let kernel = &launch.kernel;
    let record = Record { kernel: kernel.name.clone(), grid: launch.grid, block: launch.block, counts: outcome.counts };
    let mut records = lock(&driver.records);
    if records.len() < MAX_RECORDS {
        records.push(record);
    }
    drop(records);
    let mut answer = if outcome.aborted { Err(Code::CONTEXT_IS_DESTROYED) } else { Ok(()) };
    for finding in &outcome.findings {
        let line = finding.line(kernel);
        log(&line);
        let mut findings = lock(&driver.findings);
        if findings.len() < MAX_RECORDS {
            findings.push((finding.fault as u32, kernel.name.clone(), line));
        }
        if !lenient {
            answer = answer.and(Err(Code::LAUNCH_FAILED));
        }
    }
    // What ends a kernel comes last of its findings, and decides what the program is told.
    match outcome.findings.iter().rev().find_map(|f| fatal(f.fault)) {
        Some(code) => Err(code),
        None => answer,
    }
}

fn fatal(fault: Fault) -> Option<Code> {
    match fault {
        Fault::OutOfBounds | Fault::ReadOnly => Some(Code::ILLEGAL_ADDRESS),
        Fault::Misaligned => Some(Code::MISALIGNED_ADDRESS),
        Fault::Trap => Some(Code::LAUNCH_FAILED),
        Fault::Deadlock | Fault::Endless => Some(Code::LAUNCH_TIMEOUT),
        _ => None,
    }
}
