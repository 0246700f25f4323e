//! How a prompt is cut into micro-batches.
//!
//! On one device large ones are best: kernels are most efficient with many rows, and what a run of the graph takes beside its rows
//! is paid seldom. When the layers are on several devices, a device works on one micro-batch while the next device works on the
//! one before, and each stands idle until the first has come to it, or after the last has left it. Where all devices take as long
//! for the same micro-batch, d of them need the time of all micro-batches and d - 1 times the longest, in whatever order they come
//! (the makespan of a proportionate flow shop: Pinedo, Scheduling, section 6.1). So micro-batches are to take about the same time each.
//! Their number weighs what a run costs against how long devices stand idle at the ends. Later ones have fewer tokens, as attention costs
//! them more. But no two devices are quite as fast: the slowest works without a gap, and stands idle for the first or the last micro-batch
//! alone, so that those at the ends are to take less than those in the middle (`END_DISCOUNT`).
//!
//! Where the last device has the beginning of the model as well ([`crate::split`]), and does it for the next micro-batches while it would
//! have to wait, two devices always have something to do, and the sizes in the middle are free; with more of them, d - 2 take the place of
//! d - 1. What is lost is the first micro-batch on its way in, and the last one on its way out: those at the ends are small and double from
//! one to the next, as the half of a part that a device has at either end takes for two tokens as long as a whole part for one.
//!
//! What is computed is the same for every way of cutting, bit by bit, as long as no micro-batch has fewer tokens than
//! [`Costs::uniform_rows`]: there is none if there are that many tokens, and nearly twice as many may come together.

use crate::work::Work;
use outboard_core::Costs;

/// Rows below which kernels lose more than a pipeline wins.
const SMALLEST: usize = 16;

/// A micro-batch at either end takes this part less than the average time; one in the middle takes half of it more. Chosen by simulation
/// for devices that differ by a few percent; what was measured is in `docs/notes/2026-11-23-prompts-over-two-devices.md`.
const END_DISCOUNT: f64 = 0.25;

/// The devices that a prompt passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// The devices' indices in their order, each once.
    pub devices: Vec<usize>,
    /// Their costs.
    pub costs: Vec<Costs>,
    /// The first device, which has the beginning of the model, has its end as well.
    pub ring: bool,
}

/// Micro-batches that a device has begun and not yet got back, beside one for each other device: it does not wait for one that comes later
/// than it should.
const SPARE: usize = 1;

/// Bytes of micro-batches that have begun behind the oldest one, at most: half of what a server keeps for those who have not taken it yet.
const MOST_BEGUN: u64 = 128 << 20;

impl Pipeline {
    /// Tokens from which all are rounded alike on every device.
    pub(crate) fn uniform_rows(&self) -> usize {
        self.costs.iter().map(|costs| costs.uniform_rows as usize).max().unwrap_or(1)
    }

    /// Whether all devices say from how many tokens on all are rounded alike: 1 is the word of those that do not even it out.
    pub(crate) fn evens_out(&self) -> bool {
        self.costs.iter().all(|costs| costs.uniform_rows > 1)
    }

    /// Fewest tokens of a part of a prompt that is rounded as the whole is: attention takes a token alone as one that was generated.
    pub(crate) fn smallest_part(&self) -> usize {
        self.uniform_rows().max(2)
    }

    /// Rows of a micro-batch that take as long as what a run takes beside its rows, on the device where that is the most.
    pub(crate) fn run_rows(&self) -> f64 {
        self.costs.iter().map(|costs| f64::from(costs.run_rows)).fold(0.0, f64::max)
    }

    /// How many micro-batches begin before the rest of the oldest of them is enqueued, if each hands over so many bytes at most.
    pub fn lead(&self, bytes: u64) -> usize {
        let room = MOST_BEGUN / bytes.max(1);
        let wanted = if self.ring { self.costs.len() + SPARE } else { 0 };
        usize::try_from(room).map_or(wanted, |room| room.min(wanted))
    }
}

/// The sizes of the micro-batches of `n` tokens behind `past` others in a pipeline, `full` tokens each at most, in a model with this work.
/// Empty if `n` is 0.
pub fn micro_batches(past: usize, n: usize, full: usize, pipeline: &Pipeline, work: Work) -> Vec<usize> {
    let full = full.max(1);
    let mut sizes = Vec::new();
    match pipeline.costs.len() {
        0 | 1 => sizes.resize(n / full, full),
        several => {
            let overhead = pipeline.run_rows();
            // The least of n / s · overhead + waiting · s, the rows that are lost, for micro-batches of s rows.
            let rows = match several - 1 - usize::from(pipeline.ring) {
                0 => n as f64,
                waiting => (n as f64 * overhead / waiting as f64).sqrt().max(1.0),
            };
            // One more at either end has to be worth its run.
            let least = rounded_size((2.0 * overhead) as usize).max(SMALLEST);
            let all = work.cost(past, n);
            let each = all * rows / n.max(1) as f64;
            let mut done = 0;
            loop {
                let middle = ((work.cost(past, done) + each / 2.0) / all).min(1.0);
                let time = each * (1.0 - END_DISCOUNT + END_DISCOUNT * 6.0 * middle * (1.0 - middle));
                let mut size = rounded_size(work.within(past + done, time)).max(SMALLEST);
                if pipeline.ring {
                    let (begun, left) = (rounded_size(done) + least, rounded_size(n.saturating_sub(done) / 2));
                    size = size.min(begun).min(left.max(least));
                }
                let size = size.min(full);
                if done + size > n {
                    break;
                }
                sizes.push(size);
                done += size;
            }
        }
    }
    let mut rest = n - sizes.iter().sum::<usize>();
    if let Some(last) = sizes.last_mut().filter(|_| rest > 0) {
        let more = pipeline.smallest_part().min((*last + rest) / 2).saturating_sub(rest);
        *last -= more;
        rest += more;
    }
    sizes.extend(Some(rest).filter(|&rest| rest > 0));
    sizes
}

/// Rounds a size to one of a few, as each is a graph that has to be compiled; kernels like multiples of 16.
fn rounded_size(size: usize) -> usize {
    let step = match size {
        ..44 => 8,
        44..128 => 16,
        128..256 => 32,
        _ => 64,
    };
    size.saturating_add(step / 2) / step * step
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Costs = Costs { batch_rows: 128, run_rows: 7.0, uniform_rows: 3, attention: 3.5 };
    /// Waits for its weights up to about as many rows.
    const GPU: Costs = Costs { run_rows: 128.0, uniform_rows: 1, ..CPU };

    const FLAT: Work = Work { token: 5.0, context: 0.0 };
    /// A token behind 800 others takes twice as long as the first.
    const GROWING: Work = Work { token: 5.0, context: 5.0 / 800.0 };

    #[test]
    fn some_begin_before_the_oldest_comes_back() {
        let (two, four) = (ring(&[CPU; 2]), ring(&[CPU; 4]));
        assert_eq!([line(&[CPU; 2]).lead(1), two.lead(0), two.lead(1 << 20), four.lead(1 << 20)], [0, 3, 3, 5]);
        // Fewer where each is large: beside the oldest they are what a server keeps.
        assert_eq!([64 << 20, 128 << 20, 129 << 20].map(|bytes| two.lead(bytes)), [2, 1, 0]);
    }

    /// From device to device.
    fn line(costs: &[Costs]) -> Pipeline {
        Pipeline { devices: (0..costs.len()).collect(), costs: costs.to_vec(), ring: false }
    }

    /// The last one has both ends.
    fn ring(costs: &[Costs]) -> Pipeline {
        Pipeline { ring: true, ..line(costs) }
    }

    #[test]
    fn all_tokens_in_pieces_that_fit() {
        for full in [1, 2, 3, 4, 5, 16, 31, 32, 64, 128, 512] {
            let lines = [line(&[]), line(&[CPU]), line(&[GPU]), line(&[CPU, GPU]), line(&[CPU; 5])];
            let rings = [ring(&[CPU, CPU]), ring(&[CPU, GPU]), ring(&[CPU; 3]), ring(&[CPU; 5])];
            for pipeline in lines.into_iter().chain(rings) {
                for (past, work) in [(0, FLAT), (0, GROWING), (30_000, GROWING)] {
                    for n in 0..1500 {
                        let sizes = micro_batches(past, n, full, &pipeline, work);
                        assert_eq!(sizes.iter().sum::<usize>(), n);
                        let least = n.min(pipeline.smallest_part()).min(full.div_ceil(2));
                        let fit = sizes.iter().all(|&s| (least..=full).contains(&s));
                        assert!(fit, "{n} behind {past} {full} {pipeline:?}: {sizes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_device_gets_full_ones_and_several_small_ones() {
        let sizes = |n, full, devices: &[Costs]| micro_batches(0, n, full, &line(devices), FLAT);
        assert_eq!(sizes(300, 128, &[CPU]), [128, 128, 44]);
        assert_eq!(sizes(1024, 128, &[CPU; 2]), [64, 80, 80, 80, 96, 96, 96, 96, 96, 80, 80, 64, 16]);
        let five = sizes(1024, 128, &[CPU; 5]);
        assert!(five.iter().all(|size| (16..=48).contains(size)), "{five:?}");
        assert_eq!(sizes(100, 128, &[CPU; 2]), [24, 32, 32, 12]);
        // What waits for its weights gets full ones.
        assert_eq!(sizes(2048, 128, &[CPU, GPU]), [128; 16]);
        // None comes alone, or with one other.
        assert_eq!(sizes(33, 128, &[CPU; 2]), [16, 14, 3]);
        assert_eq!(sizes(129, 128, &[CPU]), [126, 3]);
        assert_eq!(sizes(129, 128, &[GPU]), [127, 2]);
        assert_eq!(sizes(1, 128, &[CPU; 2]), [1]);
        // Nothing to win.
        assert_eq!(sizes(40, 8, &[CPU; 4]), [8; 5]);
    }

    #[test]
    fn later_ones_have_fewer_tokens_and_those_at_the_ends_take_less() {
        for (past, n, n_devices) in [(0, 2048, 2), (0, 2048, 4), (0, 6000, 2), (500, 3000, 3)] {
            let sizes = micro_batches(past, n, 512, &line(&vec![CPU; n_devices]), GROWING);
            assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] > 2 * sizes[sizes.len() - 2], "{sizes:?}");
            let mut before = past;
            let costs: Vec<f64> = sizes.iter().map(|&size| (GROWING.cost(before, size), before += size).0).collect();
            let most = costs.iter().copied().fold(0.0, f64::max);
            let average = GROWING.cost(past, n) / costs.len() as f64;
            assert!(most < 1.35 * average, "{most} and {average}: {sizes:?}");
            assert!(costs[0] < 0.9 * most && costs[costs.len() - 2] < 0.9 * most, "{costs:?}");
            let different: std::collections::BTreeSet<_> = sizes.iter().collect();
            assert!(different.len() <= 12, "{different:?}");
        }
        let usual: std::collections::BTreeSet<_> =
            micro_batches(0, 2048, 128, &line(&[CPU; 2]), GROWING).into_iter().collect();
        assert!(usual.len() <= 8, "{usual:?}");
        // Behind a long text tokens take as long as one another.
        let late = micro_batches(50_000, 1024, 128, &line(&[CPU; 2]), GROWING);
        assert_eq!(late, [64, 80, 80, 96, 96, 96, 96, 96, 96, 80, 80, 64]);
    }

    #[test]
    fn where_the_last_device_has_both_ends_only_those_at_the_ends_are_small() {
        let sizes = |n, full, devices: &[Costs]| micro_batches(0, n, full, &ring(devices), GROWING);
        assert_eq!(sizes(512, 128, &[CPU; 2]), [16, 32, 64, 128, 128, 80, 32, 16, 16]);
        assert_eq!(sizes(100, 128, &[CPU; 2]), [16, 32, 24, 16, 12]);
        assert_eq!(sizes(2048, 512, &[CPU; 2]), [16, 32, 64, 128, 272, 512, 512, 256, 128, 64, 32, 16, 16]);
        // Three have two in between, as two have in a line.
        let three = sizes(2048, 128, &[CPU; 3]);
        let two = micro_batches(0, 2048, 128, &line(&[CPU; 2]), GROWING);
        assert_eq!(three.iter().max(), two.iter().max());
        assert!(three.iter().skip(3).is_sorted_by(|a, b| a >= b) && three[..3] == [16, 32, 64], "{three:?}");
        for devices in [&[CPU; 2][..], &[CPU; 3], &[CPU; 4]] {
            let different: std::collections::BTreeSet<_> = sizes(2048, 128, devices).into_iter().collect();
            assert!(different.len() <= 11, "{different:?}");
        }
        // What waits for its weights has nothing to win by small ones.
        assert_eq!(sizes(2048, 512, &[GPU; 2]), [256, 512, 512, 384, 256, 128]);
        assert_eq!(sizes(2048, 128, &[GPU, CPU]), [128; 16]);
    }
}
