//! How much of a queue's work the device's queue holds: bounded, so that a client cannot fill this host's memory with it.

use crate::limits::{COMMANDS_IN_FLIGHT, KIB_IN_FLIGHT};
use outboard_core::{Error, Result};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Room that is taken when a command is enqueued and given back when the device is past it.
#[derive(Debug)]
pub(crate) struct Flight {
    commands: Semaphore,
    kib: Semaphore,
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
    pub(crate) fn new() -> Flight {
        Flight { commands: Semaphore::new(COMMANDS_IN_FLIGHT as usize), kib: Semaphore::new(KIB_IN_FLIGHT as usize) }
    }

    /// Waits for room for one command with `bytes` of payload.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Load> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(KIB_IN_FLIGHT);
        let ended = |_| Error::Cancelled;
        self.commands.acquire().await.map_err(ended)?.forget();
        if kib > 0 {
            self.kib.acquire_many(kib).await.map_err(ended)?.forget();
        }
        Ok(Load { commands: 1, kib })
    }

    /// Whether nothing is taken: all that was enqueued is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.commands.available_permits() == COMMANDS_IN_FLIGHT as usize
    }

    /// Gives room back.
    fn release(&self, load: Load) {
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
