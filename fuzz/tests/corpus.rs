//! What fuzzing has found, and what it starts from, on every target: nothing may panic, hang, or take much memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_fuzz::{TARGETS, seeds};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::path::Path;

/// Changes of each seed: a taste of what `fuzz/run` does for minutes.
const CHANGES: usize = 20;

fn kept(folder: &str, target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = files
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn everything_that_is_kept() {
    for target in TARGETS {
        let seeds = seeds(target.name);
        assert!(!seeds.is_empty());
        for (name, input) in [seeds, kept("corpus", target.name), kept("regressions", target.name)].concat() {
            println!("{} {name}", target.name);
            (target.run)(&input);
        }
    }
}

#[test]
fn changed_seeds() {
    let mut rng = StdRng::seed_from_u64(1);
    for target in TARGETS {
        let mutate = target.mutate.unwrap_or(outboard_fuzz::mutate::flat);
        for (name, seed) in seeds(target.name) {
            let mut input = seed;
            for i in 0..CHANGES {
                input = mutate(&input, &mut rng);
                input.truncate(4096);
                println!("{} {name} {i}", target.name);
                (target.run)(&input);
            }
        }
    }
}

#[test]
fn panics_of_a_target_are_seen() {
    // A graph whose device panics would be an error of the queue; the target must not take that for a refusal.
    let graph = TARGETS.iter().find(|t| t.name == "graph").unwrap();
    (graph.run)(&seeds("graph")[0].1);
    assert!(seeds("graph").len() > 20 && seeds("messages").len() > 60);
}
