//! Contents that several servers need: this process sends each to one of them, its origin, and the others get it from there.
//!
//! Origins are dealt out so that each gets as many bytes as the others. What a server has already it does not take from
//! another. It accepts what it takes, and lets the origin offer it, on queues of their own: a server that waits for another one
//! never holds up what comes to it from this process.

use super::target::{End, Target, transfer};
use super::{Batch, Destination, Item, Upload};
use crate::lock;
use crate::queue::RemoteQueue;
use outboard_core::{Error, Event, PeerTransfer, Queue, Result};
use outboard_proto::limits::MIN_BLOB;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::mpsc::Receiver;
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
    /// In its first place at the origin; what is still on its way there is before an event of that device.
    There(Option<Event>),
    /// The batch has failed.
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

    /// Other servers can have it from the origin, behind the event if there is one.
    pub(super) fn is_there(&self, event: Option<Event>) {
        self.set(State::There(event));
    }

    /// Waits until its fate is known. The origin's own deadlines end this, as a batch that fails gives everything up.
    fn wait(&self) -> State {
        let mut state = lock(&self.state);
        while *state == State::Coming {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state
    }
}

/// Finds what several endpoints need, and marks it, where their servers reach each other.
pub(super) fn find(uploads: &mut [Upload<'_>]) {
    let mut wanted: HashMap<(*const u8, usize), Vec<(usize, usize)>> = HashMap::new();
    for (u, upload) in uploads.iter().enumerate() {
        for (i, item) in upload.items.iter().enumerate().filter(|(_, item)| item.len() >= MIN_BLOB) {
            wanted.entry((item.data.as_ptr(), item.data.len())).or_default().push((u, i));
        }
    }
    let several = wanted.into_iter().filter(|(_, at)| at.len() > 1).map(|((_, len), at)| (len as u64, at));
    let mut several: Vec<_> = several.collect();
    // The largest first, as they are sent.
    several.sort_by(|(a, at), (b, bt)| b.cmp(a).then_with(|| at.cmp(bt)));
    let mut dealt: HashMap<usize, u64> = HashMap::new();
    for (len, at) in &several {
        let so_far = |&&(u, _): &&(usize, usize)| dealt.get(&u).copied().unwrap_or_default();
        let origins = at.iter().filter(|&&(u, _)| !takers(uploads, at, u).is_empty());
        let Some(&(origin, item)) = origins.min_by_key(so_far) else { continue };
        let takers = takers(uploads, at, origin);
        *dealt.entry(origin).or_default() += len;
        let common = Common { origin, item, state: Mutex::new(State::Coming), changed: Condvar::new() };
        let common = Arc::new(common);
        for (u, i) in takers.into_iter().chain([(origin, item)]) {
            if let Some(item) = uploads.get_mut(u).and_then(|upload| upload.items.get_mut(i)) {
                item.common = Some(common.clone());
            }
        }
    }
}

/// Who of `at` can take an item from one of them.
fn takers(uploads: &[Upload<'_>], at: &[(usize, usize)], from: usize) -> Vec<(usize, usize)> {
    at.iter().copied().filter(|&(u, _)| u != from && reaches(uploads, from, u)).collect()
}

fn reaches(uploads: &[Upload<'_>], from: usize, to: usize) -> bool {
    let first = |u: usize| uploads.get(u).and_then(|upload| upload.devices.first()).map(|target| target.device);
    first(from).zip(first(to)).is_some_and(|(from, to)| from.reaches(to))
}

/// Nobody waits any more for what an upload has in common with others.
pub(super) fn give_up(upload: &Upload<'_>) {
    upload.items.iter().filter_map(|item| item.common.as_ref()).for_each(|common| common.set(State::Gone));
}

/// The stage that takes items from other servers when these have got them.
pub(super) fn take_all(
    upload: &Upload<'_>,
    batch: &Batch<'_>,
    taking: Receiver<(&Item, &Common)>,
    sources: &mut Sources,
) -> Result<()> {
    for (item, common) in taking {
        let target = upload.target(item.first.device)?;
        if batch.has_failed() || sources.take(batch, common, &item.first, target)? == Taken::BatchFailed {
            return Ok(());
        }
        upload.received(item)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It is on its way.
    Coming,
    /// It will not come. Whoever has failed says why.
    BatchFailed,
}

/// What brings items from their origins, on a queue of each of these.
#[derive(Default)]
pub(super) struct Sources(HashMap<(usize, usize), RemoteQueue>);

impl Sources {
    /// Brings an item from its origin, once it is there, to its first destination.
    fn take(&mut self, batch: &Batch<'_>, common: &Common, to: &Destination, target: &Target<'_>) -> Result<Taken> {
        let bug = || Error::Misuse("a content without an origin; this is a bug of Outboard".into());
        let origin = batch.uploads.get(common.origin).ok_or_else(bug)?;
        let from = &origin.items.get(common.item).ok_or_else(bug)?.first;
        let source = origin.target(from.device)?;
        let State::There(event) = common.wait() else { return Ok(Taken::BatchFailed) };
        let queue = match self.0.entry((common.origin, from.device)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(RemoteQueue::open(source.device)?),
        };
        event.map_or(Ok(()), |event| queue.wait(event))?;
        let from = End { device: source.device, queue, slice: &from.slice };
        transfer(&from, &End { device: target.device, queue: target.taking()?, slice: &to.slice })?;
        Ok(Taken::Coming)
    }
}
