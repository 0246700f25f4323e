//! Who computes next: a lock that goes round between groups of queues, and within a group in the order in which it was asked for.
//!
//! A group is what belongs together, such as the queues of one session of a server: however many queues it has, it gets one turn
//! for each that another group gets. A device that is given graphs ahead of time has several turns at once.

use crate::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often one who waits looks whether it still wants to.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Turns of the queues of one device. A plain mutex lets the queue that ran last take it again and again.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Turns at once.
    most: usize,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// Groups that have a turn, each with the number of the turn and its queues that wait for another one. A group goes back into the line
    /// when the turn is over: whoever has asked by then is before it.
    running: Vec<(u64, u64, VecDeque<u64>)>,
    /// Turns that were given.
    given: u64,
    /// Other groups that wait, each once, with their queues that wait, never none; the first of the first group is next.
    waiting: VecDeque<(u64, VecDeque<u64>)>,
    /// How those who wait are woken.
    wake: HashMap<u64, Arc<Condvar>>,
}

impl Line {
    /// Puts a queue in the line. A group that has a turn waits for its end where there is no other turn to have.
    fn add(&mut self, most: usize, group: u64, who: u64) {
        let full = self.running.len() >= most;
        if let Some((_, _, queues)) = self.running.iter_mut().find(|(_, g, _)| full && *g == group) {
            return queues.push_back(who);
        }
        match self.waiting.iter_mut().find(|(g, _)| *g == group) {
            Some((_, queues)) => queues.push_back(who),
            None => self.waiting.push_back((group, VecDeque::from([who]))),
        }
    }

    fn remove(&mut self, group: u64, who: u64) {
        let running = self.running.iter_mut().map(|(_, g, queues)| (g, queues));
        let groups = self.waiting.iter_mut().map(|(g, queues)| (g, queues)).chain(running);
        groups.filter(|(g, _)| **g == group).for_each(|(_, queues)| queues.retain(|&w| w != who));
        self.waiting.retain(|(_, queues)| !queues.is_empty());
    }

    /// Gives a turn to `who`, with its number, if there is one to have and it is next.
    fn give(&mut self, most: usize, group: u64, who: u64) -> Option<u64> {
        let next = self.waiting.front().and_then(|(g, queues)| Some((*g, *queues.front()?)));
        if self.running.len() >= most || next != Some((group, who)) {
            return None;
        }
        let (_, mut queues) = self.waiting.pop_front()?;
        queues.pop_front();
        if self.running.len() + 1 < most && !queues.is_empty() {
            // Its other queues need not wait for the end of this turn.
            self.waiting.push_back((group, std::mem::take(&mut queues)));
        }
        self.given += 1;
        self.running.push((self.given, group, queues));
        Some(self.given)
    }

    /// Wakes whoever is next, if there is a turn to have.
    fn wake_next(&self, most: usize) {
        let next = self.waiting.front().and_then(|(_, queues)| queues.front());
        if let Some(wake) = next.filter(|_| self.running.len() < most).and_then(|who| self.wake.get(who)) {
            wake.notify_one();
        }
    }

    /// The turn of this number is over, and there is one to have: groups that have others go back into the line for it, too.
    fn end(&mut self, number: u64) {
        let Some(at) = self.running.iter().position(|(n, _, _)| *n == number) else { return };
        let (_, group, queues) = self.running.swap_remove(at);
        self.wait_again(group, queues);
        for at in 0..self.running.len() {
            let (_, group, queues) = &mut self.running[at];
            let (group, queues) = (*group, std::mem::take(queues));
            self.wait_again(group, queues);
        }
    }

    fn wait_again(&mut self, group: u64, queues: VecDeque<u64>) {
        if queues.is_empty() {
            return;
        }
        match self.waiting.iter_mut().find(|(g, _)| *g == group) {
            Some((_, waiting)) => waiting.extend(queues),
            None => self.waiting.push_back((group, queues)),
        }
    }
}

/// A turn, over when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    of: Arc<Turns>,
    number: u64,
}

impl Turns {
    /// So many turns at once, at least one.
    pub(crate) fn new(most: usize) -> Arc<Turns> {
        Arc::new(Turns { most: most.max(1), line: Mutex::default() })
    }

    /// Waits for the turn of queue `who` of a group; `None` if `cancel` was set before it came.
    pub(crate) fn take(self: &Arc<Turns>, group: u64, who: u64, cancel: &AtomicBool) -> Option<Turn> {
        let turn = |number| Turn { of: self.clone(), number };
        let mut line = lock(&self.line);
        line.add(self.most, group, who);
        if let Some(number) = line.give(self.most, group, who) {
            line.wake_next(self.most);
            return Some(turn(number));
        }
        let wake = Arc::new(Condvar::new());
        line.wake.insert(who, wake.clone());
        let mut given = None;
        while given.is_none() && !cancel.load(Ordering::Relaxed) {
            line = wake.wait_timeout(line, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
            given = line.give(self.most, group, who);
        }
        line.wake.remove(&who);
        if given.is_none() {
            line.remove(group, who);
        }
        // Another may be next now.
        line.wake_next(self.most);
        given.map(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = lock(&self.of.line);
        line.end(self.number);
        line.wake_next(self.of.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which queues get their turns that ask for it, one after the other, while another has it.
    fn order(asked: &[(u64, u64)]) -> Vec<u64> {
        let turns = Turns::new(1);
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
        (1..=3).for_each(|who| line.add(1, 1, who));
        let first = line.give(1, 1, 1).unwrap();
        line.add(1, 2, 21);
        line.add(1, 1, 4);
        assert!(line.give(1, 2, 21).is_none(), "while another has the turn");
        line.end(first);
        assert!(line.give(1, 1, 2).is_none());
        let second = line.give(1, 2, 21).unwrap();
        line.end(second);
        line.add(1, 2, 21);
        line.remove(1, 2);
        let third = line.give(1, 1, 3).unwrap();
        line.remove(1, 4);
        line.end(third);
        let fourth = line.give(1, 2, 21).unwrap();
        line.end(fourth);
        assert!(line.running.is_empty() && line.waiting.is_empty());
    }

    #[test]
    fn a_group_alone_has_every_turn_and_gives_one_to_another_that_asks() {
        let mut line = Line::default();
        let ask = |line: &mut Line, group, who| {
            line.add(2, group, who);
            line.give(2, group, who)
        };
        let (first, second) = (ask(&mut line, 1, 1).unwrap(), ask(&mut line, 1, 1).unwrap());
        assert_eq!((ask(&mut line, 1, 1), ask(&mut line, 2, 2)), (None, None));
        line.end(first);
        assert!(line.give(2, 1, 1).is_none());
        let other = line.give(2, 2, 2).unwrap();
        line.end(second);
        let third = line.give(2, 1, 1).unwrap();
        [third, other].into_iter().for_each(|turn| line.end(turn));
        // Whoever waits for a turn of its group does not wait for that when another one is free.
        let host = ask(&mut line, 1, 1).unwrap();
        (1..=2).for_each(|who| line.add(2, 3, who));
        let first = line.give(2, 3, 1).unwrap();
        assert!(line.give(2, 3, 2).is_none());
        line.end(host);
        let second = line.give(2, 3, 2).unwrap();
        [first, second].into_iter().for_each(|turn| line.end(turn));
        assert!(line.running.is_empty() && line.waiting.is_empty());
    }

    #[test]
    fn a_group_of_many_queues_gets_one_turn_in_each_round() {
        let asked = [(1, 11), (1, 12), (1, 13), (1, 14), (2, 21), (2, 22), (3, 31)];
        assert_eq!(order(&asked), [11, 21, 31, 12, 22, 13, 14]);
    }
}
