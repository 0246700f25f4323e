//! Who computes next: a lock that goes round between groups of queues, and within a group in the order in which it was asked for.
//!
//! A group is what belongs together, such as the queues of one session of a server: however many queues it has, it gets one turn
//! for each that another group gets.

use crate::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often one who waits looks whether it still wants to.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Turns of the queues of one device. A plain mutex lets the queue that ran last take it again and again.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// The group that has the turn, and its queues that wait for another one. It goes back into the line when the turn is over:
    /// whoever has asked by then is before it.
    running: Option<(u64, VecDeque<u64>)>,
    /// Other groups that wait, each once, with their queues that wait, never none; the first of the first group is next.
    waiting: VecDeque<(u64, VecDeque<u64>)>,
    /// How those who wait are woken.
    wake: HashMap<u64, Arc<Condvar>>,
}

impl Line {
    fn add(&mut self, group: u64, who: u64) {
        if let Some((_, queues)) = self.running.as_mut().filter(|(g, _)| *g == group) {
            return queues.push_back(who);
        }
        match self.waiting.iter_mut().find(|(g, _)| *g == group) {
            Some((_, queues)) => queues.push_back(who),
            None => self.waiting.push_back((group, VecDeque::from([who]))),
        }
    }

    fn remove(&mut self, group: u64, who: u64) {
        let groups = self.waiting.iter_mut().chain(&mut self.running);
        groups.filter(|(g, _)| *g == group).for_each(|(_, queues)| queues.retain(|&w| w != who));
        self.waiting.retain(|(_, queues)| !queues.is_empty());
    }

    /// Gives the turn to `who` if nobody has it and it is next.
    fn give(&mut self, group: u64, who: u64) -> bool {
        let next = self.waiting.front().and_then(|(g, queues)| Some((*g, *queues.front()?)));
        if self.running.is_some() || next != Some((group, who)) {
            return false;
        }
        self.running = self.waiting.pop_front();
        if let Some((_, queues)) = &mut self.running {
            queues.pop_front();
        }
        true
    }

    /// Wakes whoever is next, if nobody has the turn.
    fn wake_next(&self) {
        let next = self.waiting.front().and_then(|(_, queues)| queues.front()).filter(|_| self.running.is_none());
        if let Some(wake) = next.and_then(|who| self.wake.get(who)) {
            wake.notify_one();
        }
    }

    /// The turn is over.
    fn end(&mut self) {
        self.waiting.extend(self.running.take().filter(|(_, queues)| !queues.is_empty()));
    }
}

/// A turn, over when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn of queue `who` of a group; `None` if `cancel` was set before it came.
    pub(crate) fn take(&self, group: u64, who: u64, cancel: &AtomicBool) -> Option<Turn<'_>> {
        let mut line = lock(&self.line);
        line.add(group, who);
        if line.give(group, who) {
            return Some(Turn(self));
        }
        let wake = Arc::new(Condvar::new());
        line.wake.insert(who, wake.clone());
        let mut given = false;
        while !given && !cancel.load(Ordering::Relaxed) {
            line = wake.wait_timeout(line, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
            given = line.give(group, who);
        }
        line.wake.remove(&who);
        if given {
            return Some(Turn(self));
        }
        line.remove(group, who);
        // Another may be next now.
        line.wake_next();
        None
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = lock(&self.0.line);
        line.end();
        line.wake_next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which queues get their turns that ask for it, one after the other, while another has it.
    fn order(asked: &[(u64, u64)]) -> Vec<u64> {
        let turns = Arc::new(Turns::default());
        let first = turns.take(0, 0, &AtomicBool::new(false)).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        for (n, &(group, who)) in asked.iter().enumerate() {
            let (of, order) = (turns.clone(), order.clone());
            threads.push(std::thread::spawn(move || {
                let _turn = of.take(group, who, &AtomicBool::new(false)).unwrap();
                order.lock().unwrap().push(who);
            }));
            while lock(&turns.line).waiting.iter().map(|(_, queues)| queues.len()).sum::<usize>() <= n {
                std::thread::yield_now();
            }
        }
        assert!(turns.take(9, 9, &AtomicBool::new(true)).is_none());
        drop(first);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(lock(&turns.line).waiting.is_empty());
        Arc::into_inner(order).unwrap().into_inner().unwrap()
    }

    #[test]
    fn turns_of_queues_of_their_own_come_in_order() {
        assert_eq!(order(&[(1, 1), (2, 2), (3, 3)]), [1, 2, 3]);
    }

    #[test]
    fn whoever_asks_during_a_turn_is_before_the_group_that_has_it() {
        let mut line = Line::default();
        (1..=3).for_each(|who| line.add(1, who));
        assert!(line.give(1, 1));
        line.add(2, 21);
        line.add(1, 4);
        assert!(!line.give(2, 21), "while another has the turn");
        line.end();
        assert!(!line.give(1, 2) && line.give(2, 21));
        line.end();
        line.add(2, 21);
        line.remove(1, 2);
        assert!(line.give(1, 3));
        line.remove(1, 4);
        line.end();
        assert!(line.give(2, 21));
        line.end();
        assert!(line.running.is_none() && line.waiting.is_empty());
    }

    #[test]
    fn a_group_of_many_queues_gets_one_turn_in_each_round() {
        let asked = [(1, 11), (1, 12), (1, 13), (1, 14), (2, 21), (2, 22), (3, 31)];
        assert_eq!(order(&asked), [11, 21, 31, 12, 22, 13, 14]);
    }
}
