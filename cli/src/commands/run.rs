//! `outboard run`.

mod conversation;
mod form;
mod many;

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs, SampleArgs, Sequences, usage};
use crate::devices::{self, Net};
use crate::failover::{Recovered, Recoveries};
use crate::measure::Range;
use crate::model::DeviceReport;
use crate::trace::{Links, TokenTime, Trace, Tracer, time_lines};
use crate::{interrupt, model, print};
use anyhow::{Context, Result, bail};
use outboard::Model;
use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message};
use outboard_llm::{Finish, GenerateOptions, Generation, LogProbs, PlacedModel, Sequence, generate};
use outboard_output as output;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    sample: SampleArgs,
    /// The prompt
    #[arg(short, long, value_name = "PROMPT", required_unless_present_any = ["file", "chat"], allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the prompt, - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Most tokens to generate; -1: until the model ends the text or the context is full [default: -1]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=u32::MAX as i64))]
    n_predict: Option<i64>,
    /// Put the prompt into the model's chat template, as the user's message; without a prompt, a conversation in the terminal: a line is a message, an
    /// empty one ends it, -n is for each answer
    #[arg(long)]
    chat: bool,
    /// Generate so many texts side by side behind the prompt, with the seeds SEED, SEED + 1 and so on, each with a context of -c tokens; they are printed
    /// when all have ended
    #[arg(long, alias = "np", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    #[command(flatten)]
    form: form::FormArgs,
    /// Go on behind tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    /// End with an error when a server is lost, in place of going on without it
    #[arg(long)]
    no_failover: bool,
    /// Write what every device did and when to this file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print how the graph is cut and what is copied
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let mut generate_options = generate_options(args)?;
    let form = args.form.form()?;
    let prompt = prompt(args)?;
    if args.parallel > 1 && args.trace.is_some() {
        return Err(usage("--trace records one text: leave --parallel out"));
    }
    if args.parallel > 1 && generate_options.sampler.is_greedy() {
        return Err(usage("--parallel with --temp 0 gives the same text again and again: raise --temp"));
    }
    let loaded = model::open(args.model.only()?)?;
    generate_options.constraint = form.map(|form| loaded.constraint(&form)).transpose()?;
    let Some(prompt) = prompt else {
        let talk = conversation::Talk::new(args, &loaded)?;
        return conversation::main(talk, Opened::new(args, loaded, &[])?, &generate_options);
    };
    let tokens = encode(args, &loaded, &prompt)?;
    let mut opened = Opened::new(args, loaded, &tokens)?;
    if generate_options.sampler.temperature > 0.0 {
        output::errln(format_args!("seed: {}", generate_options.sampler.seed))?;
    }
    if args.parallel > 1 {
        return many::main(args, opened, &tokens, &generate_options);
    }
    let timed = generate_timed(args, &mut opened, &tokens, &generate_options)?;
    let (phases, trace) = (timed.phases(), timed.trace);
    let mut report = Report::new(&tokens, timed.generation, opened.load_time, &opened.engine);
    report.recoveries = opened.recoveries.list();
    // What lost servers did is not known.
    if report.recoveries.is_empty() {
        report.token_times = trace.token_times(phases.decode, report.decoded()).unwrap_or_default();
    }
    if args.json {
        print_json(&report)?;
    } else {
        output::outln("")?;
        output::err(report.timings())?;
    }
    if let Some(path) = &args.trace {
        write_trace(&trace, path, &phases)?;
    }
    Ok(interrupt::status(&opened.interrupted))
}

/// A model on its devices, and what watches over it.
struct Opened {
    loaded: Model,
    engine: PlacedModel,
    tracer: Tracer,
    load_time: Duration,
    interrupted: Arc<AtomicBool>,
    recoveries: Recoveries,
}

impl Opened {
    /// Generates a text behind what a sequence has, and shows it.
    fn generate(
        &mut self,
        sequence: Sequence,
        tokens: &[u32],
        options: &GenerateOptions,
        show: Show,
    ) -> Result<Generation> {
        generate_shown(&mut self.engine, sequence, &self.loaded, tokens, options, show, &self.interrupted)
    }

    /// Puts a model on its devices, with a context that has room for a prompt.
    fn new(args: &Args, loaded: Model, prompt: &[u32]) -> Result<Opened> {
        let set = devices::open(&args.devices)?;
        let sequences = if args.parallel > 1 { Sequences::Sharing(args.parallel as usize) } else { Sequences::One };
        let model_args = ModelArgs { sequences, ..args.model.clone() };
        let load_options = model::load_options(&model_args, &loaded, &set)?;
        check_room(prompt.len(), load_options.n_ctx)?;
        output::errln(format_args!("model: {}", model::describe(&loaded)))?;
        let tracer = Tracer::new(set.host());
        let start = Instant::now();
        let mut engine = model::load(&loaded, &set, &load_options)?;
        let load_time = start.elapsed();
        output::err(model::plan_table(&engine))?;
        if args.verbose {
            output::err(engine.describe()?)?;
        }
        let interrupted = interrupt::watch(&engine)?;
        engine.set_watch(print::stalls());
        let recoveries = Recoveries::default();
        if !args.no_failover {
            engine.set_failover(Box::new(recoveries.reconnect(set.servers())));
        }
        Ok(Opened { loaded, engine, tracer, load_time, interrupted, recoveries })
    }
}

/// How to go on from the prompt.
fn generate_options(args: &Args) -> Result<GenerateOptions> {
    let sampling = args.sample.sampler().and_then(|sampler| Ok((sampler, args.sample.penalties()?)));
    let (sampler, penalties) = sampling.map_err(usage)?;
    Ok(GenerateOptions {
        n_predict: args.n_predict.and_then(|n| usize::try_from(n).ok()),
        sampler,
        penalties,
        ignore_eos: args.ignore_eos,
        stop: args.stop.clone(),
        log_probs: if args.json { LogProbs::Chosen } else { LogProbs::None },
        ..GenerateOptions::default()
    })
}

/// The prompt, of the command line or of a file; none for a conversation.
fn prompt(args: &Args) -> Result<Option<String>> {
    let read = |file: &Path| match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()).context("cannot read standard input"),
        _ => std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display())),
    };
    match (&args.prompt, &args.file) {
        (Some(prompt), _) => Ok(Some(prompt.clone())),
        (None, Some(file)) => read(file).map(Some),
        (None, None) if args.json || args.trace.is_some() || args.parallel > 1 => {
            Err(usage("--json, --trace and --parallel need a prompt: give -p or -f"))
        }
        (None, None) if args.n_predict == Some(0) => Err(usage("-n 0 leaves a conversation without answers")),
        (None, None) => Ok(None),
    }
}

fn check_room(prompt: usize, n_ctx: usize) -> Result<()> {
    if prompt >= n_ctx {
        bail!("the prompt has {prompt} tokens and the context {n_ctx}: make it larger with -c, or the prompt shorter");
    }
    Ok(())
}

/// A text, when it was generated, and what the devices did meanwhile.
struct Timed {
    generation: Generation,
    start: Instant,
    trace: Trace,
}

/// From when to when the prompt was read, and the tokens behind the first came.
struct Phases {
    prompt: Range,
    decode: Range,
}

impl Timed {
    fn phases(&self) -> Phases {
        let first = self.start + self.generation.prompt_time;
        Phases { prompt: (self.start, first), decode: (first, first + self.generation.decode_time) }
    }
}

/// Generates a text, shows it as it comes, and records what the devices do.
fn generate_timed(args: &Args, opened: &mut Opened, tokens: &[u32], options: &GenerateOptions) -> Result<Timed> {
    let links = if args.trace.is_some() { Links::Sampled } else { Links::Left };
    let recording = opened.tracer.start(opened.engine.devices(), links)?;
    let start = Instant::now();
    let show = if args.json { Show::Nothing } else { Show::Text };
    let sequence = opened.engine.open()?;
    let generated = opened.generate(sequence, tokens, options, show);
    let trace = recording.finish();
    Ok(Timed { generation: generated?, start, trace })
}

/// What standard output shows of a text while it is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Text,
    /// That nobody reads it any more is noticed.
    Nothing,
}

/// Generates a text behind what a sequence has until its end, an interrupt, or the end of standard output, which is an error.
pub(crate) fn generate_shown(
    engine: &mut PlacedModel,
    sequence: Sequence,
    loaded: &Model,
    tokens: &[u32],
    options: &GenerateOptions,
    show: Show,
    interrupted: &AtomicBool,
) -> Result<Generation> {
    let mut shown = Ok(());
    let mut on_text = |text: &str| {
        shown = match show {
            Show::Text => output::out(text),
            Show::Nothing => output::check(),
        };
        if shown.is_err() || interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let generated = generate(engine, sequence, loaded.tokenizer(), tokens, options, &mut on_text);
    shown?;
    Ok(generated?)
}

/// Writes what the devices did to the file of `--trace`.
fn write_trace(trace: &Trace, path: &Path, phases: &Phases) -> Result<()> {
    for error in &trace.errors {
        output::errln(format_args!("warning: not in the trace: {}", output::one_line(error)))?;
    }
    let (prompt, decode) = (phases.prompt, phases.decode);
    trace.write(path, &[("prompt", prompt.0, prompt.1), ("decode", decode.0, decode.1)])
}

/// Tokens of the prompt.
fn encode(args: &Args, loaded: &Model, prompt: &str) -> Result<Vec<u32>> {
    let text = if args.chat {
        let template = ChatTemplate::from_gguf(loaded.inner().gguf(), loaded.tokenizer())?;
        let system = args.system.iter().map(|s| Message::new("system", s.as_str()));
        let messages: Vec<Message> = system.chain([Message::new("user", prompt)]).collect();
        template.render(&messages, GenerationPrompt::Add, SystemTime::now())?
    } else {
        prompt.to_owned()
    };
    Ok(loaded.encode(&text)?)
}

/// Why a text ended, in JSON; the names are fixed.
fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos => "eos",
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::Cancelled => "cancelled",
    }
}

/// What `--json` prints; the names are fixed.
#[derive(Serialize)]
pub(crate) struct Report {
    text: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    finish: &'static str,
    timings: Timings,
    /// Where the time of a token behind the first went; empty where that is not known.
    pub(crate) token_times: Vec<TokenTime>,
    devices: Vec<DeviceReport>,
    net: Net,
    /// What the run has lost, and gone on without.
    recoveries: Vec<Recovered>,
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prompt_ms: f64,
    prompt_tps: f64,
    decode_ms: f64,
    decode_tps: f64,
}

impl Report {
    pub(crate) fn new(prompt: &[u32], g: Generation, load: Duration, engine: &PlacedModel) -> Report {
        let decoded = g.tokens.len().saturating_sub(1);
        Report {
            prompt_tokens: prompt.to_vec(),
            timings: Timings {
                load_ms: print::ms(load),
                prompt_ms: print::ms(g.prompt_time),
                prompt_tps: print::per_second(prompt.len(), g.prompt_time),
                decode_ms: print::ms(g.decode_time),
                decode_tps: print::per_second(decoded, g.decode_time),
            },
            token_times: Vec::new(),
            devices: model::device_reports(engine),
            net: devices::net(engine.devices()),
            recoveries: Vec::new(),
            finish: finish_name(g.finish),
            text: g.text,
            tokens: g.tokens,
            log_probs: g.log_probs,
        }
    }

    /// Tokens behind the first.
    fn decoded(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    /// The lines behind a text.
    pub(crate) fn timings(&self) -> String {
        let t = &self.timings;
        let (prompt, decoded) = (self.prompt_tokens.len(), self.decoded());
        let per_token = if decoded > 0 { t.decode_ms / decoded as f64 } else { 0.0 };
        let mut out = format!("\nload    {:>9.1} ms\n", t.load_ms);
        out += &format!("prompt  {:>9.1} ms  {prompt:>5} tokens  {:>8.1} t/s\n", t.prompt_ms, t.prompt_tps);
        out += &format!(
            "decode  {:>9.1} ms  {decoded:>5} tokens  {:>8.1} t/s  {per_token:.2} ms per token\n",
            t.decode_ms, t.decode_tps
        );
        if !self.token_times.is_empty() {
            out += &time_lines(&self.token_times).lines().map(|l| format!("token   {l}\n")).collect::<String>();
        }
        out += &self.net.line();
        if self.finish == "context" {
            out += "the context is full; -c makes it larger\n";
        }
        out
    }
}
