//! Every case of every op against the reference.

use crate::Outcome;
use anyhow::{Result, bail};
use outboard_backends::DeviceSpec;
use outboard_conformance::{Filter, run as compute};
use outboard_core::{Device, Host};
use outboard_host::MemoryBudget;
use outboard_output as output;
use outboard_reference::reference_device;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Refuses an op that no case has.
pub(crate) fn known_ops(ops: &[String]) -> Result<()> {
    if ops.is_empty() {
        return Ok(());
    }
    let known: BTreeSet<_> = outboard_conformance::cases().iter().map(|case| case.op()).collect();
    if let Some(op) = ops.iter().find(|op| !known.iter().any(|known| known.eq_ignore_ascii_case(op))) {
        let known: Vec<_> = known.into_iter().collect();
        bail!("--ops: no case has the op {op:?}: name some of {}", known.join(", "));
    }
    Ok(())
}

pub(crate) fn run(specs: &[DeviceSpec], devices: &[Arc<dyn Device>], filter: &Filter) -> Result<Outcome> {
    let whole = !filter.quick && filter.ops.is_empty();
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let (mut report, mut wrong) = (Vec::new(), Vec::new());
    for (spec, device) in specs.iter().zip(devices) {
        let id = &device.info().id;
        let begun = Instant::now();
        let cases = match compute(device.as_ref(), reference.as_ref(), filter) {
            Ok(cases) => cases,
            Err(why) => {
                wrong.push(format!("{id}: {why}"));
                continue;
            }
        };
        output::out(format_args!("{cases}\n"))?;
        let known = spec.known();
        let differs: Vec<_> = known.differs.iter().map(|d| (d.of, d.most)).collect();
        // What is declared and not met says nothing where cases are left out.
        let of = if whole { cases.against(known.unsupported) } else { cases.undeclared(known.unsupported) };
        let found = [of, cases.beyond(&differs)].concat();
        if cases.cases() == 0 {
            wrong.push(format!("{id}: no case was run: leave --quick or --ops out"));
        }
        wrong.extend(found.iter().map(|why| format!("{id}: {why}")));
        let worst: Vec<Value> = cases.ops.iter().map(|(op, of)| json!({ "op": op, "nmse": of.worst })).collect();
        report.push(json!({
            "device": id,
            "cases": cases.cases(),
            "unsupported": cases.unsupported(),
            "failed": cases.failed(),
            "seconds": begun.elapsed().as_secs_f64(),
            "worst": worst,
        }));
    }
    Ok(Outcome { report: report.into(), wrong })
}
