//! How much of a queue's work the device's queue holds: bounded, so that a client cannot fill this host's memory with it.
//!
//! Each queue has some room for payloads of its own, so that it can go on whatever others do, and takes more from what the queues of
//! its client share, while there is some.

use crate::accounts::AccountShare;
use crate::limits::{CHUNK_KIB, COMMANDS_IN_FLIGHT, KIB_IN_FLIGHT, OWN_KIB};
use crate::room::{Pool, Room};
use outboard_core::{Error, Result};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room that is taken when a command is enqueued and given back when the device is past it.
#[derive(Debug)]
pub(crate) struct Flight {
    commands: Semaphore,
    own: Semaphore,
    shared: Pool,
    /// Kibibytes that are taken from what is shared.
    borrowed: AtomicU32,
    /// Where commands are counted that are taken.
    depth: Gauge,
    /// The queue's place on its client's account: taken for as long as anything is on the way, also when the queue is gone. Else a
    /// client could leave as much behind as it opens queues.
    _queue: Option<Arc<AccountShare>>,
}

/// What was taken.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) commands: u32,
    /// Of the queue's own room, in kibibytes.
    own: u32,
    /// Of what is shared.
    borrowed: u32,
    rooms: Vec<Room>,
}

/// Room that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    flight: Arc<Flight>,
    pub(crate) load: Load,
}

impl Hold {
    pub(crate) fn new(flight: &Arc<Flight>, load: Load) -> Hold {
        Hold { flight: flight.clone(), load }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.flight.release(std::mem::take(&mut self.load));
    }
}

impl Flight {
    /// The flight of a queue with this place on its client's account; nothing is taken yet.
    pub(crate) fn new(queue: Option<Arc<AccountShare>>, shared: Pool, depth: Gauge) -> Flight {
        Flight {
            commands: Semaphore::new(COMMANDS_IN_FLIGHT as usize),
            own: Semaphore::new(OWN_KIB as usize),
            shared,
            borrowed: AtomicU32::new(0),
            depth,
            _queue: queue,
        }
    }

    /// Waits for room for one command.
    pub(crate) async fn command(&self) -> Result<Load> {
        self.commands.acquire().await.map_err(|_| Error::Cancelled)?.forget();
        self.depth.inc();
        Ok(Load { commands: 1, ..Load::default() })
    }

    /// Room for a payload if there is some now, the queue's own first.
    pub(crate) fn try_payload(&self, bytes: u64) -> Option<Load> {
        let kib = kib_of(bytes, OWN_KIB);
        if let Ok(own) = self.own.try_acquire_many(kib) {
            // One that is larger than all of that still counts as what it is, if it can.
            let more = kib_of(bytes, KIB_IN_FLIGHT) - kib;
            if more == 0 {
                own.forget();
                return Some(Load { own: kib, ..Load::default() });
            }
        }
        self.try_borrow(kib_of(bytes, KIB_IN_FLIGHT))
    }

    fn try_borrow(&self, kib: u32) -> Option<Load> {
        // One task takes, so that nobody does in between.
        let borrowed = self.borrowed.load(Ordering::Acquire).checked_add(kib)?;
        if borrowed > KIB_IN_FLIGHT {
            return None;
        }
        let room = self.shared.try_take(kib)?;
        self.borrowed.fetch_add(kib, Ordering::AcqRel);
        Some(Load { borrowed: kib, rooms: vec![room], ..Load::default() })
    }

    /// Bytes of a payload that counts as what it is, whatever others have.
    pub(crate) fn most(&self) -> u64 {
        u64::from(OWN_KIB) << 10
    }

    /// Waits for room for a payload, of the queue's own: a larger one waits until nothing else has any.
    pub(crate) async fn payload(&self, bytes: u64) -> Result<Load> {
        let kib = kib_of(bytes, OWN_KIB);
        self.own.acquire_many(kib).await.map_err(|_| Error::Cancelled)?.forget();
        Ok(Load { own: kib, ..Load::default() })
    }

    /// Whether nothing is taken: all that was enqueued is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.commands.available_permits() == COMMANDS_IN_FLIGHT as usize
    }

    /// Gives room back.
    fn release(&self, load: Load) {
        self.depth.dec_by(load.commands.into());
        self.commands.add_permits(load.commands as usize);
        self.own.add_permits(load.own as usize);
        self.borrowed.fetch_sub(load.borrowed, Ordering::AcqRel);
    }
}

/// Kibibytes that a payload counts as, at most.
fn kib_of(bytes: u64, most: u32) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(most)
}

impl Load {
    /// Kibibytes of payload.
    pub(crate) fn kib(&self) -> u32 {
        self.own + self.borrowed
    }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, mut other: Load) {
        self.commands += other.commands;
        self.own += other.own;
        self.borrowed += other.borrowed;
        self.rooms.append(&mut other.rooms);
    }
}

/// Room for chunks on their way from a bulk stream to its queue: for one always, for more from what is shared.
#[derive(Clone, Debug)]
pub(crate) struct Inlet {
    own: Arc<Semaphore>,
    shared: Pool,
}

/// Room of one chunk, given back when this is dropped.
#[derive(Debug)]
pub(crate) enum ChunkRoom {
    Own { _permit: OwnedSemaphorePermit },
    Shared { _room: Room },
}

impl Inlet {
    pub(crate) fn new(shared: Pool) -> Inlet {
        Inlet { own: Arc::new(Semaphore::new(1)), shared }
    }

    /// Waits for room for a chunk.
    pub(crate) async fn take(&self) -> Result<ChunkRoom> {
        if self.own.available_permits() == 0
            && let Some(room) = self.shared.try_take(CHUNK_KIB)
        {
            return Ok(ChunkRoom::Shared { _room: room });
        }
        let permit = self.own.clone().acquire_owned().await.map_err(|_| Error::Cancelled)?;
        Ok(ChunkRoom::Own { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Accounts;
    use crate::fair::FairRoom;
    use crate::limits::{ClientLimits, Limits};

    fn flight(shared_kib: usize) -> (Arc<Flight>, Pool) {
        let pool = Pool::new(shared_kib, 1, &FairRoom::new(1 << 30));
        (Arc::new(Flight::new(None, pool.clone(), Gauge::default())), pool)
    }

    #[test]
    fn payloads_take_the_own_room_first_and_then_what_is_shared() {
        let (flight, pool) = flight(4 << 10);
        let mib = |n: u64| n << 20;
        let own = flight.try_payload(mib(1)).unwrap();
        assert_eq!((own.own, own.borrowed), (1024, 0));
        let mut all = flight.try_payload(mib(3)).unwrap();
        assert_eq!((all.own, all.borrowed), (0, 3 << 10));
        all += flight.try_payload(mib(1)).unwrap();
        assert!(flight.try_payload(1).is_none() && pool.try_take(1).is_none());
        assert_eq!(all.kib(), 4 << 10);
        drop(Hold::new(&flight, all));
        let all = flight.try_payload(mib(4)).unwrap();
        drop((Hold::new(&flight, own), Hold::new(&flight, all)));
        // Nothing is lost.
        assert!(pool.try_take(4 << 10).is_some());
        assert_eq!(flight.own.available_permits(), 1024);
    }

    #[test]
    fn a_queue_counts_for_as_long_as_something_of_it_is_on_the_way() {
        let limits = ClientLimits { queues: 1, ..ClientLimits::default() };
        let limits = Limits { client: limits, ..Limits::default() };
        let account = Accounts::new(&limits).of(None, "10.0.0.1".parse().unwrap());
        let share = Arc::new(account.queue().unwrap());
        let flight = Arc::new(Flight::new(Some(share), account.payload.clone(), Gauge::default()));
        let hold = Hold::new(&flight, flight.try_payload(5000).unwrap());
        assert_eq!(hold.load.kib(), 5);
        drop(flight);
        assert!(account.queue().is_err());
        drop(hold);
        assert!(account.queue().is_ok());
    }

    #[test]
    fn one_queue_takes_no_more_than_its_part() {
        let (flight, _) = flight(1 << 20);
        let most = flight.try_payload(u64::MAX).unwrap();
        assert_eq!((most.own, most.borrowed), (0, KIB_IN_FLIGHT));
        let own = flight.try_payload(1).unwrap();
        assert_eq!((own.own, own.borrowed), (1, 0));
        assert!(flight.try_payload(2 << 20).is_none());
        drop((Hold::new(&flight, most), Hold::new(&flight, own)));
    }

    #[test]
    fn a_queue_goes_on_when_nothing_is_shared() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (flight, _) = flight(0);
            let first = Hold::new(&flight, flight.payload(64 << 20).await.unwrap());
            assert!(flight.try_payload(1).is_none());
            drop(first);
            assert_eq!(flight.payload(1 << 10).await.unwrap().kib(), 1);
            let inlet = Inlet::new(Pool::new(0, 1, &FairRoom::new(0)));
            let one = inlet.take().await.unwrap();
            let second = inlet.take();
            tokio::pin!(second);
            tokio::select! {
                biased;
                room = second.as_mut() => panic!("{room:?}"),
                () = std::future::ready(()) => {}
            }
            drop(one);
            second.await.unwrap();
        });
    }
}
