//! Micro-batches on their way through the devices.
//!
//! Where the device with the beginning of the model has its end as well, it would wait for each micro-batch to come back before it takes up
//! the next one, as its commands are done in their order. So the beginnings of a few go first, and then by turns the rest of one and the
//! beginning of another.

use crate::arch::net::{Feed, Outputs, Sampling};
use crate::engine::Engine;
use crate::error::Result;
use bytes::Bytes;
use outboard_core::TensorId;
use outboard_scheduler::{Begun, Program};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a run is to give back, and what it needs for that.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    /// Nothing: a part of a prompt that is not its end.
    Part {
        /// Whether its tokens are noted, for penalties behind it.
        history: bool,
    },
    /// What the head would read, for nobody.
    Layers,
    /// Logits of the last so many tokens.
    Logits(usize),
    /// How probable these tokens are, each behind one of the last tokens.
    Scores(&'a [u32]),
    /// The next token.
    Sample(Sampling),
}

impl Request<'_> {
    /// Whether tokens are noted, for penalties.
    pub(crate) fn history(&self) -> bool {
        match self {
            Request::Part { history } => *history,
            Request::Sample(sampling) => sampling.penalties.is_some(),
            Request::Layers | Request::Logits(_) | Request::Scores(_) => false,
        }
    }

    pub(crate) fn outputs(&self) -> Outputs {
        match self {
            Request::Part { .. } => Outputs::None,
            Request::Layers => Outputs::Layers,
            Request::Logits(rows) => Outputs::Logits(*rows),
            Request::Scores(targets) => Outputs::Scores(targets.len()),
            Request::Sample(sampling) => sampling.outputs(),
        }
    }
}

/// What a run is given.
pub(crate) type Inputs = Vec<(TensorId, Bytes)>;

/// A run that was enqueued.
pub(crate) struct Run {
    pub(crate) program: Arc<Program>,
    pub(crate) number: u64,
}

/// Micro-batches of which the beginning was enqueued, in their order, each with something to remember. The rest of one is enqueued when
/// [so many](crate::pipeline::Pipeline::lead) others have begun behind it.
pub(crate) struct Runs<T> {
    lead: usize,
    begun: VecDeque<(Arc<Program>, Begun, T)>,
}

impl<T> Runs<T> {
    /// None yet.
    pub(crate) fn new(lead: usize) -> Runs<T> {
        Runs { lead, begun: VecDeque::new() }
    }

    /// Enqueues the beginning of one more, with a shape of its length, and the rest of the oldest if it is time for it: that one is given
    /// back.
    pub(crate) fn push(
        &mut self,
        engine: &mut Engine,
        batch: &[u32],
        request: Request<'_>,
        what: T,
    ) -> Result<Option<(Run, T)>> {
        let (program, inputs) = engine.next_run(batch, Feed::Input, request)?;
        let begun = engine.placed.scheduler.begin(&program, inputs)?;
        self.begun.push_back((program, begun, what));
        engine.n_past += batch.len();
        if self.begun.len() > self.lead { self.next(engine) } else { Ok(None) }
    }

    /// Enqueues the rest of the oldest.
    pub(crate) fn next(&mut self, engine: &Engine) -> Result<Option<(Run, T)>> {
        let Some((program, begun, what)) = self.begun.pop_front() else { return Ok(None) };
        let number = engine.placed.scheduler.end(&program, begun)?;
        Ok(Some((Run { program, number }, what)))
    }

    /// Enqueues the rest of all, so that nothing stays that they have handed over, and nobody waits for them.
    pub(crate) fn abandon(self, engine: &Engine) {
        for (program, begun, _) in self.begun {
            // What has gone wrong is known already, or nobody's concern.
            let _ = engine.placed.scheduler.end(&program, begun);
        }
    }
}
