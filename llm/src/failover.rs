//! A run that goes on when a device is lost.
//!
//! First every device is taken up again. If all are there with what they held (a connection had dropped), the cache is there too, up
//! to the last token that came, and the run goes on from it. Otherwise the model is placed anew on the devices that are left, and on
//! those that have come back: weights stay where they are, what moves is uploaded, and the texts so far are read again as they were read
//! before, so that the cache, and every token from there, is the same as without the fault.

use crate::ahead::StepsAhead;
use crate::allocate::Bound;
use crate::arch::net::Stored;
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::placement::{LoadOptions, Overrides, Placed};
use crate::sequence::State;
use crate::watch::watched;
use outboard_core::{Device, Usage, try_at_once};
use outboard_scheduler::resume_all;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Recoveries without a token in between, after which a run ends: more devices than that are not lost by chance.
const MAX_RECOVERIES: usize = 8;

/// Helps a run that has lost devices.
pub trait Failover: Send {
    /// Devices in place of those with these ids, as far as they have come back: with the same ids, and nothing on them. What it waits
    /// for, the run waits for. Those whose servers were alive and got no further are not asked for: they would stop the run again.
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>>;
    /// Is told how a run goes on.
    fn recovered(&mut self, recovery: &Recovery);
}

/// What was lost, and how the run goes on.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// What had happened.
    pub error: Error,
    /// Devices of the new plan; `None` if everything was still there and nothing had to be sent again.
    pub devices: Option<Vec<String>>,
    /// Tokens that are read again.
    pub tokens: usize,
    /// From the error until the run went on.
    pub took: Duration,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovery { error, devices, tokens, took } = self;
        let plural = if *tokens == 1 { "" } else { "s" };
        write!(f, "{error}; after {:.1} s the run goes on ", took.as_secs_f64())?;
        match devices {
            None => write!(f, "with what its servers still hold")?,
            Some(devices) => write!(f, "on {}", devices.join(", "))?,
        }
        write!(f, ", {tokens} token{plural} to read again")
    }
}

/// A place in the list of devices that a model was loaded on.
pub(crate) struct DeviceSlot {
    id: String,
    /// `None` while it is lost.
    device: Option<Arc<dyn Device>>,
    /// Its server was alive and got no further: it is not asked for again.
    given_up: bool,
}

impl DeviceSlot {
    pub(crate) fn all(devices: &[Arc<dyn Device>]) -> Vec<DeviceSlot> {
        devices
            .iter()
            .map(|d| DeviceSlot { id: d.info().id.clone(), device: Some(d.clone()), given_up: false })
            .collect()
    }
}

impl PlacedModel {
    /// Lets runs go on when devices are lost; without it, they end with the error.
    pub fn set_failover(&mut self, failover: Box<dyn Failover>) {
        self.failover = Some(failover);
    }

    /// After a run has failed: makes all sequences go on, so that [`PlacedModel::next_token`] gives the tokens behind their texts so far, or
    /// gives the error if it cannot.
    pub(crate) fn recover(&mut self, error: Error) -> Result<()> {
        let mut error = error;
        loop {
            let Error::Core(outboard_core::Error::Peer { endpoint, detail }) = &error else { return Err(error) };
            if self.failover.is_none() {
                return Err(error);
            }
            let ends = |why: String| {
                let (endpoint, detail) =
                    (endpoint.clone(), format!("{detail}; the run cannot go on without it: {why}"));
                Err(Error::Core(outboard_core::Error::Peer { endpoint, detail }))
            };
            if self.recoveries >= MAX_RECOVERIES {
                // Whoever asks again may find more.
                self.displaced = Some(error.clone());
                return ends(format!("{MAX_RECOVERIES} times in turn no token has come"));
            }
            self.recoveries += 1;
            match self.try_again(&error) {
                Ok(()) => return Ok(()),
                // Another one is lost.
                Err(next @ Error::Core(outboard_core::Error::Peer { .. })) => error = next,
                Err(Error::Core(e @ outboard_core::Error::Cancelled)) => return Err(e.into()),
                Err(why) => return ends(why.to_string()),
            }
        }
    }

    /// If the last recovery has failed, tries once more: servers may have come back since.
    pub(crate) fn return_to_devices(&mut self) -> Result<()> {
        match &self.displaced {
            Some(error) => {
                self.recoveries = 0;
                self.recover(error.clone())
            }
            None => Ok(()),
        }
    }

    /// The same wherever else a lost device may be met; gives other errors back.
    pub(crate) fn recover_lost(&mut self, error: Error) -> Result<()> {
        if !matches!(error, Error::Core(outboard_core::Error::Peer { .. })) {
            return Err(error);
        }
        self.runs = Default::default();
        self.ahead.clear();
        self.recover(error)
    }

    /// After an error that ends what is under way: sequences are as far as their tokens have come, and nobody shares what may not have been read.
    pub(crate) fn give_up(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.abandon(self);
        self.ahead.clear();
        self.go_back(|state| state.text.confirmed().min(state.n_past));
    }

    fn try_again(&mut self, error: &Error) -> Result<()> {
        let start = Instant::now();
        let who = match error {
            Error::Core(outboard_core::Error::Peer { endpoint, .. }) => endpoint.clone(),
            _ => String::new(),
        };
        let devices = if self.take_up(who)? {
            self.programs.iter().for_each(|(_, program)| program.copy_weights_again());
            self.go_back(|state| state.text.confirmed().min(state.n_past));
            None
        } else {
            self.place_anew(error)?;
            Some(self.loads().iter().filter(|l| l.is_used()).map(|l| l.id.clone()).collect())
        };
        // What was told before may not have arrived.
        self.write_tables()?;
        let wanted = self.sequences.iter().flatten().filter(|state| state.job.is_some());
        let tokens = wanted.map(|state| state.text.len() - state.n_past).sum();
        let recovery = Recovery { error: error.clone(), devices, tokens, took: start.elapsed() };
        if let Some(failover) = &mut self.failover {
            failover.recovered(&recovery);
        }
        Ok(())
    }

    /// Has each sequence's text read again from where the cache has it.
    fn go_back(&mut self, n_past: impl Fn(&State) -> usize) {
        self.blocks.forget_all();
        for state in self.sequences.iter_mut().flatten() {
            state.recover(n_past(state));
        }
    }

    /// Takes all devices up again; `false` if not all of the model is on them any more.
    fn take_up(&mut self, who: String) -> Result<bool> {
        let devices: Vec<Arc<dyn Device>> = self.slots.iter().filter_map(|s| s.device.clone()).collect();
        let (scheduler, watch, complete) =
            (&mut self.placed.scheduler, self.watch.as_deref(), self.displaced.is_none());
        let lost = watched(watch, who, "to come back", || {
            // A scheduler without a complete model has the devices of an earlier plan.
            if complete { scheduler.resume() } else { Ok(resume_all(&devices)) }
        })?;
        for (device, why) in devices.iter().zip(&lost) {
            let Some(why) = why else { continue };
            let same = |slot: &&mut DeviceSlot| slot.device.as_ref().is_some_and(|d| d.uid() == device.uid());
            let given_up = matches!(why, outboard_core::Error::Timeout { .. });
            let again = if given_up { None } else { device.reopened() };
            for slot in self.slots.iter_mut().filter(same) {
                slot.device = again.clone();
                slot.given_up = given_up;
            }
        }
        Ok(complete && lost.iter().all(Option::is_none))
    }

    /// Puts the model on the devices that there are now. Weights that lie where they are needed stay there.
    fn place_anew(&mut self, error: &Error) -> Result<()> {
        self.displaced = Some(error.clone());
        self.programs.clear();
        self.go_back(|_| 0);
        let missing = self.slots.iter().filter(|s| s.device.is_none() && !s.given_up);
        let lost: Vec<String> = missing.map(|s| s.id.clone()).collect();
        let failover = self.failover.as_mut().filter(|_| !lost.is_empty());
        for device in failover.map(|f| f.replace(&lost)).unwrap_or_default() {
            let mut missing = self.slots.iter_mut().filter(|s| s.device.is_none() && !s.given_up);
            let slot = missing.find(|s| s.id == device.info().id);
            if let Some(slot) = slot {
                slot.device = Some(device);
            }
        }
        let devices: Vec<Arc<dyn Device>> = self.slots.iter().filter_map(|s| s.device.clone()).collect();
        if devices.is_empty() {
            return Err(Error::Request("no other device is left".into()));
        }
        let options = self.options_now();
        let mut kept = self.take_weights_on(&devices);
        settle(&devices)?;
        let mut placed = Placed::new(&self.model, devices.clone(), &options, self.cache, &kept, &|_, _| {});
        if !kept.is_empty() && matches!(&placed, Err(e) if !is_lost(e)) {
            // Perhaps it fits without what lies there and is not needed there any more.
            kept.clear();
            settle(&devices)?;
            placed = Placed::new(&self.model, devices, &options, self.cache, &kept, &|_, _| {});
        }
        let mut placed = match placed {
            Ok(placed) => placed,
            Err(e) => {
                self.placed.bound = kept;
                return Err(e);
            }
        };
        placed.scheduler = placed.scheduler.replacing(&self.placed.scheduler);
        self.ahead.replace_steps(StepsAhead::new(placed.round_trip));
        self.placed = placed;
        self.displaced = None;
        Ok(())
    }

    /// Frees states, and weights on devices that are lost; gives the other weights.
    fn take_weights_on(&mut self, devices: &[Arc<dyn Device>]) -> Bound {
        self.placed.tables.clear();
        let mut bound = std::mem::take(&mut self.placed.bound);
        bound.retain(|(stored, device), _| {
            matches!(stored, Stored::Weight(_)) && devices.iter().any(|d| d.uid() == *device)
        });
        bound
    }

    /// The options that the model was loaded with, for the devices that there are now.
    fn options_now(&self) -> LoadOptions {
        let here: Vec<bool> = self.slots.iter().map(|s| s.device.is_some()).collect();
        let parts = self.options.split.iter().zip(&here).filter(|(_, here)| **here);
        let mut split: Vec<f64> = parts.map(|(part, _)| *part).collect();
        if split.iter().all(|part| *part <= 0.0)
            && let Some(first) = split.first_mut()
        {
            *first = 1.0;
        }
        let overrides = self.options.overrides.clone();
        let now = move |name: &str| {
            let device = overrides.device(name)?;
            let before = here.get(..device)?.iter().filter(|here| **here).count();
            here.get(device)?.then_some(before)
        };
        LoadOptions { split, overrides: Overrides::new(now), ..self.options.clone() }
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Core(outboard_core::Error::Peer { .. } | outboard_core::Error::Cancelled))
}

/// Returns when what was dropped before is free again: an allocation comes behind it.
fn settle(devices: &[Arc<dyn Device>]) -> Result<()> {
    try_at_once(devices, |d| d.alloc(1, Usage::Any).map(drop))?;
    Ok(())
}
