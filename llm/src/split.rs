//! Which layer goes to which device.
//!
//! Layers follow one another through the devices, so that each boundary costs one copy of the residual stream. The
//! embedding goes with the first layer (token ids travel, not rows), the output matrix with the last (nothing waits in
//! between).

use crate::error::{Error, Result};
use outboard_core::error::Bytes;

/// What a split has to weigh.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Bytes of each layer: weights and cache.
    pub layers: Vec<u64>,
    /// Bytes that go with the first layer: the embedding.
    pub first: u64,
    /// Bytes that go with the last layer: output norm and matrix.
    pub last: u64,
}

/// One device as the split sees it.
#[derive(Clone, Debug)]
pub struct Share {
    /// For messages.
    pub id: String,
    /// Bytes it may hold.
    pub capacity: u64,
    /// Its part of the layers relative to the others; 0 leaves it out.
    pub weight: f64,
}

/// A device for each layer.
///
/// Layers are divided in proportion to the weights by their bytes. Where that does not fit, layers move on to devices with
/// room, keeping the order; where nothing fits, the error says what is missing and where.
pub fn split_layers(sizes: &Sizes, shares: &[Share]) -> Result<Vec<usize>> {
    let total_weight: f64 = shares.iter().map(|s| s.weight).sum();
    if !(total_weight > 0.0 && total_weight.is_finite()) || shares.iter().any(|s| s.weight < 0.0) {
        return Err(Error::Request("a split needs at least one device with a positive part".into()));
    }
    let wanted = proportional(sizes, shares, total_weight);
    if over_capacity(sizes, shares, &wanted).is_none() {
        return Ok(wanted);
    }
    fill(sizes, shares).ok_or_else(|| {
        let usable: Vec<&Share> = shares.iter().filter(|s| s.weight > 0.0).collect();
        let needed = sizes.layers.iter().sum::<u64>() + sizes.first + sizes.last;
        let list = usable.iter().map(|s| format!("{} {}", s.id, Bytes(s.capacity))).collect::<Vec<_>>().join(", ");
        Error::Request(format!(
            "the model needs {} of memory and does not fit on its devices ({list}): add a device or make the context (-c) smaller",
            Bytes(needed)
        ))
    })
}

/// Boundaries where the sums of bytes come closest to the parts.
fn proportional(sizes: &Sizes, shares: &[Share], total_weight: f64) -> Vec<usize> {
    let total: u64 = sizes.layers.iter().sum();
    let mut ends = Vec::with_capacity(shares.len());
    let mut sum = 0.0;
    for share in shares {
        sum += share.weight / total_weight;
        ends.push(sum * total as f64);
    }
    let last_used = shares.iter().rposition(|s| s.weight > 0.0).unwrap_or(0);
    let mut before = 0u64;
    sizes
        .layers
        .iter()
        .map(|&bytes| {
            let middle = before as f64 + bytes as f64 / 2.0;
            before += bytes;
            let device = ends.iter().position(|&end| middle < end).unwrap_or(last_used);
            device.min(last_used)
        })
        .collect()
}

/// The first device that would hold more than it can.
fn over_capacity(sizes: &Sizes, shares: &[Share], layers: &[usize]) -> Option<usize> {
    let mut used = vec![0u64; shares.len()];
    for (&device, &bytes) in layers.iter().zip(&sizes.layers) {
        used[device] += bytes;
    }
    if let (Some(&first), Some(&last)) = (layers.first(), layers.last()) {
        used[first] += sizes.first;
        used[last] += sizes.last;
    }
    used.iter().zip(shares).position(|(&used, share)| used > share.capacity)
}

/// Fills one device after the other; `None` if that does not fit either.
fn fill(sizes: &Sizes, shares: &[Share]) -> Option<Vec<usize>> {
    let devices: Vec<usize> = (0..shares.len()).filter(|&d| shares[d].weight > 0.0).collect();
    let n = sizes.layers.len();
    let mut layers = Vec::with_capacity(n);
    let mut at = 0;
    let mut used = sizes.first;
    for (il, &bytes) in sizes.layers.iter().enumerate() {
        let extra = if il + 1 == n { sizes.last } else { 0 };
        while used + bytes + extra > shares[*devices.get(at)?].capacity {
            at += 1;
            used = if layers.is_empty() { sizes.first } else { 0 };
        }
        used += bytes;
        layers.push(devices[at]);
    }
    Some(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(capacity: u64, weight: f64) -> Share {
        Share { id: format!("d{capacity}"), capacity, weight }
    }

    fn sizes(n: usize) -> Sizes {
        Sizes { layers: vec![10; n], first: 30, last: 30 }
    }

    #[test]
    fn in_proportion() {
        let s = split_layers(&sizes(8), &[share(1000, 1.0), share(1000, 3.0)]).unwrap();
        assert_eq!(s, [0, 0, 1, 1, 1, 1, 1, 1]);
        let s = split_layers(&sizes(4), &[share(1000, 1.0), share(1000, 0.0), share(1000, 1.0)]).unwrap();
        assert_eq!(s, [0, 0, 2, 2]);
    }

    #[test]
    fn moves_on_where_it_does_not_fit() {
        let s = split_layers(&sizes(8), &[share(50, 1.0), share(1000, 1.0)]).unwrap();
        assert_eq!(s, [0, 0, 1, 1, 1, 1, 1, 1]);
        let s = split_layers(&sizes(2), &[share(5, 1.0), share(1000, 1.0)]).unwrap();
        assert_eq!(s, [1, 1]);
    }

    #[test]
    fn says_what_is_missing() {
        let e = split_layers(&sizes(8), &[share(50, 1.0), share(60, 1.0)]).unwrap_err().to_string();
        assert!(e.contains("needs 140 B") && e.contains("d50 50 B, d60 60 B"), "{e}");
        assert!(split_layers(&sizes(8), &[share(500, 0.0)]).is_err());
        assert!(split_layers(&sizes(8), &[share(500, f64::NAN)]).is_err());
    }
}
