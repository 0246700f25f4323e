//! Whose turn is next: it goes round between clients, for each client between its sessions, and for each session between its calls.

use std::collections::VecDeque;

/// Things that wait for their turn, of sessions of clients.
#[derive(Debug)]
pub(super) struct Line<T>(Ring<Ring<VecDeque<T>>>);

/// What waits, by who has asked for it; whoever is in front is next.
type Ring<T> = VecDeque<(u64, T)>;

/// What is in front of a ring, and its place at the end if it has more.
fn next<T, V>(ring: &mut Ring<T>, take: impl FnOnce(&mut T) -> Option<V>, is_empty: impl Fn(&T) -> bool) -> Option<V> {
    let (who, mut waiting) = ring.pop_front()?;
    let value = take(&mut waiting);
    if !is_empty(&waiting) {
        ring.push_back((who, waiting));
    }
    value
}

/// What waits for somebody, behind all others if it is the first.
fn of<T: Default>(ring: &mut Ring<T>, who: u64) -> Option<&mut T> {
    let found = ring.iter().position(|(w, _)| *w == who);
    let at = found.unwrap_or_else(|| {
        ring.push_back((who, T::default()));
        ring.len() - 1
    });
    ring.get_mut(at).map(|(_, waiting)| waiting)
}

impl<T> Line<T> {
    pub(super) fn new() -> Line<T> {
        Line(VecDeque::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Something waits behind what its session has in the line already.
    pub(super) fn push(&mut self, client: u64, session: u64, thing: T) {
        if let Some(things) = of(&mut self.0, client).and_then(|sessions| of(sessions, session)) {
            things.push_back(thing);
        }
    }

    /// Takes out what is next of the clients that may have something now.
    pub(super) fn pop(&mut self, mut may: impl FnMut(u64) -> bool) -> Option<T> {
        let at = self.0.iter().position(|(client, _)| may(*client))?;
        let (client, mut sessions) = self.0.remove(at)?;
        let value = next(&mut sessions, VecDeque::pop_front, VecDeque::is_empty);
        if !sessions.is_empty() {
            self.0.push_back((client, sessions));
        }
        value
    }

    /// Takes out everything that is like this.
    pub(super) fn remove(&mut self, is_like: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (_, sessions) in &mut self.0 {
            for (_, things) in &mut *sessions {
                let (out, rest): (VecDeque<T>, VecDeque<T>) = std::mem::take(things).into_iter().partition(&is_like);
                removed.extend(out);
                *things = rest;
            }
            sessions.retain(|(_, things)| !things.is_empty());
        }
        self.0.retain(|(_, sessions)| !sessions.is_empty());
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(line: &mut Line<u32>) -> Vec<u32> {
        std::iter::from_fn(|| line.pop(|_| true)).collect()
    }

    /// Client 1 has two sessions with three and two things, client 2 one session with two, client 3 one thing.
    fn filled() -> Line<u32> {
        let mut line = Line::new();
        for (client, session, things) in [(1, 1, 111..114), (1, 2, 121..123), (2, 3, 231..233), (3, 4, 341..342)] {
            things.for_each(|thing| line.push(client, session, thing));
        }
        line
    }

    #[test]
    fn turns_go_round_between_clients_and_their_sessions() {
        let mut line = filled();
        assert_eq!(all(&mut line), [111, 231, 341, 121, 232, 112, 122, 113]);
        assert!(line.is_empty() && line.pop(|_| true).is_none());
    }

    #[test]
    fn who_comes_back_is_behind_those_who_have_come_meanwhile() {
        let mut line = Line::new();
        (0..4).for_each(|call| line.push(1, call, call as u32));
        let first = line.pop(|_| true).unwrap();
        line.push(2, 9, 99);
        line.push(1, 0, first);
        assert_eq!(all(&mut line), [1, 99, 2, 3, 0]);
    }

    #[test]
    fn who_may_have_nothing_now_keeps_the_place_in_the_line() {
        let mut line = filled();
        assert_eq!(line.pop(|client| client != 1), Some(231));
        assert_eq!(line.pop(|client| client > 3), None);
        assert_eq!(all(&mut line), [111, 341, 232, 121, 112, 122, 113]);
    }

    #[test]
    fn what_is_removed_leaves_no_empty_places() {
        let mut line = filled();
        let mut removed = line.remove(|thing| !(112..300).contains(thing));
        removed.sort();
        assert_eq!(removed, [111, 341]);
        assert_eq!(all(&mut line), [112, 231, 121, 232, 113, 122]);
        let mut line = filled();
        assert_eq!(line.remove(|_| true).len(), 8);
        assert!(line.is_empty());
    }
}
