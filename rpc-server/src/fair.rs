//! Room that clients share, so that none of them keeps the others out.

use crate::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// So much of something. A client may have no more of it than it leaves to others: half if it is alone, a third if another one has a
/// third, and so on (dynamic thresholds: Choudhury and Hahne, 1998).
#[derive(Debug)]
pub(crate) struct Fair {
    most: u64,
    taken: u64,
    /// By the uid of the client's account; none is 0.
    of: HashMap<u64, u64>,
}

impl Fair {
    pub(crate) fn new(most: u64) -> Fair {
        Fair { most, taken: 0, of: HashMap::new() }
    }

    /// Takes some for a client, or says that it cannot have so much more. Nothing can always be had.
    pub(crate) fn take(&mut self, account: u64, amount: u64) -> bool {
        if amount == 0 {
            return true;
        }
        let mine = self.of.get(&account).copied().unwrap_or(0);
        let others = self.taken.saturating_sub(mine);
        let limit = self.most.saturating_sub(others) / 2;
        match mine.checked_add(amount) {
            Some(sum) if sum <= limit => {
                self.of.insert(account, sum);
                self.taken += amount;
                true
            }
            _ => false,
        }
    }

    /// Gives back what was taken.
    pub(crate) fn give(&mut self, account: u64, amount: u64) {
        let Some(mine) = self.of.get_mut(&account) else { return };
        let amount = amount.min(*mine);
        *mine -= amount;
        self.taken -= amount;
        if *mine == 0 {
            self.of.remove(&account);
        }
    }

    /// What is taken by all.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}

/// [`Fair`] with shares that give themselves back.
#[derive(Debug)]
pub(crate) struct FairRoom {
    room: Mutex<Fair>,
    given_back: Notify,
}

/// What a client has of such room, until it is dropped.
#[derive(Debug)]
pub(crate) struct FairShare {
    of: Arc<FairRoom>,
    account: u64,
    amount: u64,
}

impl FairRoom {
    pub(crate) fn new(most: u64) -> Arc<FairRoom> {
        Arc::new(FairRoom { room: Mutex::new(Fair::new(most)), given_back: Notify::new() })
    }

    /// Takes some for a client, by the uid of its account, if it may have so much more now.
    pub(crate) fn try_take(self: &Arc<Self>, account: u64, amount: u64) -> Option<FairShare> {
        lock(&self.room).take(account, amount).then(|| FairShare { of: self.clone(), account, amount })
    }

    /// Waits until it may.
    pub(crate) async fn take(self: &Arc<Self>, account: u64, amount: u64) -> FairShare {
        loop {
            let mut given_back = std::pin::pin!(self.given_back.notified());
            given_back.as_mut().enable();
            if let Some(share) = self.try_take(account, amount) {
                return share;
            }
            given_back.await;
        }
    }
}

impl Drop for FairShare {
    fn drop(&mut self) {
        lock(&self.of.room).give(self.account, self.amount);
        self.of.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_gives_itself_back_and_wakes_those_who_wait() {
        let room = FairRoom::new(8);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mine, other) = (room.try_take(1, 4).unwrap(), room.try_take(2, 2).unwrap());
            assert!(room.try_take(3, 2).is_none());
            let waits = room.take(3, 2);
            tokio::pin!(waits);
            let moment = std::time::Duration::from_millis(5);
            assert!(tokio::time::timeout(moment, waits.as_mut()).await.is_err());
            drop(mine);
            drop((waits.await, other));
        });
        assert_eq!(lock(&room.room).taken(), 0);
    }

    #[test]
    fn nobody_takes_more_than_is_left_to_others() {
        let mut room = Fair::new(100);
        assert!(room.take(1, 50) && !room.take(1, 1) && room.take(1, 0));
        // However many follow, there is always some for the next.
        assert!(!room.take(2, 26) && room.take(2, 25));
        assert!(!room.take(3, 13) && room.take(3, 12));
        assert!(room.take(4, 6) && room.take(5, 3) && room.take(6, 2) && room.take(7, 1));
        room.give(1, 20);
        // Whoever has more than others leave it may have no more, until it has less.
        assert!(!room.take(1, 1) && room.take(8, 10));
        assert!(!room.take(1, u64::MAX) && !room.take(9, u64::MAX));
        for client in 1..=9 {
            room.give(client, u64::MAX);
        }
        assert!(room.taken() == 0 && room.of.is_empty());
    }
}
