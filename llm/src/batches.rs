//! How a prompt is cut into micro-batches.
//!
//! On one device large ones are best: kernels are most efficient with many rows, and what a run of the graph takes beside its rows
//! is paid seldom. When the layers are on several devices, a device works on one micro-batch while the next device works on the
//! one before, and each stands idle until the first has come to it, or after the last has left it. Where all devices take as long
//! for the same rows, d of them need the time of p + (d - 1) m tokens for p, m being the largest micro-batch, in whatever order they
//! come (the makespan of a proportionate flow shop: Pinedo, Scheduling, section 6.1). So all are as large as the middle between
//! that and what small ones cost. What is computed is the same for every way of cutting, bit by bit, as long as there is no
//! micro-batch of one token, whose products are other kernels' work: there is none if there are more tokens than one.

use outboard_core::DeviceKind;

/// Rows below which kernels lose more than a pipeline wins.
const SMALLEST: usize = 16;
/// The last micro-batch takes so many times as long as the average one: attention grows with what is before it.
const GROWTH: f64 = 2.0;

/// Rows of a micro-batch that take as long as what a run takes beside its rows.
fn overhead(kind: DeviceKind) -> f64 {
    match kind {
        // Measured: 32 rows at a time take 10 % longer for each than 128 do, 64 take 3 %.
        DeviceKind::Cpu => 4.0,
        // Their kernels wait for the weights up to about as many rows.
        _ => 128.0,
    }
}

/// The sizes of the micro-batches of `n` tokens over devices of these kinds in a row, `full` tokens each at most. Empty if `n` is 0.
pub fn micro_batches(n: usize, full: usize, devices: &[DeviceKind]) -> Vec<usize> {
    let full = full.max(1);
    let size = match devices.len() {
        0 | 1 => full,
        // The least of n / s · overhead + (d - 1) · s · growth, the rows that are lost.
        several => {
            let overhead = devices.iter().map(|&kind| overhead(kind)).fold(0.0, f64::max);
            let best = (n as f64 * overhead / ((several - 1) as f64 * GROWTH)).sqrt();
            // Few sizes, so that graphs are compiled seldom; the minimum is flat.
            (1usize << best.max(1.0).log2().round() as u32).max(SMALLEST).min(full)
        }
    };
    let (mut sizes, mut rest) = (vec![size; n / size], n % size);
    if let Some(last) = sizes.last_mut().filter(|last| rest == 1 && **last > 2) {
        *last -= 1;
        rest += 1;
    }
    sizes.extend(Some(rest).filter(|&rest| rest > 0));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceKind::{Cpu, Gpu};

    #[test]
    fn all_tokens_in_pieces_that_fit() {
        for full in [1, 2, 16, 31, 32, 64, 128, 512] {
            for devices in [&[][..], &[Cpu], &[Cpu, Gpu], &[Cpu; 5]] {
                for n in 0..1500 {
                    let sizes = micro_batches(n, full, devices);
                    assert_eq!(sizes.iter().sum::<usize>(), n);
                    let least = if n == 1 || full < 3 { 1 } else { 2 };
                    assert!(sizes.iter().all(|&s| (least..=full).contains(&s)), "{n} {full} {devices:?}: {sizes:?}");
                }
            }
        }
    }

    #[test]
    fn one_device_gets_full_ones_and_several_small_ones() {
        assert_eq!(micro_batches(300, 128, &[Cpu]), [128, 128, 44]);
        assert_eq!(micro_batches(2048, 128, &[Cpu; 2]), [64; 32]);
        assert_eq!(micro_batches(2048, 128, &[Cpu; 5]), [32; 64]);
        assert_eq!(micro_batches(100, 128, &[Cpu; 2]), [16, 16, 16, 16, 16, 16, 4]);
        // What waits for its weights gets full ones.
        assert_eq!(micro_batches(2048, 128, &[Cpu, Gpu]), [128; 16]);
        // No one comes alone.
        assert_eq!(micro_batches(33, 128, &[Cpu; 2]), [16, 15, 2]);
        assert_eq!(micro_batches(129, 128, &[Cpu]), [127, 2]);
        assert_eq!(micro_batches(1, 128, &[Cpu; 2]), [1]);
        // Nothing to win.
        assert_eq!(micro_batches(40, 8, &[Cpu; 4]), [8; 5]);
    }
}
