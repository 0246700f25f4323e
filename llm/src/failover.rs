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
use crate::health::Health;
use crate::placed_model::PlacedModel;
use crate::placement::{DeviceLoad, LoadOptions, Overrides, Placed};
use crate::watch::{is_cancelled, watched};
use outboard_core::{Device, Usage, try_at_once};
use outboard_scheduler::resume_all;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Recoveries without a token in between, after which a run ends: more devices than that are not lost by chance.
const MAX_RECOVERIES: usize = 8;

/// Between two times that lost devices are asked for.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Helps a run that has lost devices.
pub trait Failover: Send {
    /// Devices in place of those with these ids, as far as they have come back: with the same ids, and nothing on them. What it waits
    /// for, the run waits for. Those whose servers were alive and got no further are not asked for: they would stop the run again.
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>>;
    /// How long devices that are lost are waited for where those that are left have no room for the model. They are asked for again and again then.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
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
    /// What lies where now. Devices that are lost are not among them.
    pub loads: Vec<DeviceLoad>,
    /// Tokens that are read again.
    pub tokens: usize,
    /// From the error until the run went on.
    pub took: Duration,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovery { error, devices, tokens, took, .. } = self;
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
    /// It got no further: it is not asked for again by this run.
    given_up: bool,
    /// A device of this process that was given up, which nobody but itself opens again.
    closed: Option<Arc<dyn Device>>,
}

impl DeviceSlot {
    pub(crate) fn all(devices: &[Arc<dyn Device>]) -> Vec<DeviceSlot> {
        devices
            .iter()
            .map(|d| DeviceSlot { id: d.info().id.clone(), device: Some(d.clone()), given_up: false, closed: None })
            .collect()
    }

    /// Whether it is away and may come back.
    fn is_lost(&self) -> bool {
        self.device.is_none() && !self.given_up
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
        let (mut error, until) = (error, self.patient_until());
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
                self.health.note(&error);
                return ends(format!("{MAX_RECOVERIES} times in turn no token has come"));
            }
            self.recoveries += 1;
            match self.try_again(&error, until) {
                Ok(()) => return Ok(()),
                // Another one is lost.
                Err(next) if next.is_loss() => error = next,
                Err(Error::Core(e @ outboard_core::Error::Cancelled)) => return Err(e.into()),
                Err(why) => return ends(why.to_string()),
            }
        }
    }

    /// Until when lost devices are waited for, from now on.
    pub(crate) fn patient_until(&self) -> Instant {
        Instant::now() + self.failover.as_ref().map_or(Duration::ZERO, |failover| failover.patience())
    }

    /// Takes the devices up again, or puts the model on those that are left, which waits until `until` for lost ones, and says how it goes on.
    pub(crate) fn try_again(&mut self, error: &Error, until: Instant) -> Result<()> {
        let start = Instant::now();
        self.health.note(error);
        let who = match error {
            Error::Core(outboard_core::Error::Peer { endpoint, .. }) => endpoint.clone(),
            _ => self.devices_here().iter().map(|device| device.info().id.clone()).collect::<Vec<_>>().join(", "),
        };
        let devices = if self.take_up(who)? {
            self.programs.iter().for_each(|(_, program)| program.copy_weights_again());
            self.go_back(|state| state.text.confirmed().min(state.n_past));
            None
        } else {
            self.place_anew(error, until)?;
            Some(self.loads().iter().filter(|l| l.is_used()).map(|l| l.id.clone()).collect())
        };
        // What was told before may not have arrived.
        self.write_tables()?;
        self.health = Health::Sound;
        let wanted = self.sequences.iter().flatten().filter(|state| state.job.is_some() || state.is_only_read());
        let tokens = wanted.map(|state| state.text.len() - state.n_past).sum();
        let loads = self.loads().to_vec();
        let recovery = Recovery { error: error.clone(), devices, loads, tokens, took: start.elapsed() };
        if let Some(failover) = &mut self.failover {
            failover.recovered(&recovery);
        }
        Ok(())
    }

    /// What got no further may have been restarted since: it is asked for again.
    pub(crate) fn forgive(&mut self) {
        for slot in &mut self.slots {
            slot.given_up = false;
            slot.device = slot.device.take().or_else(|| slot.closed.take()?.reopened());
        }
    }

    /// Frees what the devices still hold of a model that has no place.
    pub(crate) fn leave_devices(&mut self) {
        self.programs.clear();
        self.placement.tables.clear();
        self.placement.bound.clear();
    }

    /// Takes all devices up again; `false` if not all of the model is on them any more.
    fn take_up(&mut self, who: String) -> Result<bool> {
        let devices = self.devices_here();
        let (scheduler, watch, complete) =
            (&mut self.placement.scheduler, self.watch.as_deref(), !matches!(self.health, Health::Displaced(_)));
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
                slot.closed = Some(device.clone()).filter(|device| given_up && device.host().is_some());
            }
        }
        Ok(complete && lost.iter().all(Option::is_none))
    }

    /// Puts the model on the devices that there are now. Weights that lie where they are needed stay there.
    fn place_anew(&mut self, error: &Error, until: Instant) -> Result<()> {
        self.health = Health::Displaced(error.clone());
        self.programs.clear();
        self.go_back(|_| 0);
        if self.failover.is_none() && self.slots.iter().any(|slot| slot.device.is_none()) {
            return Err(error.clone());
        }
        self.ask_for_lost();
        self.keep_weights_here();
        while Instant::now() < until && !self.has_room()? && self.wait_for_lost(until)? {}
        let mut placed = self.place_here()?;
        placed.scheduler = placed.scheduler.replacing(&self.placement.scheduler);
        self.ahead.replace_steps(StepsAhead::new(placed.round_trip));
        self.placement = placed;
        self.health = Health::Failed(error.clone());
        Ok(())
    }

    /// Ids of devices that are lost and may come back.
    fn lost(&self) -> Vec<String> {
        self.slots.iter().filter(|slot| slot.is_lost()).map(|slot| slot.id.clone()).collect()
    }

    /// Asks once for devices that are lost; gives whether any has come back.
    fn ask_for_lost(&mut self) -> bool {
        let lost = self.lost();
        let failover = self.failover.as_mut().filter(|_| !lost.is_empty());
        let back = failover.map(|failover| failover.replace(&lost)).unwrap_or_default();
        let is_back = !back.is_empty();
        for device in back {
            let slot = self.slots.iter_mut().find(|slot| slot.is_lost() && slot.id == device.info().id);
            if let Some(slot) = slot {
                slot.device = Some(device);
            }
        }
        is_back
    }

    /// Asks for devices that are lost, and for nothing else, until one has come back; `false` if none has.
    fn wait_for_lost(&mut self, until: Instant) -> Result<bool> {
        let (who, watch, cancel) = (self.lost().join(", "), self.watch.clone(), self.cancel_token());
        if who.is_empty() {
            return Ok(false);
        }
        watched(watch.as_deref(), who, "to come back", || {
            while Instant::now() < until {
                if cancel.load(Ordering::Relaxed) {
                    return Err(outboard_core::Error::Cancelled.into());
                }
                std::thread::sleep(ASK_AGAIN.min(until.saturating_duration_since(Instant::now())));
                if self.ask_for_lost() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Devices that are not lost.
    fn devices_here(&self) -> Vec<Arc<dyn Device>> {
        self.slots.iter().filter_map(|slot| slot.device.clone()).collect()
    }

    /// Whether the model would fit on the devices that there are now.
    fn has_room(&self) -> Result<bool> {
        let devices = self.devices_here();
        if devices.is_empty() {
            return Ok(false);
        }
        settle(&devices)?;
        let options = self.options_now();
        match Placed::would_fit(&self.model, devices, &options, self.cache, &self.placement.bound) {
            Ok(()) => Ok(true),
            Err(error) if error.is_about_room() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The model on the devices that there are now.
    fn place_here(&mut self) -> Result<Placed> {
        let devices = self.devices_here();
        if devices.is_empty() {
            return Err(Error::Request("no other device is left".into()));
        }
        settle(&devices)?;
        let options = self.options_now();
        let place = |kept: &Bound| Placed::new(&self.model, devices.clone(), &options, self.cache, kept, &|_, _| {});
        let placed = place(&self.placement.bound);
        if self.placement.bound.is_empty() || !matches!(&placed, Err(e) if !is_lost(e)) {
            return placed;
        }
        // Perhaps it fits without what lies there and is not needed there any more.
        self.placement.bound.clear();
        settle(&devices)?;
        place(&self.placement.bound)
    }

    /// Frees states, and what lay on devices that are lost; keeps the other weights.
    fn keep_weights_here(&mut self) {
        self.placement.tables.clear();
        let devices = self.devices_here();
        self.placement.bound.retain(|(stored, device), _| {
            matches!(stored, Stored::Weight(_)) && devices.iter().any(|d| d.uid() == *device)
        });
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
    error.is_loss() || is_cancelled(error)
}

/// Returns when what was dropped before is free again: an allocation comes behind it.
fn settle(devices: &[Arc<dyn Device>]) -> Result<()> {
    try_at_once(devices, |d| d.alloc(1, Usage::Any).map(drop))?;
    Ok(())
}
