//! Runs on their way through the devices.
//!
//! Where the device with the beginning of the model has its end as well, it would wait for each run to come back before it takes up the next one,
//! as its commands are done in their order. So the beginnings of a few go first, and then by turns the rest of one and the beginning of
//! another: of the micro-batches of a prompt, or of the steps of groups of sequences. Where nobody knows when another one begins, the rest of a run follows
//! when what it needs of the other devices is about to come.

use crate::arch::net::Feed;
use crate::batch::Batch;
use crate::error::Result;
use crate::placed_model::PlacedModel;
use outboard_scheduler::{Begun, Program};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A run that was enqueued.
pub(crate) struct Run {
    pub(crate) program: Arc<Program>,
    pub(crate) number: u64,
    /// When it was enqueued, or its beginning was.
    pub(crate) begun: Instant,
    pub(crate) rest: Rest,
}

/// Why the rest of a run was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Others had begun, or there was nothing to wait for.
    InTurn,
    /// It was due.
    Due,
}

/// Runs of which the beginning was enqueued, in their order, each with something to remember.
pub(crate) struct Runs<T> {
    unfinished: VecDeque<UnfinishedRun<T>>,
}

/// A run of which the beginning was enqueued.
struct UnfinishedRun<T> {
    program: Arc<Program>,
    rest: Begun,
    begun: Instant,
    group: usize,
    note: T,
}

/// Which runs a run goes with, and how many may begin before the rest of the oldest of them is enqueued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) group: usize,
    pub(crate) lead: usize,
}

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs { unfinished: VecDeque::new() }
    }
}

impl<T> Runs<T> {
    /// Runs of which the beginning was enqueued and the rest was not.
    pub(crate) fn len(&self) -> usize {
        self.unfinished.len()
    }

    /// Enqueues the beginning of one more. The rest of older ones is enqueued when too many have begun, and at once where this one needs what those
    /// of its group sample, or would come before them on a device: what it attends to, they write. They are given to
    /// `ended` before the results of another run take the place of theirs.
    pub(crate) fn push(
        &mut self,
        model: &mut PlacedModel,
        batch: &Batch,
        note: T,
        turn: Turn,
        ended: &mut dyn FnMut(&mut PlacedModel, Run, T) -> Result<()>,
    ) -> Result<()> {
        let (program, inputs) = model.program_of(batch)?;
        let samples_before = batch.feed() != Feed::Input;
        let Turn { group, lead } = turn;
        let needs = |run: &UnfinishedRun<T>| {
            samples_before && run.group == group || !program.may_begin_before_rest_of(&run.program)
        };
        while self.unfinished.len() > lead || self.unfinished.iter().any(needs) {
            self.end(model, Rest::InTurn, ended)?;
        }
        if lead == 0 {
            let begun = Instant::now();
            let number = model.scheduler().run(&program, &inputs)?;
            return ended(model, Run { program, number, begun, rest: Rest::InTurn }, note);
        }
        let rest = model.scheduler().begin(&program, inputs)?;
        self.unfinished.push_back(UnfinishedRun { program, rest, begun: Instant::now(), group, note });
        while self.unfinished.len() > lead {
            self.end(model, Rest::InTurn, ended)?;
        }
        Ok(())
    }

    /// Whether one of them is of a group.
    pub(crate) fn has(&self, group: usize) -> bool {
        self.unfinished.iter().any(|run| run.group == group)
    }

    /// When the oldest of them has begun.
    pub(crate) fn oldest_begun(&self) -> Option<Instant> {
        self.unfinished.front().map(|run| run.begun)
    }

    /// Enqueues the rest of the oldest.
    pub(crate) fn end(
        &mut self,
        model: &mut PlacedModel,
        why: Rest,
        ended: &mut dyn FnMut(&mut PlacedModel, Run, T) -> Result<()>,
    ) -> Result<()> {
        let Some(UnfinishedRun { program, rest, begun, note, .. }) = self.unfinished.pop_front() else { return Ok(()) };
        let number = model.scheduler().end(&program, rest)?;
        ended(model, Run { program, number, begun, rest: why }, note)
    }

    /// Enqueues the rest of all.
    pub(crate) fn finish(
        &mut self,
        model: &mut PlacedModel,
        ended: &mut dyn FnMut(&mut PlacedModel, Run, T) -> Result<()>,
    ) -> Result<()> {
        while !self.unfinished.is_empty() {
            self.end(model, Rest::InTurn, ended)?;
        }
        Ok(())
    }

    /// Enqueues the rest of all, so that nothing stays that they have handed over, and nobody waits for them.
    pub(crate) fn abandon(&mut self, model: &PlacedModel) {
        for UnfinishedRun { program, rest, .. } in self.unfinished.drain(..) {
            // What has gone wrong is known already, or nobody's concern.
            let _ = model.scheduler().end(&program, rest);
        }
    }
}
