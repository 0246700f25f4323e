//! How long each transfer may take, and which servers have a link to send on.

use super::Via;
use super::table::{Slot, Table};
use super::transfer::{Accepted, Arrival, Receiving, Transfer};
use crate::limits::{PeerLimits, STALLED};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The links of a session that are open, by the incarnation of the server that sends.
#[derive(Debug, Default)]
pub(super) struct Senders(HashMap<u64, Sender>);

#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    links: usize,
    /// Since when it has none, if it had one.
    gone: Option<Instant>,
}

impl Senders {
    pub(super) fn link_opened(&mut self, incarnation: u64) {
        let sender = self.0.entry(incarnation).or_default();
        sender.links += 1;
        sender.gone = None;
    }

    pub(super) fn link_lost(&mut self, now: Instant, incarnation: u64) {
        if let Some(sender) = self.0.get_mut(&incarnation) {
            sender.links = sender.links.saturating_sub(1);
            sender.gone = (sender.links == 0).then_some(now);
        }
    }

    /// For how long a transfer of this age has waited for a server that has no link; `None` if it has one.
    fn without_link(&self, now: Instant, incarnation: u64, age: Duration) -> Option<Duration> {
        let sender = self.0.get(&incarnation).copied().unwrap_or_default();
        let without = || sender.gone.map_or(age, |at| age.min(now.saturating_duration_since(at)));
        (sender.links == 0).then(without)
    }

    /// Forgets those that have had no link for long.
    pub(super) fn forget_gone(&mut self, now: Instant, limits: &PeerLimits) {
        let kept = limits.no_link * 2;
        let recent = |gone: Option<Instant>| gone.is_some_and(|at| now.saturating_duration_since(at) < kept);
        self.0.retain(|_, sender| sender.links > 0 || recent(sender.gone));
    }
}

/// What happens to a transfer that has taken too long.
pub(super) enum Overdue {
    /// It fails.
    Fails { why: String },
    /// It fails, and its sender is told.
    IsRefused { via: Via, why: String },
    /// It has failed already, and nobody came for it.
    IsForgotten,
}

impl Table {
    /// Whether a transfer has taken too long, and what happens then.
    pub(super) fn overdue(&self, now: Instant, slot: &Slot, limits: &PeerLimits) -> Option<Overdue> {
        let age = now.saturating_duration_since(slot.since);
        match &slot.transfer {
            Transfer::Accepted(accepted) => self.never_began(now, age, accepted, limits),
            Transfer::Early(arrival) if arrival.is_complete() => never_accepted(age, arrival, limits),
            Transfer::Early(arrival) | Transfer::Receiving(Receiving { arrival, .. }) => stalled(age, arrival),
            Transfer::FailedEarly { .. } => (age >= limits.push).then_some(Overdue::IsForgotten),
            Transfer::FailedAccepted { .. } | Transfer::Unwanted => {
                (age >= limits.accept).then_some(Overdue::IsForgotten)
            }
        }
    }

    fn never_began(&self, now: Instant, age: Duration, accepted: &Accepted, limits: &PeerLimits) -> Option<Overdue> {
        let without = self.senders.without_link(now, accepted.source.incarnation, age);
        if let Some(without) = without.filter(|&without| without >= limits.no_link) {
            let why = format!("it has not connected to send a tensor within {:.1} s", without.as_secs_f64());
            return Some(Overdue::Fails { why });
        }
        let why = || format!("a tensor that it was to send did not come within {:.1} s", age.as_secs_f64());
        (age >= limits.accept).then(|| Overdue::Fails { why: why() })
    }
}

fn never_accepted(age: Duration, arrival: &Arrival, limits: &PeerLimits) -> Option<Overdue> {
    let why = || format!("a tensor was not accepted within {:.1} s", age.as_secs_f64());
    (age >= limits.push).then(|| Overdue::IsRefused { via: arrival.via, why: why() })
}

fn stalled(age: Duration, arrival: &Arrival) -> Option<Overdue> {
    let (secs, Arrival { received, size, .. }) = (age.as_secs_f64(), arrival);
    let why = || format!("a tensor stopped coming for {secs:.1} s, {received} of {size} bytes were there");
    (!arrival.is_complete() && age >= STALLED).then(|| Overdue::IsRefused { via: arrival.via, why: why() })
}
