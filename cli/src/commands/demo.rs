//! `outboard demo`: a model over four devices of two servers, from nothing.

use super::print_json;
use super::run::{Report, Show, generate_shown};
use crate::args::{CacheType, DeviceArgs, ModelArgs, RpcList, SplitMode};
use crate::trust::TrustArgs;
use crate::{devices, fetch, interrupt, model};
use anyhow::{Context, Result, anyhow, bail};
use outboard_llm::tokenizer::{Bos, SpecialText};
use outboard_llm::{GenerateOptions, Prefixes};
use outboard_output as output;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const PROMPT: &str = "Once upon a time, in a small village by the sea,";
const TOKENS: usize = 96;
/// A server that does not listen after this long will not.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A server that has not ended after this long is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let path = fetch::fetch("smollm2")?;
    let interrupted = watch_ctrl_c()?;
    output::errln("starting two servers with two CPU devices each")?;
    let servers = [Server::start()?, Server::start()?];
    let device_args = device_args(&servers)?;
    for server in &servers {
        output::errln(format_args!("  rpc-server, process {}, {}", server.child.id(), server.addr))?;
    }
    let loaded = model::open(&path.to_string_lossy())?;
    let tokens = loaded.tokenizer().encode(PROMPT, SpecialText::Parse, Bos::Add)?;
    let set = devices::open(&device_args)?;
    let options = model::load_options(&model_args(), &loaded, &set)?;
    output::errln(format_args!("model: {}", model::describe(&loaded)))?;
    let start = Instant::now();
    let mut engine = model::load(&loaded, &set, &options)?;
    let load_time = start.elapsed();
    output::errln(model::plan_table(&engine))?;
    let show = if args.json { Show::Nothing } else { Show::Text };
    if show == Show::Text {
        output::out(PROMPT)?;
    }
    let options = GenerateOptions { n_predict: Some(TOKENS), log_probs: args.json, ..GenerateOptions::default() };
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
    for server in servers {
        server.stop()?;
    }
    output::errln(
        "both servers have stopped; to do the same over your own hosts: rpc-server there, outboard run --rpc here",
    )?;
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

/// How the model is put on them.
fn model_args() -> ModelArgs {
    ModelArgs {
        model: String::new(),
        ctx: Some(1024),
        batch_size: 512,
        ubatch_size: None,
        split_mode: SplitMode::Layer,
        tensor_split: None,
        override_tensor: Vec::new(),
        cache_type_k: CacheType::F16,
        cache_type_v: CacheType::F16,
        n_seqs: 1,
        prefixes: Prefixes::Apart,
        mmap: false,
        no_mmap: false,
    }
}

/// A server that this process has started, and that ends with it.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start() -> Result<Server> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args(["rpc-server", "--end-with-stdin", "-p", "0", "-d", "cpu:1,cpu:1"])
            .env_remove("OUTBOARD_RPC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What is not as it should be, and nothing else.
            .env("RUST_LOG", "off")
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start a server")?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("a server without output"))?;
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            // Reads on to the end, so that the server never waits for this pipe.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(addr) = line.strip_prefix("listening on ") {
                    let _ = tx.send(addr.trim().to_owned());
                }
            }
        });
        let mut server = Server { child, addr: String::new() };
        match rx.recv_timeout(START_LIMIT) {
            Ok(addr) => server.addr = addr,
            Err(RecvTimeoutError::Timeout) => {
                bail!("a server did not start to listen within {} s", START_LIMIT.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("a server ended before it listened"),
        }
        Ok(server)
    }

    /// Ends it and waits for its end, but not for long.
    fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let end = Instant::now() + STOP_LIMIT;
        while self.child.try_wait().context("waiting for a server")?.is_none() {
            if Instant::now() >= end {
                bail!("a server did not end within {} s", STOP_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
