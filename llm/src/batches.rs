//! How a prompt is cut into micro-batches.
//!
//! On one device large ones are best: kernels are most efficient with many rows. When the layers are on several devices, a device
//! works on one micro-batch while the next device works on the one before; it stands idle until the first has come to it, and
//! after the last has left it. So the first and the last are small, those between as large as on one device: of p tokens over d
//! devices, the time of p + (d - 1) s tokens is needed where s is the size of the smallest. What is computed is the same for every
//! way of cutting, bit by bit.

/// Rows below which kernels lose more than a pipeline wins.
const SMALLEST: usize = 16;
/// The smallest micro-batch is this part of a full one. A quarter costs the kernels some percent.
const PART: usize = 4;

/// The sizes of the micro-batches of `n` tokens over this many devices in a row, `full` tokens each at most. Empty if `n` is 0.
pub fn micro_batches(n: usize, full: usize, devices: usize) -> Vec<usize> {
    let full = full.max(1);
    let small = (full / PART).max(SMALLEST);
    let mut sizes = Vec::new();
    if devices < 2 || 2 * small > full {
        equal(&mut sizes, n, full);
    } else if n < 2 * (small + 2 * small) {
        equal(&mut sizes, n, small);
    } else {
        let middle = n - 2 * (small + 2 * small);
        sizes.extend([small, 2 * small]);
        equal(&mut sizes, middle, full);
        sizes.extend([2 * small, small]);
    }
    sizes
}

/// Pieces of `size`, and what is left over.
fn equal(sizes: &mut Vec<usize>, n: usize, size: usize) {
    sizes.extend(std::iter::repeat_n(size, n / size));
    sizes.extend(Some(n % size).filter(|&rest| rest > 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_in_pieces_that_fit() {
        for full in [1, 2, 16, 31, 32, 64, 128, 512] {
            for devices in [1, 2, 5] {
                for n in 0..1500 {
                    let sizes = micro_batches(n, full, devices);
                    assert_eq!(sizes.iter().sum::<usize>(), n);
                    assert!(sizes.iter().all(|&s| (1..=full).contains(&s)), "{n} {full} {devices}: {sizes:?}");
                }
            }
        }
    }

    #[test]
    fn one_device_gets_full_ones_and_several_get_a_ramp() {
        assert_eq!(micro_batches(300, 128, 1), [128, 128, 44]);
        assert_eq!(micro_batches(500, 128, 2), [32, 64, 128, 128, 52, 64, 32]);
        assert_eq!(micro_batches(100, 128, 2), [32, 32, 32, 4]);
        // Nothing to win.
        assert_eq!(micro_batches(40, 16, 4), [16, 16, 8]);
    }
}
