//! Running cases on a device and on the oracle.
//!
//! A round trip to a remote device costs more than most cases: they are asked for and run in batches. Each batch is one
//! buffer and one queue, enqueued entirely before anything is waited for. A case that fails takes its queue with it, so what
//! came out of a queue with an error is run again on its own.

use crate::arena::Arena;
use crate::case::{Case, Expect, Filter, Setup};
use crate::compare::{Wrong, compare};
use crate::report::Report;
use bytes::Bytes;
use outboard_core::device::Pending;
use outboard_core::graph::MAX_TENSORS;
use outboard_core::{Device, Error, GraphBuilder, Kind, Queue, Result, Slice, TensorId, Usage, WeightTail};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for one result. Cases are small: a device that needs this long hangs.
const WAIT: Duration = Duration::from_secs(120);
/// Cases in a batch.
const BATCH_CASES: usize = 32;
/// Bytes in a batch; one case may be larger.
const BATCH_BYTES: usize = 16 << 20;

/// Runs every case that `filter` wants on `device`, and compares with `oracle`. An error means that the run could not go on (the
/// device is gone); what a case gets wrong is in the report.
pub fn run(device: &dyn Device, oracle: &dyn Device, filter: &Filter) -> Result<Report> {
    let mut cases = crate::cases();
    cases.retain(|case| filter.matches(case));
    run_cases(device, oracle, &cases)
}

/// Runs these cases.
pub fn run_cases(device: &dyn Device, oracle: &dyn Device, cases: &[Case]) -> Result<Report> {
    let mut report = Report { device: device.info().id.clone(), ..Report::default() };
    let supported = supported(device, cases)?;
    let align = device.info().alignment.max(oracle.info().alignment);
    let tail = WeightTail(device.info().weight_tail.0.max(oracle.info().weight_tail.0));
    let mut batch: Vec<Run<'_>> = Vec::new();
    let mut bytes = 0;
    for (case, supported) in cases.iter().zip(supported) {
        let setup = match &case.setup {
            Ok(_) if !supported => {
                report.unsupported_case(case);
                continue;
            }
            Ok(setup) => setup,
            Err(e) => {
                report.result(case, Err(format!("the case itself is wrong: {e}").into()));
                continue;
            }
        };
        let arena = match Arena::new(&format!("{} {}", case.op, case.name), setup, align, tail) {
            Ok(arena) => arena,
            Err(e) => {
                report.result(case, Err(format!("the case itself is wrong: {e}").into()));
                continue;
            }
        };
        let run = Run { case, setup, arena };
        if case.expect == Expect::Fails {
            report.result(case, fails(device, &run)?.map_err(Wrong::from));
            continue;
        }
        if !batch.is_empty() && (batch.len() == BATCH_CASES || bytes + run.arena.image.len() > BATCH_BYTES) {
            flush(device, oracle, &mut batch, &mut report)?;
            bytes = 0;
        }
        bytes += run.arena.image.len();
        batch.push(run);
    }
    flush(device, oracle, &mut batch, &mut report)?;
    Ok(report)
}

struct Run<'a> {
    case: &'a Case,
    setup: &'a Setup,
    arena: Arena,
}

/// Whether each case is supported, asked with as few graphs as possible.
fn supported(device: &dyn Device, cases: &[Case]) -> Result<Vec<bool>> {
    let mut out = vec![false; cases.len()];
    let mut next = 0;
    while next < cases.len() {
        let mut g = GraphBuilder::new();
        // Where the tensors of each case are in the merged graph.
        let mut parts: Vec<(usize, usize, usize)> = Vec::new();
        while let Some(case) = cases.get(next) {
            let count = case.graph().map_or(0, |graph| graph.tensors().len());
            if g.len() + count > MAX_TENSORS {
                break;
            }
            if let Some(graph) = case.graph() {
                let start = g.len();
                for t in graph.tensors() {
                    match t.kind() {
                        Kind::Leaf(kind) => {
                            g.leaf_with_layout(*kind, &format!("{next}.{}", t.name()), *t.layout())?;
                        }
                        Kind::Node { op, srcs } => {
                            let moved: Vec<Option<TensorId>> =
                                srcs.iter().map(|s| s.map(|s| TensorId::from_index(start + s.index()))).collect();
                            g.push_opt(op.clone(), &moved)?;
                        }
                    }
                }
                parts.push((next, start, count));
            }
            next += 1;
        }
        let set = device.supports(&g.finish()?)?;
        for (case, start, count) in parts {
            out[case] = (start..start + count).all(|i| set.contains(TensorId::from_index(i)));
        }
    }
    Ok(out)
}

/// Runs a batch on both devices and compares.
fn flush(device: &dyn Device, oracle: &dyn Device, batch: &mut Vec<Run<'_>>, report: &mut Report) -> Result<()> {
    let got = memories(device, batch)?;
    let want = memories(oracle, batch)?;
    for ((run, got), want) in batch.drain(..).zip(got).zip(want) {
        report.result(run.case, judge(&run, got, want));
    }
    Ok(())
}

/// Worst error of a case, or what is wrong with it.
fn judge(run: &Run<'_>, got: Result<Bytes>, want: Result<Bytes>) -> std::result::Result<f64, Wrong> {
    let want = want.map_err(|e| format!("the oracle failed: {e}"))?;
    let got = got.map_err(|e| e.to_string())?;
    if let Some(touched) = run.arena.touched(run.setup, &got, false) {
        return Err(touched.into());
    }
    let Expect::Result(check) = run.case.expect else { return Ok(0.0) };
    let mut worst: f64 = 0.0;
    for &root in &run.arena.written {
        let (got, want) = (run.arena.bytes(root, &got), run.arena.bytes(root, &want));
        worst = worst.max(compare(run.setup.graph.tensor(root).layout(), got, want, check)?);
    }
    Ok(worst)
}

/// The memory of each case after it ran. An error of the connection ends it all.
fn memories(device: &dyn Device, batch: &[Run<'_>]) -> Result<Vec<Result<Bytes>>> {
    let mut out = enqueue(device, batch)?;
    // The first error of a queue is everybody's: find out whose it is.
    let failed: Vec<usize> = (0..out.len()).filter(|&i| out[i].is_err()).collect();
    if batch.len() > 1 {
        for i in failed {
            out[i] = enqueue(device, &batch[i..=i])?.pop().unwrap_or(Err(Error::Cancelled));
        }
    }
    for result in &out {
        if let Err(e @ Error::Peer { .. }) = result {
            return Err(e.clone());
        }
    }
    Ok(out)
}

/// Runs cases on a queue of their own.
fn enqueue(device: &dyn Device, batch: &[Run<'_>]) -> Result<Vec<Result<Bytes>>> {
    let queue = device.queue()?;
    let total: usize = batch.iter().map(|run| run.arena.image.len()).sum();
    let whole = Slice::whole(device.alloc(total as u64, Usage::Any)?);
    let mut start = 0;
    let mut pending: Vec<Result<Pending<Bytes>>> = Vec::new();
    for run in batch {
        let len = run.arena.image.len() as u64;
        let memory = whole.part(start, len)?;
        start += len;
        pending.push(start_one(device, queue.as_ref(), run, &memory));
    }
    Ok(pending.into_iter().map(|p| p?.wait(WAIT)).collect())
}

fn start_one(device: &dyn Device, queue: &dyn Queue, run: &Run<'_>, memory: &Slice) -> Result<Pending<Bytes>> {
    let placement = run.arena.placement(run.setup, device, memory)?;
    let executable = device.compile(Arc::clone(&run.setup.graph), placement)?;
    queue.write(memory, Bytes::copy_from_slice(&run.arena.image))?;
    queue.execute(&executable)?;
    queue.read(memory)
}

/// Runs a case that must fail: with an error of the device, nothing but the result written, and the device goes on.
fn fails(device: &dyn Device, run: &Run<'_>) -> Result<std::result::Result<f64, String>> {
    let queue = device.queue()?;
    let whole = Slice::whole(device.alloc(run.arena.image.len() as u64, Usage::Any)?);
    let result = start_one(device, queue.as_ref(), run, &whole).and_then(|pending| pending.wait(WAIT));
    let label = run.case.op;
    match result {
        Ok(_) => return Ok(Err("it was computed, but must fail".into())),
        Err(e @ Error::Peer { .. }) => return Err(e),
        Err(Error::Device { op: Some(op), .. }) if op.contains(label) => {}
        Err(e) => return Ok(Err(format!("the error does not name the op: {e}"))),
    }
    let memory = device.queue()?.read(&whole)?.wait(WAIT)?;
    Ok(run.arena.touched(run.setup, &memory, true).map_or(Ok(0.0), Err))
}
