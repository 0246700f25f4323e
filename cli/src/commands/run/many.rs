//! `outboard run --parallel N`: several texts behind one prompt, side by side, each with a seed of its own.

use super::{Args, Opened, finish_name};
use crate::commands::print_json;
use crate::devices::{self, Net};
use crate::failover::Recovered;
use crate::model::{self, DeviceReport};
use crate::{interrupt, print};
use anyhow::Result;
use outboard_llm::{GenerateOptions, Generation, Sampler, TextRequest, generate_many};
use outboard_output as output;
use serde::Serialize;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What `--json` prints; the names are fixed.
#[derive(Serialize)]
struct Report {
    prompt_tokens: Vec<u32>,
    texts: Vec<Text>,
    timings: Timings,
    devices: Vec<DeviceReport>,
    net: Net,
    recoveries: Vec<Recovered>,
}

#[derive(Serialize)]
struct Text {
    seed: u64,
    text: String,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    finish: &'static str,
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    /// All texts together.
    total_ms: f64,
    tps: f64,
}

pub(super) fn main(args: &Args, mut opened: Opened, tokens: &[u32], options: &GenerateOptions) -> Result<ExitCode> {
    let request = |i: u32| {
        let sampler = Sampler { seed: options.sampler.seed.wrapping_add(i.into()), ..options.sampler };
        TextRequest { prompt: tokens.to_vec(), options: GenerateOptions { sampler, ..options.clone() } }
    };
    let requests: Vec<TextRequest> = (0..args.parallel).map(request).collect();
    let start = Instant::now();
    let mut shown = Ok(());
    let interrupted = opened.interrupted.clone();
    let generations = generate_many(&mut opened.engine, opened.loaded.tokenizer(), &requests, &mut |_, _| {
        shown = output::check();
        if shown.is_err() || interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    shown?;
    report(args, &opened, tokens, &requests, generations, start.elapsed())?;
    Ok(interrupt::status(&interrupted))
}

fn report(
    args: &Args,
    opened: &Opened,
    prompt: &[u32],
    requests: &[TextRequest],
    generations: Vec<Generation>,
    took: Duration,
) -> Result<()> {
    let n: usize = generations.iter().map(|g| g.tokens.len()).sum();
    let text = |(request, g): (&TextRequest, Generation)| Text {
        seed: request.options.sampler.seed,
        finish: finish_name(g.finish),
        text: g.text,
        tokens: g.tokens,
        log_probs: g.log_probs,
    };
    let report = Report {
        prompt_tokens: prompt.to_vec(),
        texts: requests.iter().zip(generations).map(text).collect(),
        timings: Timings {
            load_ms: print::ms(opened.load_time),
            total_ms: print::ms(took),
            tps: print::per_second(n, took),
        },
        devices: model::device_reports(&opened.engine),
        net: devices::net(opened.engine.devices()),
        recoveries: opened.recoveries.list(),
    };
    if args.json {
        return print_json(&report);
    }
    for text in &report.texts {
        output::outln(format_args!("--- seed {}, {} tokens, {}", text.seed, text.tokens.len(), text.finish))?;
        output::outln(&text.text)?;
    }
    let t = &report.timings;
    output::errln(format_args!("\nload    {:>9.1} ms", t.load_ms))?;
    output::errln(format_args!("texts   {:>9.1} ms  {n:>5} tokens  {:>8.1} t/s", t.total_ms, t.tps))?;
    Ok(output::err(report.net.line())?)
}
