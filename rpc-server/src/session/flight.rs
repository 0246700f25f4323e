//! How much of a queue's work the device's queue holds: bounded, so that a client cannot fill this host's memory with it.

use crate::accounts::Share;
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
    /// The queue's place on its client's account, and the right to be wide: taken for as long as anything is on the way, also when the
    /// queue is gone. Else a client could leave as much behind as it opens queues.
    _shares: (Option<Arc<Share>>, Option<Share>),
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
    /// The flight of a queue with this place on its client's account; nothing is taken yet. A client has some `wide` ones, and narrower
    /// ones, which suffice for a chunk at a time.
    pub(crate) fn new(queue: Option<Arc<Share>>, wide: Option<Share>, depth: Gauge) -> Flight {
        let width = if wide.is_some() { KIB_IN_FLIGHT } else { NARROW_KIB };
        Flight {
            commands: Semaphore::new(COMMANDS_IN_FLIGHT as usize),
            kib: Semaphore::new(width as usize),
            width,
            depth,
            _shares: (queue, wide),
        }
    }

    /// Waits for room for one command with `bytes` of payload.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Load> {
        let kib = self.kib_of(bytes);
        let ended = |_| Error::Cancelled;
        // Nothing is taken for good before there is room for all of it: who waits may give up.
        let command = self.commands.acquire().await.map_err(ended)?;
        if kib > 0 {
            self.kib.acquire_many(kib).await.map_err(ended)?.forget();
        }
        command.forget();
        self.depth.inc();
        Ok(Load { commands: 1, kib })
    }

    /// What a payload counts: one that is larger than everything waits until nothing else is on the way.
    fn kib_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.width)
    }

    /// Bytes that may be on the way together. Of a payload that is larger, only so many count.
    pub(crate) fn most(&self) -> u64 {
        u64::from(self.width) * 1024
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Accounts;
    use crate::limits::ClientLimits;

    #[test]
    fn a_queue_counts_for_as_long_as_something_of_it_is_on_the_way() {
        let limits = ClientLimits { queues: 1, ..ClientLimits::default() };
        let account = Accounts::new(limits).of(None, "10.0.0.1".parse().unwrap());
        let share = Arc::new(account.queue().unwrap());
        let flight = Arc::new(Flight::new(Some(share), account.wide_queue(), Gauge::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let load = runtime.block_on(flight.take(5000)).unwrap();
        assert_eq!(load.kib, 5);
        let hold = Hold::new(&flight, load);
        drop(flight);
        assert!(account.queue().is_err());
        drop(hold);
        assert!(account.queue().is_ok());
    }

    #[test]
    fn who_gives_up_waiting_takes_nothing() {
        let flight = Flight::new(None, None, Gauge::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let full = runtime.block_on(flight.take(u64::MAX)).unwrap();
        let moment = std::time::Duration::from_millis(1);
        assert!(runtime.block_on(async { tokio::time::timeout(moment, flight.take(1)).await }).is_err());
        flight.release(full);
        assert!(flight.is_idle());
    }
}
