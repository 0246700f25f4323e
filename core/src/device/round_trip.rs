//! How far away a device is, by the time of round trips to it.

use std::time::{Duration, Instant};

/// How long round trips took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest first.
    times: Vec<Duration>,
}

impl RoundTrips {
    /// Makes `n` round trips one after the other: `trip` returns when what it has sent was answered, such as the marker of an idle
    /// queue ([`Queue::finish`](crate::Queue::finish)).
    pub fn measure<E>(n: usize, mut trip: impl FnMut() -> Result<(), E>) -> Result<RoundTrips, E> {
        let mut times = Vec::with_capacity(n);
        for _ in 0..n {
            let start = Instant::now();
            trip()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(RoundTrips { times })
    }

    /// The shortest: the way itself, without what else was going on. Zero if there was none.
    pub fn shortest(&self) -> Duration {
        self.times.first().copied().unwrap_or_default()
    }

    /// The one in the middle. Zero if there was none.
    pub fn median(&self) -> Duration {
        self.times.get(self.times.len() / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_in_order_and_the_first_error_ends_them() {
        let mut waits = [3, 1, 9].map(Duration::from_millis).into_iter();
        let trip = || -> Result<(), ()> { waits.next().map(std::thread::sleep).ok_or(()) };
        let trips = RoundTrips::measure(3, trip).unwrap();
        assert!(
            trips.shortest() >= Duration::from_millis(1) && trips.median() >= Duration::from_millis(3),
            "{trips:?}"
        );
        assert!(trips.shortest() <= trips.median());
        assert_eq!(RoundTrips::measure(0, || Err(())).map(|trips| trips.median()), Ok(Duration::ZERO));
        assert_eq!(RoundTrips::measure(2, || Err("lost")), Err("lost"));
    }
}
