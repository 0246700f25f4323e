//! Events of a client's queue as events of the device's queue.

use outboard_core::{Error, Event, Result};

/// Which event of the device's queue a value of the client's stands for. Both count from 1 without gaps; where they run in
/// step, only the first is kept.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    last: u64,
    points: Vec<(u64, Event)>,
}

impl Timeline {
    /// The value that the next signal must have.
    pub(crate) fn check_next(&self, value: u64) -> Result<()> {
        if value == self.last + 1 {
            Ok(())
        } else {
            Err(Error::Request(format!("signal {value} follows signal {}", self.last)))
        }
    }

    /// Notes the event of the next value.
    pub(crate) fn signalled(&mut self, event: Event) {
        self.last += 1;
        if self.at(self.last) != Some(event) {
            self.points.push((self.last, event));
        }
    }

    /// The event of a value, if it was signalled.
    pub(crate) fn event(&self, value: u64) -> Option<Event> {
        if value > self.last { None } else { self.at(value) }
    }

    fn at(&self, value: u64) -> Option<Event> {
        let end = self.points.partition_point(|&(first, _)| first <= value);
        let (first, event) = *self.points.get(end.checked_sub(1)?)?;
        Some(Event { value: event.value + (value - first), ..event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_map_to_events() {
        let event = |value| Event { device: 1, queue: 2, value };
        let mut t = Timeline::default();
        assert_eq!(t.event(0), None);
        for value in [1, 2, 5, 6] {
            t.check_next(t.last + 1).unwrap();
            t.signalled(event(value));
        }
        let got: Vec<_> = (1..=5).map(|v| t.event(v).map(|e| e.value)).collect();
        assert_eq!(got, [Some(1), Some(2), Some(5), Some(6), None]);
        assert_eq!(t.points.len(), 2);
        assert!(t.check_next(4).is_err());
    }
}
