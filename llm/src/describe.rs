//! What a step does on its devices, for people and for measurements.

use crate::arch::net::{Added, Feed, GraphShape, LogProbs, Outputs};
use crate::error::Result;
use crate::placed_model::PlacedModel;
use outboard_scheduler::Program;
use std::sync::Arc;

/// Bytes that go from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepCopy {
    /// The tensor.
    pub what: String,
    /// Its bytes.
    pub bytes: u64,
    /// Index of the device that has it.
    pub from: usize,
    /// Index of the device that needs it.
    pub to: usize,
    /// It goes over before the first step, and not again: a weight.
    pub once: bool,
}

impl PlacedModel {
    /// The plan of a step, for people.
    pub fn describe(&mut self) -> Result<String> {
        Ok(self.step_program()?.plan().to_string())
    }

    /// What goes from device to device for each token that is decoded, in that order.
    pub fn step_copies(&mut self) -> Result<Vec<StepCopy>> {
        let program = self.step_program()?;
        let plan = program.plan();
        let copy = |c: &outboard_scheduler::split::PlannedCopy| StepCopy {
            what: plan.graph.label(c.tensor),
            bytes: c.bytes as u64,
            from: c.from,
            to: c.to,
            once: c.constant,
        };
        Ok(plan.splits.copies.iter().map(copy).collect())
    }

    /// The program of a greedy step of one sequence.
    fn step_program(&mut self) -> Result<Arc<Program>> {
        let rows = self.least_rows;
        let outputs = Outputs::Sample { rows, penalties: false, added: Added::Nothing, log_probs: LogProbs::None };
        let cache = self.cache;
        self.program(GraphShape { n_tokens: rows, cache, feed: Feed::Sampled, history: false, outputs })
    }
}
