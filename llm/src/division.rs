//! How large the parts of a model are that devices get when nobody says so.
//!
//! A token passes the devices one after the other, each reads its part of the weights: it is fastest where those that read fastest have as
//! much as they can hold. So devices are taken in classes of about the same bandwidth, the fastest class first, and slower ones only for what
//! does not fit there: a host with much memory does not slow down a fast card. Within a class a token takes as long whatever the parts are,
//! but for its way; a prompt, which all devices of a class work on at the same time, is fastest where the parts are as their arithmetic.

use outboard_core::error::Bytes;
use outboard_core::{Device, Result, Speed, try_at_once};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Devices whose bandwidths differ by less than this factor are one class: hosts of different age are, a card and a host are not. Of two
/// devices that differ by less, the slower one costs a token less than it spares a prompt.
const CLASS: f64 = 3.0;
/// Devices whose arithmetic differs by less than this factor get equal parts: as much as measurements vary on a busy machine.
const ALIKE: f64 = 1.5;
/// The part of its free memory that a device is given before the next class gets any. The rest is for results.
const FILL: f64 = 0.9;

/// A device as the division sees it.
#[derive(Clone, Debug)]
pub struct Member {
    /// For messages.
    pub id: String,
    /// Names its memory: devices with the same name share what is free.
    pub pool: String,
    /// Bytes that are free.
    pub free: u64,
    /// What it does in a second; `None` if that is not known.
    pub speed: Option<Speed>,
}

impl Member {
    /// What devices say of themselves, asked all at once.
    pub fn of(devices: &[Arc<dyn Device>]) -> Result<Vec<Member>> {
        try_at_once(devices, |device| {
            let info = device.info();
            let speed = if devices.len() > 1 { device.speed() } else { None };
            Ok(Member { id: info.id.clone(), pool: info.pool(), free: device.memory()?.free, speed })
        })
    }
}

/// Parts of a model, and why they are so.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// One for each device; 0 leaves it out.
    pub parts: Vec<f64>,
    /// For people; empty for one device.
    pub why: String,
}

/// Divides a model of so many bytes.
pub fn divide(bytes: u64, members: &[Member]) -> Division {
    if let [_] = members {
        return Division { parts: vec![1.0], why: String::new() };
    }
    let mut speeds = Vec::with_capacity(members.len());
    for member in members {
        match member.speed {
            Some(speed) => speeds.push(speed),
            None => return by_free_memory(members, &member.id),
        }
    }
    let classes = classes(&speeds);
    let mut parts = vec![0.0; members.len()];
    let mut left = bytes as f64;
    let mut taken: Vec<&[usize]> = Vec::new();
    // What is left of each pool of memory.
    let mut room: BTreeMap<&str, f64> = members.iter().map(|m| (m.pool.as_str(), m.free as f64 * FILL)).collect();
    for class in &classes {
        if left < 1.0 {
            break;
        }
        taken.push(class);
        left -= fill(class, left, members, &speeds, &mut room, &mut parts);
    }
    Division { why: why(members, &speeds, &taken, &classes), parts }
}

/// Devices by bandwidth, the fastest class first, each class in the order of the list.
fn classes(speeds: &[Speed]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    order.sort_by(|&a, &b| speeds[b].bandwidth.total_cmp(&speeds[a].bandwidth));
    let mut classes: Vec<Vec<usize>> = Vec::new();
    for d in order {
        match classes.last_mut() {
            Some(class) if speeds[class[0]].bandwidth < CLASS * speeds[d].bandwidth => class.push(d),
            _ => classes.push(vec![d]),
        }
    }
    classes.iter_mut().for_each(|class| class.sort_unstable());
    classes
}

/// Gives a class its parts of what is left, as its arithmetic and its memory allow. Gives back how much that is.
fn fill<'m>(
    class: &[usize],
    left: f64,
    members: &'m [Member],
    speeds: &[Speed],
    room: &mut BTreeMap<&'m str, f64>,
    parts: &mut [f64],
) -> f64 {
    let weights = weights(class, speeds);
    let mut open: Vec<usize> = (0..class.len()).collect();
    let mut given = 0.0;
    // Whoever has no room for its part takes what it can, and the others share the rest.
    while left - given > 0.5 && !open.is_empty() {
        let (rest, sum) = (left - given, open.iter().map(|&i| weights[i]).sum::<f64>());
        // A server may say anything of its speed.
        if !(sum > 0.0 && sum.is_finite()) {
            break;
        }
        let mut full = Vec::new();
        for &i in &open {
            let d = class[i];
            let Some(room) = room.get_mut(members[d].pool.as_str()) else { continue };
            // Those of the same memory that come behind have as much of it.
            let sharing = open.iter().filter(|&&j| j >= i && members[class[j]].pool == members[d].pool).count();
            let wanted = rest * weights[i] / sum;
            let part = wanted.min(*room / sharing as f64);
            *room -= part;
            parts[d] += part;
            given += part;
            if part < wanted {
                full.push(i);
            }
        }
        if full.is_empty() {
            break;
        }
        open.retain(|i| !full.contains(i));
    }
    given
}

/// The parts of a class by arithmetic, those of devices that are alike equal.
fn weights(class: &[usize], speeds: &[Speed]) -> Vec<f64> {
    let most = class.iter().map(|&d| speeds[d].flops).fold(0.0, f64::max);
    let weight = |&d: &usize| {
        let part = speeds[d].flops / most;
        if part * ALIKE > 1.0 { 1.0 } else { part }
    };
    class.iter().map(weight).collect()
}

fn by_free_memory(members: &[Member], unknown: &str) -> Division {
    let sharing = |pool: &str| members.iter().filter(|m| m.pool == pool).count() as f64;
    let parts = members.iter().map(|m| m.free as f64 / sharing(&m.pool)).collect();
    Division { parts, why: format!("by free memory, because the speed of {unknown} is not known") }
}

fn why(members: &[Member], speeds: &[Speed], taken: &[&[usize]], classes: &[Vec<usize>]) -> String {
    let rate = |d: usize| format!("{} ({}/s)", members[d].id, Bytes(speeds[d].bandwidth as u64));
    let list = |class: &[usize]| class.iter().map(|&d| rate(d)).collect::<Vec<_>>().join(", ");
    let (Some(first), rest) = (taken.first(), taken.get(1..).unwrap_or_default()) else { return String::new() };
    let mut why = if rest.is_empty() {
        format!("by arithmetic, between devices that read weights about as fast: {}", list(first))
    } else {
        let behind: Vec<String> = rest.iter().map(|class| list(class)).collect();
        format!(
            "so that those that read weights fastest hold what they can: {}; the rest is on {}",
            list(first),
            behind.join("; ")
        )
    };
    let unused: Vec<String> = classes.iter().skip(taken.len()).map(|class| list(class)).collect();
    if !unused.is_empty() {
        why += &format!("; without slower ones, which are not needed: {}", unused.join(", "));
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    fn member(id: &str, free: u64, bandwidth: f64, flops: f64) -> Member {
        Member { id: id.into(), pool: id.into(), free, speed: Some(Speed { bandwidth, flops }) }
    }

    fn shares(bytes: u64, members: &[Member]) -> Vec<f64> {
        let division = divide(bytes, members);
        let sum: f64 = division.parts.iter().sum();
        assert!(!division.why.is_empty());
        division.parts.iter().map(|part| (part / sum * 100.0).round()).collect()
    }

    #[test]
    fn much_slow_memory_does_not_starve_a_fast_card() {
        let (card, host) = (member("card", 24 * GB, 9e11, 1e14), member("host", 256 * GB, 5e10, 1e12));
        assert_eq!(shares(20 * GB, &[host.clone(), card.clone()]), [0.0, 100.0]);
        assert!(divide(20 * GB, &[host.clone(), card.clone()]).why.contains("which are not needed: host"));
        // What does not fit there goes to the other: 21.6 of 40.
        assert_eq!(shares(40 * GB, &[host.clone(), card.clone()]), [46.0, 54.0]);
        // More than there is: all have as much as they can, and the placement says what is missing.
        assert_eq!(shares(999 * GB, &[host, card]), [91.0, 9.0]);
    }

    #[test]
    fn devices_that_are_alike_get_equal_parts() {
        let (a, b) = (member("a", 8 * GB, 2.0e10, 1.0e11), member("b", 64 * GB, 1.8e10, 0.8e11));
        assert_eq!(shares(4 * GB, &[a.clone(), b.clone()]), [50.0, 50.0]);
        // As far as they have room.
        assert_eq!(shares(20 * GB, &[a.clone(), b.clone()]), [36.0, 64.0]);
        // As fast at reading, and twice as fast at computing, or more.
        let fast = member("fast", 64 * GB, 2.1e10, 2.0e11);
        assert_eq!(shares(4 * GB, &[a, fast, b]), [26.0, 53.0, 21.0]);
    }

    #[test]
    fn shared_memory_is_counted_once() {
        let half = |id: &str| Member { pool: "host".into(), ..member(id, 10 * GB, 2e10, 1e11) };
        let slow = member("slow", 100 * GB, 5e9, 1e11);
        assert_eq!(shares(19 * GB, &[half("a"), half("b"), slow]), [24.0, 24.0, 53.0]);
    }

    #[test]
    fn what_is_not_known_is_divided_by_memory() {
        let unknown = Member { speed: None, ..member("x", 3 * GB, 0.0, 0.0) };
        let division = divide(GB, &[member("a", GB, 1e9, 1e9), unknown]);
        assert_eq!(division.parts, [GB as f64, 3.0 * GB as f64]);
        assert!(division.why.contains("speed of x"), "{}", division.why);
        assert_eq!(divide(GB, &[member("a", GB, 1e9, 1e9)]), Division { parts: vec![1.0], why: String::new() });
    }
}
