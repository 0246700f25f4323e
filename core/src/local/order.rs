//! In which order a device is given what a graph computes, and where it has to wait, for devices that compute several nodes at once.
//!
//! Two nodes may overlap if neither touches bytes that the other writes. Which bytes those are is known where a graph is compiled, when its tensors have their
//! places: memory that results share makes nodes dependent that are independent in the graph.

use crate::{Graph, PlacedBytes, Placement, TensorId};

/// Steps among which the order is chosen.
const WINDOW: usize = 64;

/// Most ranges that are remembered between two barriers, so that a graph of many nodes is not compared with itself node by node.
const MOST_RANGES: usize = 256;

/// The bytes that a step touches: a node, or several that one kernel computes.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// What it reads.
    pub reads: Vec<PlacedBytes>,
    /// What it writes.
    pub writes: Option<PlacedBytes>,
}

impl Access {
    /// That of a step which makes `result` of these sources.
    pub fn of(graph: &Graph, placement: &Placement, srcs: &[Option<TensorId>], result: TensorId) -> Access {
        let reads = srcs.iter().flatten().filter_map(|&src| placement.bytes(graph, src)).collect();
        Access { reads, writes: placement.bytes(graph, result) }
    }

    /// Whether it must stay behind an earlier one.
    pub fn follows(&self, earlier: &Access) -> bool {
        let (writes, written) = (self.writes.as_slice(), earlier.writes.as_slice());
        meet(&self.reads, written) || meet(writes, &earlier.reads) || meet(writes, written)
    }
}

fn meet(some: &[PlacedBytes], others: &[PlacedBytes]) -> bool {
    some.iter().any(|range| others.iter().any(|other| range.meets(other)))
}

/// Steps in an order in which few of them wait: those that need no earlier one first, then those that need only these. `follows` says whether the
/// first must stay behind the second, an earlier one. Steps are compared inside windows, which keep their order.
pub fn in_levels<T>(steps: Vec<T>, follows: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let mut ordered = Vec::with_capacity(steps.len());
    let mut rest = steps.into_iter();
    loop {
        let window: Vec<T> = rest.by_ref().take(WINDOW).collect();
        if window.is_empty() {
            return ordered;
        }
        let mut levels: Vec<usize> = Vec::with_capacity(window.len());
        for (i, step) in window.iter().enumerate() {
            let before = (0..i).filter(|&j| follows(step, &window[j]));
            levels.push(before.map(|j| levels[j] + 1).max().unwrap_or(0));
        }
        let mut window: Vec<_> = levels.into_iter().zip(window).collect();
        window.sort_by_key(|(level, _)| *level);
        ordered.extend(window.into_iter().map(|(_, step)| step));
    }
}

/// What was touched since the last barrier.
#[derive(Debug, Default)]
pub struct SinceBarrier {
    reads: Vec<PlacedBytes>,
    writes: Vec<PlacedBytes>,
}

impl SinceBarrier {
    /// Whether a step needs a barrier before it: it reads or writes what was written, or writes what was read.
    pub fn needs_another(&self, next: &Access) -> bool {
        let writes = next.writes.as_slice();
        meet(&next.reads, &self.writes)
            || meet(writes, &self.writes)
            || meet(writes, &self.reads)
            || self.reads.len() > MOST_RANGES
    }

    /// Adds what a step touches.
    pub fn add(&mut self, step: Access) {
        self.reads.extend(step.reads);
        self.writes.extend(step.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A step by the bytes that it reads, and the one that it writes.
    fn step(reads: &[u64], writes: u64) -> Access {
        let byte = |at: u64| PlacedBytes { buffer: 0, start: at, end: at + 1 };
        Access { reads: reads.iter().copied().map(byte).collect(), writes: Some(byte(writes)) }
    }

    /// Of numbered steps in their order, which ones wait.
    fn waits(steps: &[(usize, Access)]) -> Vec<usize> {
        let mut since = SinceBarrier::default();
        let mut waiting = Vec::new();
        for (number, access) in steps {
            if since.needs_another(access) {
                since = SinceBarrier::default();
                waiting.push(*number);
            }
            since.add(access.clone());
        }
        waiting
    }

    fn ordered(steps: Vec<Access>) -> Vec<(usize, Access)> {
        in_levels(steps.into_iter().enumerate().collect(), |(_, a), (_, b)| a.follows(b))
    }

    #[test]
    fn independent_steps_come_one_behind_the_other() {
        // Two chains, one behind the other, and a step that joins them.
        let steps = vec![step(&[0], 1), step(&[1], 2), step(&[0], 3), step(&[3], 4), step(&[2, 4], 5)];
        let numbered: Vec<_> = steps.iter().cloned().enumerate().collect();
        assert_eq!(waits(&numbered), [1, 3, 4], "as they are");
        let ordered = ordered(steps);
        assert_eq!(ordered.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 2, 1, 3, 4]);
        assert_eq!(waits(&ordered), [1, 4]);
    }

    #[test]
    fn memory_that_is_used_again_is_waited_for() {
        let ordered = ordered(vec![step(&[0], 1), step(&[1], 2), step(&[3], 1)]);
        assert_eq!(ordered.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(waits(&ordered), [1, 2]);
    }

    #[test]
    fn a_barrier_comes_now_and_then() {
        let steps: Vec<_> = (0..3 * MOST_RANGES as u64).map(|i| step(&[0], i + 1)).enumerate().collect();
        assert_eq!(waits(&steps).len(), 2);
    }

    proptest! {
        /// Whatever must stay behind another does, and waits for it.
        #[test]
        fn what_depends_stays_behind(steps in prop::collection::vec((prop::collection::vec(0u64..12, 0..3), 0u64..12), 0..200)) {
            let steps: Vec<_> = steps.iter().map(|(reads, writes)| step(reads, *writes)).collect();
            let ordered = ordered(steps.clone());
            let mut places = vec![0; steps.len()];
            ordered.iter().enumerate().for_each(|(place, (number, _))| places[*number] = place);
            let waiting = waits(&ordered);
            let waits_at: Vec<usize> = waiting.iter().map(|&number| places[number]).collect();
            for (i, later) in steps.iter().enumerate() {
                for (j, earlier) in steps[..i].iter().enumerate() {
                    if later.follows(earlier) {
                        prop_assert!(places[j] < places[i]);
                        prop_assert!(waits_at.iter().any(|&at| places[j] < at && at <= places[i]));
                    }
                }
            }
        }
    }
}
