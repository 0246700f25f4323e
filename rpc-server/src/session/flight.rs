//! How much of a queue's work the device's queue holds: bounded, so that a client cannot fill this host's memory with it.

use crate::limits::{COMMANDS_IN_FLIGHT, KIB_IN_FLIGHT, NARROW_KIB};
use outboard_core::{Error, Result};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Room that is taken when a command is enqueued and given back when the device is past it.
#[derive(Debug)]
pub(crate) struct Flight {
    commands: Semaphore,
    kib: Semaphore,
    /// Kibibytes when nothing is taken.
    width: u32,
    /// Where commands are counted that are taken.
    depth: Gauge,
}

/// What was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) commands: u32,
    pub(crate) kib: u32,
}

/// Room that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    flight: Arc<Flight>,
    load: Load,
}

impl Hold {
    pub(crate) fn new(flight: &Arc<Flight>, load: Load) -> Hold {
        Hold { flight: flight.clone(), load }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.flight.release(self.load);
    }
}

impl Flight {
    /// Nothing is taken yet. A client has some `wide` ones, and narrower ones, which suffice for a chunk at a time.
    pub(crate) fn new(wide: bool, depth: Gauge) -> Flight {
        let width = if wide { KIB_IN_FLIGHT } else { NARROW_KIB };
        Flight {
            commands: Semaphore::new(COMMANDS_IN_FLIGHT as usize),
            kib: Semaphore::new(width as usize),
            width,
            depth,
        }
    }

    /// Waits for room for one command with `bytes` of payload.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Load> {
        let kib = self.kib_of(bytes);
        let ended = |_| Error::Cancelled;
        self.commands.acquire().await.map_err(ended)?.forget();
        if kib > 0 {
            self.kib.acquire_many(kib).await.map_err(ended)?.forget();
        }
        self.depth.inc();
        Ok(Load { commands: 1, kib })
    }

    /// Waits for room for `bytes` of payload beside that of a command.
    pub(crate) async fn take_room(&self, bytes: u64) -> Result<Load> {
        let kib = self.kib_of(bytes);
        self.kib.acquire_many(kib).await.map_err(|_| Error::Cancelled)?.forget();
        Ok(Load { commands: 0, kib })
    }

    /// What a payload counts: one that is larger than everything waits until nothing else is on the way.
    fn kib_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.width)
    }

    /// Whether a payload has to wait for a load that is taken.
    pub(crate) fn waits_for(&self, load: Load, bytes: u64) -> bool {
        load.kib > 0 && load.kib.saturating_add(self.kib_of(bytes)) > self.width
    }

    /// Whether nothing is taken: all that was enqueued is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.commands.available_permits() == COMMANDS_IN_FLIGHT as usize
    }

    /// Gives room back.
    fn release(&self, load: Load) {
        self.depth.dec_by(load.commands.into());
        self.commands.add_permits(load.commands as usize);
        self.kib.add_permits(load.kib as usize);
    }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.commands += other.commands;
        self.kib += other.kib;
    }
}
