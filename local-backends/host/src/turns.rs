//! Who computes next: a lock that goes round in the order in which it was asked for.

use crate::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often one who waits looks whether it still wants to.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Turns of the queues of one device. A plain mutex lets the queue that ran last take it again and again.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Who waits, by queue; the first has the turn.
    line: Mutex<VecDeque<u64>>,
    changed: Condvar,
}

/// A turn, over when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn of queue `who`; `None` if `cancel` was set before it came.
    pub(crate) fn take(&self, who: u64, cancel: &AtomicBool) -> Option<Turn<'_>> {
        let mut line = lock(&self.line);
        line.push_back(who);
        while line.front() != Some(&who) {
            if cancel.load(Ordering::Relaxed) {
                line.retain(|&w| w != who);
                return None;
            }
            line = self.changed.wait_timeout(line, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.line).pop_front();
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn turns_come_in_order() {
        let turns = Arc::new(Turns::default());
        let never = AtomicBool::new(false);
        let first = turns.take(1, &never).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        for who in 2..5 {
            let (turns2, order) = (turns.clone(), order.clone());
            threads.push(std::thread::spawn(move || {
                let _turn = turns2.take(who, &AtomicBool::new(false)).unwrap();
                order.lock().unwrap().push(who);
            }));
            while lock(&turns.line).len() < who as usize {
                std::thread::yield_now();
            }
        }
        assert!(turns.take(9, &AtomicBool::new(true)).is_none());
        drop(first);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*order.lock().unwrap(), [2, 3, 4]);
    }
}
