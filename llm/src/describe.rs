//! What a step of an engine does on its devices, for people and for measurements.

use crate::arch::net::{Feed, GraphShape, Outputs};
use crate::engine::Engine;
use crate::error::Result;
use crate::runs::Request;
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

impl Engine {
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

    /// Runs tokens through the layers behind those that are in the cache, and returns when it has them. Nothing is sampled: what a
    /// step takes longer than one token is the time of the head.
    pub fn fill_cache(&mut self, tokens: &[u32]) -> Result<()> {
        self.ahead.clear();
        self.enqueue_prompt(tokens, Request::Layers)?;
        Ok(self.scheduler().finish()?)
    }

    /// The program of a greedy step.
    fn step_program(&mut self) -> Result<Arc<Program>> {
        let outputs = Outputs::Sample { penalties: false, log_prob: false };
        let n_ctx = self.n_ctx();
        self.program(GraphShape { n_tokens: 1, n_ctx, feed: Feed::Sampled, history: false, outputs })
    }
}
