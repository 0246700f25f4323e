//! What becomes of a model after an error that nothing could be done about.
//!
//! What is under way is given up, and nobody shares blocks of the cache that may not have been written. The devices have nothing to do for it any
//! more; where not all of it has a place, they hold nothing of it either. Whoever asks for something next tries once: with new queues where all devices
//! have what they had, else in a new place.

use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::sequence::State;
use crate::watch::is_cancelled;
use std::sync::atomic::Ordering;

/// Whether something can be run.
#[derive(Clone, Debug)]
pub(crate) enum Health {
    /// It can.
    Sound,
    /// A run has failed, so that queues may be poisoned. Everything has its place.
    Failed(Error),
    /// Not everything has its place on a device.
    Displaced(Error),
}

impl Health {
    /// Why nothing can be run.
    pub(crate) fn error(&self) -> Option<&Error> {
        match self {
            Health::Sound => None,
            Health::Failed(error) | Health::Displaced(error) => Some(error),
        }
    }

    /// A run has failed with this error, if nothing was wrong before.
    pub(crate) fn note(&mut self, error: &Error) {
        if let Health::Sound = self {
            *self = Health::Failed(error.clone());
        }
    }
}

impl PlacedModel {
    /// Whether an error of a device has ended what was under way. Whatever is asked for next tries the devices once more.
    pub fn has_failed(&self) -> bool {
        self.health.error().is_some()
    }

    /// If an error has ended what was under way, tries once more: with new queues, or in a new place, for which servers may have come back since.
    pub(crate) fn return_to_devices(&mut self) -> Result<()> {
        let Some(error) = self.health.error().cloned() else { return Ok(()) };
        self.recoveries = 0;
        self.forgive();
        let back = if error.is_loss() && self.failover.is_some() {
            self.recover(error)
        } else {
            match self.try_again(&error, self.patient_until()) {
                Err(lost) if lost.is_loss() && self.failover.is_some() => self.recover(lost),
                done => done,
            }
        };
        let back = back.map_err(|error| self.told(error));
        if let Err(error) = &back {
            self.fail(error);
        }
        back
    }

    /// After a run has failed: goes on if a device was lost and there is a way to, else gives everything up and gives the error.
    pub(crate) fn recover_or_fail(&mut self, error: Error) -> Result<()> {
        if self.was_cancelled(&error) {
            self.give_up();
            return Err(error);
        }
        self.forget_runs();
        let error = self.told(error);
        let recovered = self.recover(error).map_err(|error| self.told(error));
        if let Err(error) = &recovered {
            self.fail(error);
        }
        recovered
    }

    /// Whether it was the caller who has stopped a run: the devices are well then. A device that was stopped says the same, and needs new queues.
    pub(crate) fn was_cancelled(&self, error: &Error) -> bool {
        is_cancelled(error) && self.scheduler().cancel_token().load(Ordering::Relaxed)
    }

    /// The error as it is told: that somebody else has stopped a device is not the caller's wish to end.
    fn told(&self, error: Error) -> Error {
        if !is_cancelled(&error) || self.was_cancelled(&error) {
            return error;
        }
        let device = self.loads().iter().map(|load| load.id.as_str()).collect::<Vec<_>>().join(", ");
        let detail = "what one of them was at was stopped, by whoever runs it".to_owned();
        outboard_core::Error::Device { device, op: None, detail }.into()
    }

    /// Ends what is under way on all devices after an error.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.forget_runs();
        self.go_back(|state| state.text.confirmed().min(state.n_past));
        self.placement.scheduler.close();
        self.health.note(error);
        if let Health::Displaced(_) = self.health {
            self.leave_devices();
        }
    }

    /// [`PlacedModel::fail`] for an error that may be of a device.
    pub(crate) fn fail_if_of_device(&mut self, error: &Error) {
        if matches!(error, Error::Core(_)) && !self.was_cancelled(error) {
            self.fail(error);
        }
    }

    /// Gives up what is under way where nothing has failed: its rest is enqueued, so that nothing stays that was handed over. Sequences are as far as
    /// their tokens have come.
    pub(crate) fn give_up(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.abandon(self);
        self.ahead.clear();
        self.go_back(|state| state.text.confirmed().min(state.n_past));
    }

    /// Forgets runs whose queues are given up.
    fn forget_runs(&mut self) {
        self.runs = Default::default();
        self.ahead.clear();
    }

    /// Has each sequence's text read again from where the cache has it, and nobody share what others have read.
    pub(crate) fn go_back(&mut self, n_past: impl Fn(&State) -> usize) {
        self.blocks.forget_all();
        for state in self.sequences.iter_mut().flatten() {
            state.recover(n_past(state));
        }
    }
}
