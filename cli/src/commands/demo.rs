//! `outboard demo`: a model over four devices of two servers, from nothing.

mod page;
mod servers;

use super::print_json;
use super::run::{Report, Show, generate_shown};
use crate::args::{CacheType, DeviceArgs, ModelArgs, RpcList, Sequences, SplitMode};
use crate::trust::TrustArgs;
use crate::{devices, fetch, interrupt, model};
use anyhow::{Context, Result, anyhow};
use outboard_llm::tokenizer::{Bos, SpecialText};
use outboard_llm::{GenerateOptions, LogProbs};
use outboard_output as output;
use servers::Server;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const PROMPT: &str = "Once upon a time, in a small village by the sea,";
const TOKENS: usize = 96;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "serve")]
    json: bool,
    /// Serve the model to a browser and to programs in place of writing a text, until Ctrl-C or SIGTERM
    #[arg(long)]
    serve: bool,
    /// Port of --serve; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080, requires = "serve")]
    port: u16,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let path = fetch::fetch("smollm2")?;
    if args.serve {
        return page::serve(&path, args.port);
    }
    let interrupted = watch_ctrl_c()?;
    let servers = servers::start()?;
    let device_args = device_args(&servers)?;
    let loaded = model::open(&path.to_string_lossy())?;
    let tokens = loaded.tokenizer().encode(PROMPT, SpecialText::Parse, Bos::Add)?;
    let set = devices::open(&device_args)?;
    let options = model::load_options(&model_args(Sequences::One, 1024), &loaded, &set)?;
    output::errln(format_args!("model: {}", model::describe(&loaded)))?;
    let start = Instant::now();
    let mut engine = model::load(&loaded, &set, &options)?;
    let load_time = start.elapsed();
    output::errln(model::plan_table(&engine))?;
    let show = if args.json { Show::Nothing } else { Show::Text };
    if show == Show::Text {
        output::out(PROMPT)?;
    }
    let options = GenerateOptions {
        n_predict: Some(TOKENS),
        log_probs: if args.json { LogProbs::Chosen } else { LogProbs::None },
        ..GenerateOptions::default()
    };
    let sequence = engine.open()?;
    let generation = generate_shown(&mut engine, sequence, &loaded, &tokens, &options, show, &interrupted)?;
    let report = Report::new(&tokens, generation, load_time, &engine);
    if args.json {
        print_json(&report)?;
    } else {
        output::outln("")?;
        output::err(report.timings())?;
    }
    drop(engine);
    servers::stop(servers)?;
    Ok(interrupt::status(&interrupted))
}

/// Set by the first Ctrl-C; the second one ends this process. The servers end with this process's end of their standard input, however
/// it ends.
fn watch_ctrl_c() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(interrupted)
}

/// The devices of the servers.
fn device_args(servers: &[Server; 2]) -> Result<DeviceArgs> {
    let [a, b] = servers;
    let rpc: RpcList = format!("{},{}", a.addr, b.addr).parse().map_err(|e: String| anyhow!(e))?;
    Ok(DeviceArgs { rpc, dev: Vec::new(), threads: None, ggml: None, stall_timeout: None, trust: TrustArgs::default() })
}

/// How the model is put on them: for so many texts at a time, each with a context of so many tokens.
fn model_args(sequences: Sequences, context: u32) -> ModelArgs {
    ModelArgs {
        models: Vec::new(),
        ctx: Some(context),
        batch_size: 512,
        ubatch_size: None,
        split_mode: SplitMode::Layer,
        tensor_split: None,
        override_tensor: Vec::new(),
        cache_type_k: CacheType::F16,
        cache_type_v: CacheType::F16,
        sequences,
        mmap: false,
        no_mmap: false,
    }
}
