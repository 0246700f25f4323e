//! Where time went on several devices: what each one worked, what only others did, and what nobody did.

use std::time::{Duration, Instant};

/// From when to when.
pub type TimeRange = (Instant, Instant);

/// One device's part of a time. The three add up to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeShares {
    /// It worked.
    pub compute: Duration,
    /// No device worked: what was needed was on its way.
    pub wire: Duration,
    /// Only others worked.
    pub waiting: Duration,
}

impl TimeShares {
    /// Divides a time of this length, in which these are the ranges of each device's work.
    pub fn of(total: Duration, work: &[Vec<TimeRange>]) -> Vec<TimeShares> {
        let any = covered(work.iter().flatten().copied().collect());
        let shares = |ranges: &Vec<TimeRange>| {
            let compute = covered(ranges.clone());
            TimeShares { compute, wire: total.saturating_sub(any), waiting: any.saturating_sub(compute) }
        };
        work.iter().map(shares).collect()
    }
}

/// How much time ranges cover together.
pub fn covered(mut ranges: Vec<TimeRange>) -> Duration {
    ranges.sort_unstable();
    let mut sum = Duration::ZERO;
    let mut until: Option<Instant> = None;
    for (start, end) in ranges {
        let start = until.map_or(start, |until| start.max(until));
        if end > start {
            sum += end - start;
            until = Some(end);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let zero = Instant::now();
        let ms = Duration::from_millis;
        let range = |from, to| (zero + ms(from), zero + ms(to));
        // Together 0-6, 8-9 and 10-12 of 20; the second one's ranges overlap.
        let work = [vec![range(0, 4), range(8, 9)], vec![range(10, 12), range(3, 6), range(5, 6)]];
        let [first, second] = TimeShares::of(ms(20), &work)[..] else { panic!("two devices") };
        assert_eq!(first, TimeShares { compute: ms(5), wire: ms(11), waiting: ms(4) });
        assert_eq!(second, TimeShares { compute: ms(5), wire: ms(11), waiting: ms(4) });
        assert_eq!(covered(Vec::new()), Duration::ZERO);
    }
}
