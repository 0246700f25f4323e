//! How late tokens come while another sequence reads a long prompt, and how soon the second of two texts with the same beginning has its first token:
//! `cargo run --release -p outboard-integration --example side_by_side -- MODEL.gguf`, on one thread.
#![allow(clippy::print_stdout)]

use outboard_core::op::Sampler;
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::Gguf;
use outboard_llm::{LoadOptions, LogProbs, Model, PlacedModel, Prefixes, Sampling, Sequence};
use outboard_system::open_mapped;
use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SAMPLING: Sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
/// Sequences that decode.
const BESIDE: usize = 7;
/// Tokens of the prompt that arrives.
const LONG: usize = 4096;

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i.wrapping_mul(7919).wrapping_add(seed * 104_729)) % 40_000).collect()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn load(model: &Arc<Model>, options: LoadOptions) -> Result<PlacedModel, Box<dyn Error>> {
    let cpu: Arc<dyn Device> = cpu_device(&Host::new(), "CPU0", CpuOptions::with_threads(1), &MemoryBudget::new(None));
    Ok(PlacedModel::load(model.clone(), vec![cpu], &options, &|_, _| {})?)
}

/// Gaps between the tokens of sequences that decode, before a long prompt arrives and while it is read: twice, as memory of the cache that nobody has
/// written to yet takes the system's time.
fn while_a_prompt_is_read(model: &Arc<Model>) -> Result<(), Box<dyn Error>> {
    let options = LoadOptions { n_ctx: 8192, n_seqs: BESIDE + 1, cache_tokens: 24_576, ..LoadOptions::default() };
    let mut placed = load(model, options)?;
    for memory in ["a new cache", "a used cache"] {
        let Gaps { mut before, mut during, took } = gaps(&mut placed)?;
        let (n, parts) = (during.len(), medians(&during));
        let (usual, middle) = (median(&mut before), median(&mut during));
        let latest = during.last().copied().unwrap_or_default();
        let late = during.iter().filter(|gap| **gap > 3 * usual).count();
        println!(
            "{memory}: a prompt of {LONG} tokens beside {BESIDE} sequences, read within {took:.1?}: gaps of {usual:.1?} before; {middle:.1?} during, \
             {latest:.1?} ({:.2} times) at most, {late} of {n} more than 3 times as long; medians of tenths {parts:.0?}",
            latest.as_secs_f64() / usual.as_secs_f64()
        );
    }
    Ok(())
}

/// The medians of each tenth of some gaps.
fn medians(gaps: &[Duration]) -> Vec<Duration> {
    gaps.chunks(gaps.len().div_ceil(10).max(1)).map(|part| median(&mut part.to_vec())).collect()
}

/// Times between the tokens of each sequence that decodes.
struct Gaps {
    /// Before a long prompt arrives.
    before: Vec<Duration>,
    /// While it is read.
    during: Vec<Duration>,
    /// How long that takes.
    took: Duration,
}

/// Measures [`Gaps`], and closes the sequences.
fn gaps(placed: &mut PlacedModel) -> Result<Gaps, Box<dyn Error>> {
    let mut last: HashMap<Sequence, Instant> = HashMap::new();
    let mut sequences = Vec::new();
    for i in 0..BESIDE {
        let sequence = placed.open()?;
        placed.begin(sequence, &tokens(20, i as u32), SAMPLING, 2000)?;
        sequences.push(sequence);
    }
    let (mut before, mut during, mut long, mut begun) = (Vec::new(), Vec::new(), None, Instant::now());
    while let Some(token) = placed.next_token()? {
        if Some(token.sequence) == long {
            break;
        }
        let now = Instant::now();
        if let Some(last) = last.insert(token.sequence, now) {
            let gaps = if long.is_some() { &mut during } else { &mut before };
            gaps.push(now - last);
        }
        if before.len() == 60 * BESIDE && long.is_none() {
            let sequence = placed.open()?;
            placed.begin(sequence, &tokens(LONG, 99), SAMPLING, 1)?;
            (long, begun) = (Some(sequence), Instant::now());
            sequences.push(sequence);
        }
    }
    let took = begun.elapsed();
    sequences.into_iter().try_for_each(|sequence| placed.close(sequence))?;
    Ok(Gaps { before, during, took })
}

/// The first tokens of two texts that begin alike.
fn with_the_same_beginning(model: &Arc<Model>) -> Result<(), Box<dyn Error>> {
    let options = LoadOptions { n_ctx: 4096, n_seqs: 2, prefixes: Prefixes::Shared, ..LoadOptions::default() };
    let mut placed = load(model, options)?;
    let beginning = tokens(2000, 5);
    let mut times = Vec::new();
    for end in [[11, 12, 13], [21, 22, 23]] {
        let sequence = placed.open()?;
        let free = placed.free_tokens();
        let start = Instant::now();
        placed.begin(sequence, &[&beginning[..], &end].concat(), SAMPLING, 1)?;
        let _ = placed.next_token()?;
        times.push((start.elapsed(), free - placed.free_tokens()));
    }
    println!(
        "two texts that begin with the same 2000 tokens: first tokens after {:.1?} and {:.1?}",
        times[0].0, times[1].0
    );
    println!("tokens that they hold in the cache: {} and {} more", times[0].1, times[1].1);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which model?")?;
    let model = Arc::new(Model::new(Gguf::open(Path::new(&path), open_mapped)?)?);
    while_a_prompt_is_read(&model)?;
    with_the_same_beginning(&model)
}
