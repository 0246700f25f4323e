//! Whether a model fits, and what would have to change for it to fit.

use super::Member;
use outboard_llm::parts::Parts;
use outboard_llm::split::{SplitDevice, split};

/// The bytes that one more device would have to hold so that the model fits; `None` if it does fit.
pub(in crate::commands::plan) fn missing(parts: &Parts, members: &[Member]) -> Option<u64> {
    let sizes = parts.sizes(members.len());
    let with = |more: Option<u64>| {
        let (id, pool) = (String::new(), String::new());
        let another = |capacity| SplitDevice { id, pool, capacity, weight: f64::MIN_POSITIVE };
        split(&sizes, &members.iter().map(Member::to_split).chain(more.map(another)).collect::<Vec<_>>()).is_ok()
    };
    if with(None) {
        return None;
    }
    // With all of the model's bytes it fits, and with more it fits as well.
    let (mut too_few, mut enough) = (0, sizes.bytes());
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if with(Some(middle)) { enough = middle } else { too_few = middle }
    }
    Some(enough)
}

/// The longest context, up to that of `parts`, with which the model fits, in steps of `step` tokens.
pub(in crate::commands::plan) fn longest_context(parts: &Parts, members: &[Member], step: usize) -> Option<usize> {
    let fits = |steps: usize| missing(&parts.with_context(steps * step), members).is_none();
    let (mut fitting, mut too_long) = (0, parts.n_ctx / step.max(1) + 1);
    while too_long - fitting > 1 {
        let middle = fitting + (too_long - fitting) / 2;
        if fits(middle) { fitting = middle } else { too_long = middle }
    }
    (fitting > 0).then_some(fitting * step)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{member, parts};
    use super::*;

    #[test]
    fn the_longest_context() {
        // 400 bytes and eight layers of 100 and 2 for each block of context, of 128 tokens.
        assert_eq!(longest_context(&parts(8), &[member("a", "a", 1300)], 128), Some(6 * 128));
        assert_eq!(longest_context(&parts(8), &[member("a", "a", 9000)], 5 * 128), Some(1280));
        assert_eq!(longest_context(&parts(8), &[member("a", "a", 1200)], 128), None);
    }
}
