//! libFuzzer on one target; `fuzz/run` starts it. `OUTBOARD_FUZZ` names the target.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use outboard_fuzz::{TARGETS, Target, target};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("OUTBOARD_FUZZ").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("OUTBOARD_FUZZ must name one of {:?}", TARGETS.map(|t| t.name)))
});

fuzz_target!(|data: &[u8]| (TARGET.run)(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut rng = StdRng::seed_from_u64(seed.into());
    match TARGET.mutate {
        Some(mutate) if rng.random_range(0..3) > 0 => {
            let mut changed = mutate(&data[..size], &mut rng);
            changed.truncate(max_size);
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});
