//! How long a prompt takes that passes devices as micro-batches.

use outboard_llm::work::Work;
use std::collections::{BTreeMap, VecDeque};

/// A part of a model on the way of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) device: usize,
    /// Milliseconds for each unit of its work.
    pub(super) ms: f64,
    pub(super) work: Work,
    /// Milliseconds from it to the next one.
    pub(super) latency: f64,
}

/// Milliseconds until a prompt has passed all stages. A device works on one micro-batch of so many tokens at a time, and on the first
/// stage of `lead` micro-batches before it goes on with the oldest of them.
pub(super) fn pipeline_ms(stages: &[Stage], batches: &[usize], lead: usize) -> f64 {
    let mut free: BTreeMap<usize, f64> = BTreeMap::new();
    let mut pass = |there: f64, stage: &Stage, (past, tokens): (usize, usize)| {
        let free = free.entry(stage.device).or_default();
        *free = there.max(*free) + stage.ms * stage.work.cost(past, tokens);
        *free + stage.latency
    };
    let Some((first, rest)) = stages.split_first() else { return 0.0 };
    let mut begun = VecDeque::new();
    let mut past = 0;
    let mut coming = batches.iter().map(|&tokens| ((past, tokens), past += tokens).0).collect::<VecDeque<_>>();
    let mut done = 0.0;
    loop {
        let next = coming.pop_front();
        begun.extend(next.map(|batch| (pass(0.0, first, batch), batch)));
        if next.is_some() && begun.len() <= lead {
            continue;
        }
        let Some((there, batch)) = begun.pop_front() else { return done };
        done = rest.iter().fold(there, |there, stage| pass(there, stage, batch));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::UNIT;
    use super::*;

    #[test]
    fn the_slowest_stage_bounds_a_prompt() {
        let stage = |device, ms, latency| Stage { device, ms, work: UNIT, latency };
        assert_eq!(pipeline_ms(&[stage(0, 1.0, 0.0)], &[4, 4], 0), 8.0);
        // The second stage is the slow one: it begins when the first micro-batch has come, and then never waits.
        assert_eq!(pipeline_ms(&[stage(0, 1.0, 0.5), stage(1, 2.0, 0.0)], &[4, 4, 4], 0), 4.0 + 0.5 + 24.0);
        // The first one is: the second waits for each, and ends its last one behind it.
        assert_eq!(pipeline_ms(&[stage(0, 2.0, 0.5), stage(1, 1.0, 0.0)], &[4, 4, 4], 0), 24.0 + 0.5 + 4.0);
        assert_eq!((pipeline_ms(&[], &[4], 0), pipeline_ms(&[stage(0, 1.0, 0.0)], &[], 3)), (0.0, 0.0));
        // Tokens behind others take longer.
        let growing = Work { token: 1.0, context: 0.5 };
        assert_eq!(pipeline_ms(&[Stage { work: growing, ..stage(0, 1.0, 0.0) }], &[2, 2], 0), growing.cost(0, 4));
    }

    #[test]
    fn a_device_begins_others_while_it_would_wait() {
        let stage = |device, ms| Stage { device, ms, work: UNIT, latency: 0.0 };
        let round = [stage(1, 1.0), stage(0, 2.0), stage(1, 1.0)];
        // It waits for each to come back.
        assert_eq!(pipeline_ms(&round, &[4; 5], 0), 5.0 * 16.0);
        // Both have always something to do, but for the first way in and the last way out.
        for lead in [2, 3, 9] {
            assert_eq!(pipeline_ms(&round, &[4; 5], lead), 4.0 + 5.0 * 8.0 + 4.0, "{lead}");
        }
        assert_eq!(pipeline_ms(&round, &[1, 2, 4, 4, 4, 2, 1], 4), 1.0 + 18.0 * 2.0 + 1.0);
    }
}
