//! `outboard`: the command line. Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the work failed, 2 bad
//! usage.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod catalogue;
mod commands;
mod devices;
mod failover;
mod fetch;
mod hints;
mod interrupt;
mod measure;
mod model;
mod print;
mod trace;
mod trust;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use outboard_output as output;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

#[global_allocator]
static ALLOCATOR: outboard_system::ProgramAllocator = outboard_system::ProgramAllocator;

/// Runs a language model over the devices of several hosts, as if they were plugged into this machine.
#[derive(Parser)]
#[command(name = "outboard", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fetch a small model, start two servers here, split the model over their devices, write text
    Demo(commands::demo::Args),
    /// List the devices that a run would see
    Devices(commands::devices::Args),
    /// Run a model over local and remote devices
    #[command(after_help = args::names_behind_one_dash())]
    Run(Box<commands::run::Args>),
    /// Serve a model over local and remote devices to programs: the HTTP APIs of OpenAI and Anthropic
    #[command(after_help = args::names_behind_one_dash())]
    Serve(Box<commands::serve::Args>),
    /// Show what the devices of a service hold and do, once a second
    Top(commands::top::Args),
    /// Measure tokens per second, several sets of devices in turns if wanted
    Bench(commands::bench::Args),
    /// Measure a model on its devices without sending its weights: where a token's time goes, what other hosts would change
    Plan(commands::plan::Args),
    /// Measure how well a model foresees a text
    Perplexity(commands::perplexity::Args),
    /// Check servers: connection, memory, every op, copies, a graph over all devices
    Smoke(commands::smoke::Args),
    /// Print the logits behind each of given tokens
    Logits(commands::logits::Args),
    /// Turn text into token ids
    Tokenize(commands::tokenize::Args),
    /// Make a CA, and certificates for a server and a client
    Cert(commands::cert::Args),
    /// Fetch a model of the catalogue into the cache
    Fetch(commands::fetch::Args),
    /// For `serve`, which starts it: compile and follow forms of texts in a process of its own
    #[command(hide = true)]
    FollowForms(commands::follow_forms::Args),
    /// Expose this host's devices; the same as the program `rpc-server`
    #[command(name = "rpc-server")]
    RpcServer(commands::rpc_server::Args),
}

/// Lets warnings of the libraries be seen, or what RUST_LOG says, and with `serve -v` each request. The server has a log of its own.
fn show_warnings(command: &Command) {
    let usual = if matches!(command, Command::Serve(args) if args.verbose) { "outboard_serve=info" } else { "" };
    let shown = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| usual.to_owned());
    let shown = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).parse_lossy(shown);
    let log = tracing_subscriber::fmt().with_env_filter(shown);
    let log = log.with_writer(|| output::Log).with_ansi(output::err_is_terminal()).log_internal_errors(false);
    let log = log.with_target(false);
    // Fails only if there is one already.
    let _ = match command {
        Command::Serve(_) => log.try_init(),
        _ => log.without_time().try_init(),
    };
}

fn main() -> ExitCode {
    if let Some(code) = outboard_backends::run_if_helper() {
        return code;
    }
    let parsed = match args::absent(std::env::args_os().skip(1)) {
        Some(why) => Err(asked_command().error(ErrorKind::UnknownArgument, why)),
        None => Cli::try_parse_from(args::with_double_dashes(std::env::args_os())),
    };
    let command = match parsed {
        Ok(cli) => cli.command,
        Err(usage) => return output::fail_usage(&usage),
    };
    if !matches!(command, Command::RpcServer(_)) {
        show_warnings(&command);
    }
    let done = match command {
        Command::Demo(args) => commands::demo::main(&args),
        Command::Devices(args) => commands::devices::main(&args),
        Command::Run(args) => commands::run::main(&args),
        Command::Serve(args) => commands::serve::main(&args),
        Command::Top(args) => commands::top::main(&args),
        Command::Bench(args) => commands::bench::main(&args),
        Command::Plan(args) => commands::plan::main(&args),
        Command::Perplexity(args) => commands::perplexity::main(&args),
        Command::Smoke(args) => commands::smoke::main(&args),
        Command::Logits(args) => commands::logits::main(&args),
        Command::Tokenize(args) => commands::tokenize::main(&args),
        Command::Cert(args) => commands::cert::main(&args),
        Command::Fetch(args) => commands::fetch::main(&args),
        Command::FollowForms(args) => commands::follow_forms::main(&args),
        Command::RpcServer(args) => return commands::rpc_server::main(args),
    };
    end(done)
}

/// The command that was asked for, for its usage.
fn asked_command() -> clap::Command {
    let mut all = Cli::command();
    all.build();
    let name = std::env::args_os().nth(1).unwrap_or_default();
    all.find_subcommand(&name).cloned().unwrap_or(all)
}

/// Ends the program. By now, everything that the command had on servers is freed.
fn end(done: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match done {
        Ok(code) => return output::finish(code),
        Err(error) => error,
    };
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        return output::fail_usage(usage);
    }
    match error.downcast_ref::<output::Lost>() {
        Some(lost) => output::fail_without(lost),
        None => match hints::hint(&error) {
            Some(hint) => output::fail(format_args!("{error:#}: {hint}"), ExitCode::FAILURE),
            None => output::fail(format_args!("{error:#}"), ExitCode::FAILURE),
        },
    }
}
