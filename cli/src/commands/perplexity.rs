//! `outboard perplexity`.

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs};
use crate::devices::{self, Net};
use crate::model::DeviceReport;
use crate::{interrupt, model, print};
use anyhow::{Context, Result};
use outboard_llm::perplexity::{count_chunks, scored};
use outboard_llm::tokenizer::{Bos, SpecialText};
use outboard_llm::{Error, Estimate, LoadOptions, PlacedModel, perplexity};
use outboard_output as output;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tokens of a chunk when nothing is said: what published figures are made with.
const CHUNK: u32 = 512;

#[derive(clap::Args)]
#[command(mut_arg("ctx", |arg| arg.help("Tokens of a chunk; 0 for what the model was trained with [default: 512]")))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// A file with the text
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Most chunks to read [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints; the names are fixed.
#[derive(Serialize)]
struct Report {
    /// Null if no chunk was read to its end.
    ppl: Option<f64>,
    stderr: Option<f64>,
    chunks: usize,
    /// "done", or "cancelled" by Ctrl-C.
    finish: &'static str,
    /// Tokens of a chunk.
    n_ctx: usize,
    /// Tokens that counted.
    scored: usize,
    /// The perplexity after each chunk.
    estimates: Vec<f64>,
    timings: Timings,
    devices: Vec<DeviceReport>,
    net: Net,
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    eval_ms: f64,
    eval_tps: f64,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let text = read_text(&args.file)?;
    let mut chosen = args.model.clone();
    chosen.ctx = chosen.ctx.or(Some(CHUNK));
    let loaded = model::open(chosen.only()?)?;
    let tokenizer = loaded.tokenizer();
    let tokens = tokenizer.encode(&text, SpecialText::Literal, Bos::Add)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let set = devices::open(&args.devices)?;
    let options = model::load_options(&chosen, &loaded, &set)?;
    let most = args.chunks.map_or(usize::MAX, NonZeroUsize::get);
    let chunks = count_chunks(tokens.len(), options.n_ctx)?.min(most);
    let options = LoadOptions { scores: scored(options.n_ctx), ..options };
    output::errln(format_args!("model: {}", model::describe(&loaded)))?;
    output::errln(format_args!("text: {} tokens, {chunks} chunks of {}", tokens.len(), options.n_ctx))?;
    let start = Instant::now();
    let mut engine = model::load(&loaded, &set, &options)?;
    let load_time = start.elapsed();
    output::err(model::plan_table(&engine))?;
    let interrupted = interrupt::watch(&engine)?;
    engine.set_watch(print::stalls());

    let read = read_chunks(&mut engine, &tokens, bos, most, &interrupted)?;
    let report = Report::new(&read, load_time, &engine);
    if args.json {
        print_json(&report)?;
    } else {
        report.print(&read.estimate)?;
    }
    Ok(if read.cancelled { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

fn read_text(file: &Path) -> Result<String> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    String::from_utf8(text).with_context(|| format!("{} is no text in UTF-8", file.display()))
}

/// What is known of a text, of which an interrupt may have left a part.
struct Read {
    estimate: Estimate,
    /// The perplexity after each chunk.
    estimates: Vec<f64>,
    cancelled: bool,
    time: Duration,
}

/// Reads the chunks of a text, and says after each what is known.
fn read_chunks(
    engine: &mut PlacedModel,
    tokens: &[u32],
    bos: Option<u32>,
    most: usize,
    interrupted: &AtomicBool,
) -> Result<Read> {
    let (mut estimate, mut estimates, mut shown) = (Estimate::default(), Vec::new(), Ok(()));
    let mut show = |now: &Estimate| {
        estimate = *now;
        estimates.push(now.ppl());
        shown = output::err(format_args!("[{}]{:.4} ", now.chunks, now.ppl()));
        if shown.is_err() || interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let start = Instant::now();
    let done = perplexity(engine, tokens, bos, most, &mut show);
    let time = start.elapsed();
    shown?;
    if estimate.chunks > 0 {
        output::errln("")?;
    }
    let cancelled = interrupted.load(Ordering::Relaxed);
    match done {
        // What is known by then is told.
        Err(Error::Core(outboard_core::Error::Cancelled)) if cancelled => {}
        done => drop(done?),
    }
    Ok(Read { estimate, estimates, cancelled, time })
}

impl Report {
    fn new(read: &Read, load_time: Duration, engine: &PlacedModel) -> Report {
        let Read { estimate, estimates, cancelled, time } = read;
        let known = |value: f64| (estimate.chunks > 0).then_some(value);
        Report {
            ppl: known(estimate.ppl()),
            stderr: known(estimate.stderr()),
            chunks: estimate.chunks,
            finish: if *cancelled { "cancelled" } else { "done" },
            n_ctx: engine.n_ctx(),
            scored: estimate.scored,
            estimates: estimates.clone(),
            timings: Timings {
                load_ms: print::ms(load_time),
                eval_ms: print::ms(*time),
                eval_tps: print::per_second(estimate.chunks * engine.n_ctx(), *time),
            },
            devices: model::device_reports(engine),
            net: devices::net(engine.devices()),
        }
    }

    fn print(&self, estimate: &Estimate) -> Result<()> {
        if estimate.chunks == 0 {
            return Ok(output::errln("no chunk was read to its end")?);
        }
        let (ppl, stderr) = (estimate.ppl(), estimate.stderr());
        let (scored, chunks) = (self.scored, self.chunks);
        output::outln(format_args!("perplexity {ppl:.4} +/- {stderr:.4}, {scored} tokens of {chunks} chunks"))?;
        let (t, read) = (&self.timings, chunks * self.n_ctx);
        output::errln(format_args!("\nload    {:>9.1} ms", t.load_ms))?;
        output::errln(format_args!("text    {:>9.1} ms  {read:>5} tokens  {:>8.1} t/s", t.eval_ms, t.eval_tps))?;
        Ok(output::err(self.net.line())?)
    }
}
