//! Contents that several servers need: this process sends each to one of them, its origin, and the others get it from there.
//!
//! Origins are dealt out in turn, so that every server sends as much as it gets. What a server has already it does not take from
//! another. What it takes it accepts on a queue of its own, so that a server that waits for another one never holds up what it
//! has to send itself.

use super::{Item, Target, Upload, carry};
use crate::lock;
use outboard_core::{Error, PeerTransfer, Result};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// One content that several endpoints need, as they all see it.
pub(super) struct Common {
    /// Number of the endpoint that this process sends it to, and of the item there.
    pub(super) origin: usize,
    item: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is not there yet.
    Coming,
    /// In its first place at the origin, or on its way there on the origin's queue.
    There,
    /// The origin has failed.
    Gone,
}

impl Common {
    fn set(&self, state: State) {
        let mut now = lock(&self.state);
        if *now == State::Coming {
            *now = state;
            self.changed.notify_all();
        }
    }

    /// Other servers can have it from the origin.
    pub(super) fn is_there(&self) {
        self.set(State::There);
    }

    /// Whether it can be had; `None` if that is not known yet.
    pub(super) fn now(&self) -> Option<bool> {
        match *lock(&self.state) {
            State::Coming => None,
            state => Some(state == State::There),
        }
    }

    /// Waits until it can be had. `false` if it never will. The origin's own deadlines end this.
    pub(super) fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while *state == State::Coming {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state == State::There
    }
}

/// Finds what several endpoints need, and marks it, where their servers reach each other.
pub(super) fn find(uploads: &mut [Upload<'_>]) {
    let mut wanted: HashMap<(*const u8, usize), Vec<(usize, usize)>> = HashMap::new();
    for (u, upload) in uploads.iter().enumerate() {
        for (i, item) in
            upload.items.iter().enumerate().filter(|(_, item)| item.len() >= outboard_proto::limits::MIN_BLOB)
        {
            wanted.entry((item.data.as_ptr(), item.data.len())).or_default().push((u, i));
        }
    }
    let mut several: Vec<_> = wanted.into_values().filter(|at| at.len() > 1).collect();
    // In the order of the file, so that each origin sends early what others wait for.
    several.sort();
    for (turn, at) in several.iter().enumerate() {
        let Some(&(origin, item)) = at.get(turn % at.len()) else { continue };
        let takers: Vec<_> = at.iter().filter(|&&(u, _)| u != origin && reaches(uploads, origin, u)).collect();
        if takers.is_empty() {
            continue;
        }
        let common = Common { origin, item, state: Mutex::new(State::Coming), changed: Condvar::new() };
        let common = Arc::new(common);
        for &&(u, i) in takers.iter().chain([&&(origin, item)]) {
            if let Some(item) = uploads.get_mut(u).and_then(|upload| upload.items.get_mut(i)) {
                item.common = Some(common.clone());
            }
        }
    }
}

fn reaches(uploads: &[Upload<'_>], from: usize, to: usize) -> bool {
    let first = |u: usize| uploads.get(u).and_then(|upload| upload.devices.first()).map(|target| target.device);
    first(from).zip(first(to)).is_some_and(|(from, to)| from.reaches(to))
}

/// Whatever way the upload to an endpoint ends, nobody waits for it any more.
pub(super) struct Origin<'u, 'd>(pub(super) &'u Upload<'d>);

impl Drop for Origin<'_, '_> {
    fn drop(&mut self) {
        let mine = self.0.items.iter().filter_map(|item| item.common.as_ref()).filter(|c| c.origin == self.0.number);
        mine.for_each(|common| common.set(State::Gone));
    }
}

/// Brings an item from its origin, where it is, to its first place.
pub(super) fn take(all: &[Upload<'_>], common: &Common, item: &Item, target: &Target<'_>) -> Result<()> {
    let bug = || Error::Misuse("a content without an origin; this is a bug of Outboard".into());
    let origin = all.get(common.origin).ok_or_else(bug)?;
    let (number, src) = origin.items.get(common.item).and_then(|item| item.places.first()).ok_or_else(bug)?;
    let source = origin.target(*number)?;
    let (_, dst) = item.places.first().ok_or_else(bug)?;
    carry((source.device, &source.queue, src), (target.device, target.taking()?, dst))
}
