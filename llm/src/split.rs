//! Which section of a model goes to which device.
//!
//! Sections (the attention of a layer, or its feed-forward block: [`crate::arch::net::ModelGraph`]) follow one another through the
//! devices, so that each boundary costs one copy of the residual stream. The embedding goes with the first section (token ids
//! travel, not rows), the output matrix with the last (nothing waits in between).
//!
//! The last device has the beginning of the model too, half of its part. A token that is sampled has to come to the embedding anyway: now
//! it is there, and what goes from the last device to the first is the residual stream, so that a token crosses the network as often as
//! without. Where embedding and output are one matrix, one device holds it, not two. And a prompt is through sooner: what a device waits
//! for in the beginning, and others wait for in the end, is half of a part and not a whole one ([`crate::pipeline`]).

use crate::error::{Error, Result, Room};
use crate::route::Route;
use std::collections::{BTreeMap, HashMap};

/// What a split has to weigh.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Bytes of each section: weights and cache.
    pub sections: Vec<u64>,
    /// How long each section takes of what devices do at the same time, in any unit: of a prompt that fills the context, or of steps of several
    /// sequences.
    pub work: Vec<f64>,
    /// Bytes that go with the first section: the embedding.
    pub first: u64,
    /// Bytes that go with the last section: output norm and matrix.
    pub last: u64,
    /// How many of `first` and `last` are the same, if both are on one device.
    pub tied: u64,
}

impl Sizes {
    /// Bytes of all, on one device.
    pub fn bytes(&self) -> u64 {
        self.sections.iter().sum::<u64>() + self.first + self.last - self.tied
    }
}

/// One device as the split sees it.
#[derive(Clone, Debug)]
pub struct SplitDevice {
    /// For messages.
    pub id: String,
    /// Names its memory: devices with the same name here share their capacity.
    pub pool: String,
    /// Bytes it may hold, together with the others of its pool.
    pub capacity: u64,
    /// Its part of the model relative to the others; 0 leaves it out.
    pub weight: f64,
}

/// Gives each section a device.
///
/// Sections are divided in proportion to the weights by the time that they take of what devices do at the same time: of prompts, or of steps
/// of several sequences. Where that does not fit, they are divided by their bytes; where that does not fit either, they move on to devices with
/// room, keeping the order; where nothing fits, the error says what is missing and where. The last device has the beginning as well,
/// unless there is no room for it.
pub fn split(sizes: &Sizes, devices: &[SplitDevice]) -> Result<Route> {
    split_homes(sizes, devices).map(Route::new)
}

fn split_homes(sizes: &Sizes, devices: &[SplitDevice]) -> Result<Vec<usize>> {
    let total_weight: f64 = devices.iter().map(|s| s.weight).sum();
    if !(total_weight > 0.0 && total_weight.is_finite()) || devices.iter().any(|s| s.weight < 0.0) {
        return Err(Error::Request("a split needs at least one device with a positive part".into()));
    }
    let bytes: Vec<f64> = sizes.sections.iter().map(|&bytes| bytes as f64).collect();
    for measure in [&sizes.work, &bytes] {
        let wanted = [ring(measure, devices, total_weight), Some(proportional(measure, devices, total_weight))];
        if let Some(homes) = wanted.into_iter().flatten().find(|homes| fits(sizes, devices, homes)) {
            return Ok(homes);
        }
    }
    fill(sizes, devices).ok_or_else(|| {
        let usable: Vec<&SplitDevice> = devices.iter().filter(|s| s.weight > 0.0).collect();
        let pools: BTreeMap<&str, &&SplitDevice> = usable.iter().rev().map(|s| (s.pool.as_str(), s)).collect();
        let members = |pool: &str| usable.iter().filter(|s| s.pool == pool).map(|s| s.id.clone()).collect::<Vec<_>>();
        let room = |(pool, device): (&&str, &&&SplitDevice)| Room { devices: members(pool), free: device.capacity };
        Error::DoesNotFit { needed: sizes.bytes(), rooms: pools.iter().map(room).collect() }
    })
}

/// By how much a section is smaller than the average if it is next to nothing.
const NEXT_TO_NOTHING: f64 = 10.0;

/// As [`proportional`], but with half of the last device's part in the beginning; `None` if either half would be nothing. The halves need not
/// be alike: what is between them is divided as if the first were what it has become.
fn ring(measure: &[f64], devices: &[SplitDevice], total_weight: f64) -> Option<Vec<usize>> {
    let last = devices.iter().rposition(|s| s.weight > 0.0)?;
    let total: f64 = measure.iter().sum();
    let half = devices[last].weight / total_weight * total / 2.0;
    let mut before = 0.0;
    let beginning = measure.iter().take_while(|&section| (before + section / 2.0 < half, before += section).0).count();
    let (measure_of, rest) = measure.split_at(beginning);
    let taken = measure_of.iter().sum::<f64>() / total * total_weight;
    let mut devices = devices.to_vec();
    devices[last].weight -= taken;
    if beginning == 0 || devices[last].weight <= 0.0 {
        return None;
    }
    let mut homes = vec![last; beginning];
    homes.extend(proportional(rest, &devices, total_weight - taken));
    // Either half, and something in between.
    let between = homes.iter().skip(beginning).any(|&home| home != last);
    (between && homes.last() == Some(&last) && homes.get(beginning) != Some(&last)).then_some(homes)
}

/// Boundaries where the sums of a measure come closest to the parts. What is next to nothing stays with what is before it: no device is
/// given the end of a model for its sake.
fn proportional(measure: &[f64], devices: &[SplitDevice], total_weight: f64) -> Vec<usize> {
    let total: f64 = measure.iter().sum();
    let mut ends = Vec::with_capacity(devices.len());
    let mut sum = 0.0;
    for device in devices {
        sum += device.weight / total_weight;
        ends.push(sum * total);
    }
    let last_used = devices.iter().rposition(|s| s.weight > 0.0).unwrap_or(0);
    let small = total / measure.len().max(1) as f64 / NEXT_TO_NOTHING;
    let mut before = 0.0;
    let mut homes: Vec<usize> = Vec::with_capacity(measure.len());
    for &section in measure {
        let middle = before + section / 2.0;
        before += section;
        let device = ends.iter().position(|&end| middle < end).unwrap_or(last_used).min(last_used);
        homes.push(homes.last().copied().filter(|_| section < small).unwrap_or(device));
    }
    homes
}

/// Whether every device can hold what it would have to.
fn fits(sizes: &Sizes, devices: &[SplitDevice], homes: &[usize]) -> bool {
    let mut used: HashMap<&str, u64> = HashMap::new();
    let mut add = |device: usize, bytes: u64| *used.entry(devices[device].pool.as_str()).or_default() += bytes;
    homes.iter().zip(&sizes.sections).for_each(|(&device, &bytes)| add(device, bytes));
    if let (Some(&first), Some(&last)) = (homes.first(), homes.last()) {
        add(first, sizes.first);
        add(last, sizes.last - if first == last { sizes.tied } else { 0 });
    }
    devices.iter().all(|device| used.get(device.pool.as_str()).is_none_or(|&used| used <= device.capacity))
}

/// Fills one device after the other; `None` if that does not fit either.
fn fill(sizes: &Sizes, devices: &[SplitDevice]) -> Option<Vec<usize>> {
    let used_devices: Vec<usize> = (0..devices.len()).filter(|&d| devices[d].weight > 0.0).collect();
    let n = sizes.sections.len();
    let mut homes = Vec::with_capacity(n);
    let mut at = 0;
    let mut used: HashMap<&str, u64> = HashMap::new();
    for (i, &bytes) in sizes.sections.iter().enumerate() {
        let needed = |at: usize| {
            let first = if i == 0 { sizes.first } else { 0 };
            let tied = if at == 0 { sizes.tied } else { 0 };
            let last = if i + 1 == n { sizes.last - tied } else { 0 };
            first + bytes + last
        };
        loop {
            let device = &devices[*used_devices.get(at)?];
            let used = used.entry(device.pool.as_str()).or_default();
            if *used + needed(at) <= device.capacity {
                *used += needed(at);
                break;
            }
            at += 1;
        }
        homes.push(used_devices[at]);
    }
    Some(homes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn share(capacity: u64, weight: f64) -> SplitDevice {
        own(capacity, weight, "")
    }

    /// With memory of its own, unless a pool is named.
    fn own(capacity: u64, weight: f64, pool: &str) -> SplitDevice {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let pool = if pool.is_empty() { unique } else { pool.to_owned() };
        SplitDevice { id: format!("d{capacity}"), pool, capacity, weight }
    }

    #[test]
    fn shared_memory_counts_once() {
        let two = |capacity: u64| {
            let devices = [own(capacity, 1.0, "host"), own(capacity, 1.0, "host")];
            split_homes(&sizes(8), &devices).map_err(|e| e.to_string())
        };
        // 8 sections of 10, and 30 at either end, which are on one device here.
        assert_eq!(two(140).unwrap(), [1, 1, 0, 0, 0, 0, 1, 1]);
        assert!(two(139).unwrap_err().contains("needs 140 B"));
        // A device of its own beside them takes what does not fit there.
        let devices = [own(80, 1.0, "host"), own(80, 1.0, "host"), share(1000, 1.0)];
        let homes = split_homes(&sizes(8), &devices).unwrap();
        assert!(fits(&sizes(8), &devices, &homes), "{homes:?}");
    }

    fn sizes(n: usize) -> Sizes {
        Sizes { sections: vec![10; n], work: vec![2.5; n], first: 30, last: 30, tied: 0 }
    }

    #[test]
    fn in_proportion() {
        let split = |n: usize, weights: &[f64]| {
            let devices: Vec<SplitDevice> = weights.iter().map(|&weight| share(1000, weight)).collect();
            split_homes(&sizes(n), &devices).unwrap()
        };
        assert_eq!(split(8, &[1.0, 3.0]), [1, 1, 1, 0, 0, 1, 1, 1]);
        assert_eq!(split(4, &[1.0, 0.0, 1.0]), [2, 0, 0, 2]);
        assert_eq!(split(12, &[1.0, 1.0, 1.0, 0.0]), [2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        // Half of a part that is one section, or next to nothing, is nothing.
        assert_eq!(split(4, &[3.0, 1.0]), [0, 0, 0, 1]);
        assert_eq!(split(8, &[1.0, 0.0]), [0; 8]);
        assert_eq!(split(2, &[1.0, 1.0]), [0, 1]);
        // What the first half has too much, the second has less.
        assert_eq!(split(10, &[1.0, 1.0]), [1, 1, 0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(split(7, &[4.0, 3.0]), [1, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn in_line_where_the_beginning_has_no_room_on_the_last() {
        // Half of the sections, the output, and perhaps the embedding.
        let with = |capacity: u64| split_homes(&sizes(8), &[share(1000, 1.0), share(capacity, 1.0)]).unwrap();
        assert_eq!(with(4 * 10 + 30 + 30), [1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(with(4 * 10 + 30 + 29), [0, 0, 0, 0, 1, 1, 1, 1]);
        // One matrix for both.
        let tied = Sizes { tied: 25, ..sizes(8) };
        let with = |capacity: u64| split_homes(&tied, &[share(1000, 1.0), share(capacity, 1.0)]).unwrap();
        assert_eq!((with(4 * 10 + 35)[0], with(4 * 10 + 34)[0]), (1, 0));
        assert_eq!(split_homes(&tied, &[share(8 * 10 + 35, 1.0)]).unwrap(), [0; 8]);
        assert!(split_homes(&tied, &[share(8 * 10 + 34, 1.0)]).is_err());
    }

    #[test]
    fn by_time_and_where_that_does_not_fit_by_bytes() {
        // Nothing of a prompt is done in the last two.
        let sizes = Sizes { work: vec![2.0, 2.0, 2.0, 2.0, 0.0, 0.0], ..sizes(6) };
        let split = |capacity| split_homes(&sizes, &[share(1000, 1.0), share(capacity, 1.0)]).unwrap();
        assert_eq!(split(70), [0, 0, 1, 1, 1, 1]);
        assert_eq!(split(69), [0, 0, 0, 1, 1, 1]);
        assert_eq!(split(59), [0, 0, 0, 0, 0, 0]);
        // A small part is not worth the end of the model, with nothing to do in a prompt.
        let last = |part: f64| super::split_homes(&sizes, &[share(1000, 1.0), share(1000, part)]).unwrap()[5];
        assert_eq!((last(0.1), last(0.2)), (0, 1));
    }

    #[test]
    fn moves_on_where_it_does_not_fit() {
        let small = Sizes { first: 10, ..sizes(8) };
        let s = split_homes(&small, &[share(39, 1.0), share(1000, 1.0)]).unwrap();
        assert_eq!(s, [0, 0, 1, 1, 1, 1, 1, 1]);
        let s = split_homes(&sizes(2), &[share(5, 1.0), share(1000, 1.0)]).unwrap();
        assert_eq!(s, [1, 1]);
    }

    #[test]
    fn says_what_is_missing() {
        let e = split_homes(&sizes(8), &[share(50, 1.0), share(60, 1.0)]).unwrap_err().to_string();
        assert!(e.contains("needs 140 B") && e.contains("d50 50 B, d60 60 B"), "{e}");
        assert!(split_homes(&sizes(8), &[share(500, 0.0)]).is_err());
        assert!(split_homes(&sizes(8), &[share(500, f64::NAN)]).is_err());
    }
}
