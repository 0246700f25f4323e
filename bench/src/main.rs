//! `peer`: Outboard's CPU device beside llama.cpp, in one process and in pairs, so that their ratio holds on a machine whose
//! speed changes from one minute to the next.

mod llama;
mod outboard;
mod report;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use report::{Line, Report, Test};
use std::path::PathBuf;
use std::time::Duration;

/// Measures Outboard's CPU device beside llama.cpp on the same model, threads and tokens.
#[derive(Parser)]
struct Args {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Threads of each side
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Tokens of the prompt
    #[arg(short = 'p', long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    n_prompt: u32,
    /// Tokens that are decoded behind the prompt
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    n_gen: u32,
    /// Sequences at once: `-n` tokens are written in each of so many
    #[arg(long = "np", value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: Vec<u32>,
    /// Pairs of measurements
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Most tokens in one run of the graph
    #[arg(long, visible_alias = "ub", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    ubatch_size: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show llama.cpp's log
    #[arg(short, long)]
    verbose: bool,
}

/// What both sides are set up with.
#[derive(Clone)]
struct Setup {
    model: PathBuf,
    threads: u16,
    /// Tokens of a sequence.
    n_ctx: u32,
    n_ubatch: u32,
    /// Most sequences at once.
    n_seqs: u32,
}

/// One of the two that are compared. But for [`Side::side_by_side`] it has one sequence in its cache.
trait Side {
    /// Tokens of the vocabulary.
    fn n_vocab(&self) -> u32;

    /// Forgets every token.
    fn clear(&mut self);

    /// Runs tokens behind those in the cache, and waits until they are through: what is timed.
    fn eval(&mut self, tokens: &[u32]) -> Result<()>;

    /// The most probable token behind those in the cache.
    fn next(&self) -> Result<u32>;

    /// Begins a sequence with each of these tokens, has `steps` tokens written in each, a step of all at a time, and forgets them.
    fn side_by_side(&mut self, tokens: &[u32], steps: u32) -> Result<()>;
}

fn main() -> Result<()> {
    let args = Args::parse();
    let n_ctx = args.n_prompt.checked_add(args.n_gen).context("-p and -n are too large")?;
    let setup = Setup { model: args.model.clone(), threads: args.threads, n_ctx, n_ubatch: args.ubatch_size, n_seqs: 1 };
    let backend = llama::init(args.verbose)?;
    llama::check_build()?;
    let mut ours = outboard::Outboard::load(&setup)?;
    let llama_model = llama::load(&backend, &setup)?;
    let mut peer = llama::Llama::new(&backend, &llama_model, &setup)?;
    ensure!(
        ours.n_vocab() == peer.n_vocab(),
        "Outboard reads {} tokens of vocabulary, llama.cpp {}",
        ours.n_vocab(),
        peer.n_vocab()
    );
    let mut pp = Test::new(format!("pp{}", args.n_prompt), args.n_prompt);
    let mut tg = Test::new(format!("tg{} @ d{}", args.n_gen, args.n_prompt), args.n_gen);
    // The first round warms caches, page tables and compiled graphs up, and is not counted.
    for round in 0..=args.repetitions {
        let mut random = Random(u64::from(round) + 1);
        let mut tokens = |n: u32| (0..n).map(|_| random.below(ours.n_vocab())).collect::<Vec<u32>>();
        let (prompt, behind) = (tokens(args.n_prompt), tokens(args.n_gen));
        ours.clear();
        peer.clear();
        let a_first = round % 2 == 0;
        let prefill = pair(a_first, &mut ours, &mut peer, |side| side.eval(&prompt))?;
        let prefill_same = ours.next()? == peer.next()?;
        let decode = pair(a_first, &mut ours, &mut peer, |side| behind.chunks(1).try_for_each(|t| side.eval(t)))?;
        let decode_same = ours.next()? == peer.next()?;
        if round > 0 {
            pp.add(prefill, Some(prefill_same));
            tg.add(decode, Some(decode_same));
        }
        eprint!("\r{round} of {} pairs ", args.repetitions);
    }
    eprintln!();
    let mut tests = vec![pp.finish(), tg.finish()];
    for &n_seqs in &args.parallel {
        // As many places as sequences: both compute otherwise if there are more.
        let setup = Setup { n_seqs, n_ctx: args.n_gen + 1, ..setup.clone() };
        let mut ours = outboard::Outboard::load(&setup)?;
        let mut peer = llama::Llama::new(&backend, &llama_model, &setup)?;
        tests.push(many(&mut ours, &mut peer, &args, n_seqs)?);
    }
    let report = Report {
        model: setup.model.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        processor: ours.processor(),
        isa: ours.isa(),
        threads: args.threads,
        llama_system_info: llama::system_info(),
        tests,
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{report}"),
    }
    Ok(())
}

/// Tokens of sequences that are written side by side. What they are is not compared: each side goes its own way.
fn many(ours: &mut dyn Side, peer: &mut dyn Side, args: &Args, n_seqs: u32) -> Result<Line> {
    let mut test = Test::new(format!("tg{} x{n_seqs}", args.n_gen), args.n_gen * n_seqs);
    for round in 0..=args.repetitions {
        let mut random = Random(u64::from(round) + 1);
        let tokens: Vec<u32> = (0..n_seqs).map(|_| random.below(ours.n_vocab())).collect();
        let times = pair(round % 2 == 0, ours, peer, |side| side.side_by_side(&tokens, args.n_gen))?;
        if round > 0 {
            test.add(times, None);
        }
        eprint!("\r{n_seqs} sequences: {round} of {} pairs ", args.repetitions);
    }
    eprintln!();
    Ok(test.finish())
}

/// Times both sides, one right after the other: Outboard, then llama.cpp.
fn pair(
    a_first: bool,
    a: &mut dyn Side,
    b: &mut dyn Side,
    run: impl Fn(&mut dyn Side) -> Result<()>,
) -> Result<(Duration, Duration)> {
    let time = |side: &mut dyn Side| {
        let start = std::time::Instant::now();
        run(side).map(|()| start.elapsed())
    };
    Ok(match a_first {
        true => (time(a)?, time(b)?),
        false => {
            let b = time(b)?;
            (time(a)?, b)
        }
    })
}

/// SplitMix64 (Steele, Lea and Flood, 2014): tokens without a pattern, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % u64::from(n.max(1))) as u32
    }
}
