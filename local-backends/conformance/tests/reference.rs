//! The suite on the reference itself (every case must be sound and deterministic), and on devices that get things wrong on
//! purpose (the suite must notice).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_conformance::{Filter, cases, run};
use outboard_core::Host;
use outboard_core::{DeviceInfo, DeviceKind, Graph, Op, Result, TensorId};
use outboard_host::{Kernels, MemoryBudget, NodeError, Program, Run, TensorPtr, host_device};
use outboard_reference::{Reference, reference_device};
use std::collections::HashSet;
use std::sync::Arc;

#[test]
fn the_reference_agrees_with_itself() {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let (a, b) = (reference_device(&host, "REF0", &budget), reference_device(&host, "REF1", &budget));
    let report = run(a.as_ref(), b.as_ref(), &Filter::default()).unwrap();
    println!("{report}");
    assert!(report.ok(), "{report}");
    assert_eq!((report.unsupported(), report.cases()), (0, cases().len()));
    assert_eq!(budget.used(), 0);
}

#[test]
fn every_op_has_cases() {
    let cases = cases();
    let ops: HashSet<_> = cases.iter().map(|c| c.op()).collect();
    for name in Op::names().filter(|name| !["VIEW", "RESHAPE", "PERMUTE"].contains(name)) {
        assert!(ops.contains(name), "{name}");
    }
    let mut seen = HashSet::new();
    for case in &cases {
        assert!(seen.insert((case.op(), case.name().to_owned())), "{} {} is there twice", case.op(), case.name());
    }
    let quick = cases.iter().filter(|c| Filter::quick().matches(c)).count();
    assert!((150..500).contains(&quick), "{quick} quick cases");
}

#[test]
fn every_op_of_a_case_is_the_same_after_the_way_through_its_attrs() {
    for case in cases() {
        let graph = case.graph().unwrap();
        for op in graph.nodes().filter_map(|id| graph.tensor(id).op()) {
            assert_eq!(Op::from_attrs(op.name(), op.attrs()).as_ref(), Ok(op), "{} {}", case.op(), case.name());
        }
    }
}

/// The reference with a fault in each program.
struct Faulty(Fault);

#[derive(Clone, Copy)]
enum Fault {
    LastElement,
    NotWritten,
    WritesBehind,
    NeverFails,
}

struct FaultyProgram {
    inner: Box<dyn Program>,
    last: TensorPtr,
    fault: Fault,
}

impl Kernels for Faulty {
    fn supports(&self, _: &Graph, _: TensorId) -> bool {
        true
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>> {
        let last = *tensors.last().unwrap();
        let inner = Reference.compile(graph, tensors)?;
        Ok(Box::new(FaultyProgram { inner, last, fault: self.0 }))
    }
}

impl Program for FaultyProgram {
    fn scratch(&self) -> u64 {
        self.inner.scratch()
    }

    fn run(&self, run: Run<'_>) -> std::result::Result<(), NodeError> {
        let done = match self.fault {
            Fault::NotWritten => Ok(()),
            _ => self.inner.run(run),
        };
        let behind = self.last.layout.span();
        // SAFETY: results of the ops tested are not empty; the arena has guard bytes behind each tensor.
        unsafe {
            match self.fault {
                Fault::LastElement => *self.last.ptr.add(behind - 1) ^= 0x55,
                Fault::WritesBehind => *self.last.ptr.add(behind) ^= 0x55,
                Fault::NeverFails => return Ok(()),
                Fault::NotWritten => {}
            }
        }
        done
    }
}

fn failures(fault: Fault, op: &str, case: &str) -> String {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let oracle = reference_device(&host, "REF", &budget);
    let info = DeviceInfo { id: "BAD".into(), kind: DeviceKind::Cpu, ..oracle.info().clone() };
    let device = host_device(&host, info, &budget, Arc::new(Faulty(fault)));
    let filter = Filter { name: case.into(), ..Filter::op(op) };
    let report = outboard_conformance::run(device.as_ref(), oracle.as_ref(), &filter).unwrap();
    assert!(report.cases() > 0 && report.failed() == report.cases(), "{report}");
    report.to_string()
}

#[test]
fn faults_are_noticed() {
    assert!(failures(Fault::LastElement, "CONT", "F32 padded").contains("instead of"));
    assert!(failures(Fault::LastElement, "MUL_MAT", "F16 k=100 m=5").contains("NMSE"));
    assert!(failures(Fault::LastElement, "ARGMAX", "ties").contains("instead of"));
    assert!(failures(Fault::NotWritten, "RMS_NORM", "off centre").contains("not written?"));
    assert!(failures(Fault::NotWritten, "ARGMAX", "ties").contains("instead of"));
    assert!(failures(Fault::WritesBehind, "SILU", "edges").contains("between tensors was changed"));
    assert!(failures(Fault::NeverFails, "GET_ROWS", "id -1").contains("must fail"));
}
