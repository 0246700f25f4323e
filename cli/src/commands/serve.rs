//! `outboard serve`.

use crate::args::{DeviceArgs, ModelArgs, Sequences, usage};
use crate::{devices, model, print};
use anyhow::{Context, Result, anyhow};
use outboard::{Model, Placed, Plan, Recovery, RunOptions, Runner};
use outboard_output as output;
use outboard_serve::{Beginnings, Hosts, Limits, Page, ServeOptions, ServedModel, Server, ServerTls, Service, Tokens};
use std::borrow::Cow;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Texts at a time, each with a context of -c tokens; further ones wait for their turn
    #[arg(long, alias = "np", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Names that requests may give for the model; answers have the first [default: the name of its file]. With several models: -m NAME,..=MODEL for each
    #[arg(short, long, value_name = "NAME,..", value_delimiter = ',')]
    alias: Vec<String>,
    /// Texts that may wait for their turn, half of them of one client; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65536))]
    max_waiting: u32,
    /// Address or name to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Answer only those who show a key of this file: a line "name key" for each, read again when the file changes
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let each key's texts use only what its own have left in the cache: no key can tell what others have asked
    #[arg(long, requires = "api_key_file")]
    cache_per_key: bool,
    /// Certificate of this server, with those between it and its CA (PEM); turns TLS 1.3 on. `outboard cert` makes one
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen on an address that others can reach, without encryption or without knowing who they are
    #[arg(long)]
    insecure: bool,
    /// Origins whose pages may use it from a browser, such as https://chat.lan, or * for any
    #[arg(long, value_name = "ORIGIN,..", value_delimiter = ',')]
    cors: Vec<String>,
    /// Names of this host that requests may say, beside its addresses and private ones: of a proxy in front of it, or of a host for containers. With keys any may be said
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    allow_host: Vec<String>,
    /// No page at /: nothing but what programs ask for
    #[arg(long)]
    no_page: bool,
    /// Write a line to the log for each request and each text: who, what, how many tokens, how long; never a text
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// How long texts may go on after SIGTERM or SIGINT, while no new ones are taken; a second signal ends them at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86400))]
    drain_timeout: u64,
    /// End texts with an error when a server is lost, in place of going on without it
    #[arg(long)]
    no_failover: bool,
}

/// Descriptors that are wanted: two for each connection, and some for servers and files.
const DESCRIPTORS: u64 = 4096;
/// Where the devices that are left have no room for the model, a lost server may take so long to come back.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether texts are left.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let addr = address(&args.host, args.port)?;
    check_trust(args, addr)?;
    let (keys, tls) = (keys(args)?, tls(args)?);
    if let Err(e) = rlimit::increase_nofile_limit(DESCRIPTORS) {
        warn(format_args!(
            "the limit of file descriptors cannot be raised, so that there may be fewer connections: {e}"
        ))?;
    }
    let trust = describe_trust(keys.as_deref(), tls.is_some());
    let options = serve_options(args, addr, keys);
    // What can be wrong with them is said before weights are read and sent.
    options.check().map_err(|wrong| usage(format_args!("--cors: {wrong}")))?;
    check_free(addr)?;
    let models = models(args)?;
    let (names, places) = (describe_names(&models), describe_places(&models));
    let service = Service::of_models(models, options).map_err(usage)?;
    let (stop, stopped) = channel();
    let handler = move || {
        let _ = stop.send(());
    };
    ctrlc::set_handler(handler).context("cannot watch for signals")?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let server = Server::start(service, addr, tls)?;
    let addr = server.local_addr();
    let page = if args.no_page { String::new() } else { format!("  page           : {scheme}://{addr}/\n") };
    output::out(format_args!(
        "Serving {names}\n{page}  endpoint       : {scheme}://{addr}/v1\n  texts at a time: {places}, {} more may wait, half of them of one client\n  trust          : {trust}\n\
         listening on {addr}\n",
        args.max_waiting,
    ))?;
    // An error means that the handler is gone, which lives as long as the process.
    let _ = stopped.recv();
    drain(&server, Duration::from_secs(args.drain_timeout), &stopped)?;
    server.stop();
    Ok(ExitCode::SUCCESS)
}

/// Puts the models on their devices, one after another: each has what the others leave free.
fn models(args: &Args) -> Result<Vec<ServedModel>> {
    let given: Vec<(Vec<String>, &str)> = args.model.models.iter().map(|given| with_names(given)).collect();
    if given.len() > 1 && !args.alias.is_empty() {
        return Err(usage("--alias names one model; with several, say what each is called: -m NAME,..=MODEL"));
    }
    let mut names: Vec<Cow<'_, str>> = given.iter().flat_map(|(names, model)| told(names, model)).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(usage(format_args!(
            "two models are called \"{}\": give each a name of its own, -m NAME=MODEL",
            twice[0]
        )));
    }
    // A file that is not there is told of before another one is read.
    let opened =
        given.into_iter().map(|(names, model)| Ok((names, model::open(model)?))).collect::<Result<Vec<_>>>()?;
    let placed = |(mut names, model): (Vec<String>, Model)| {
        names.extend(args.alias.iter().cloned());
        Ok(ServedModel { runner: runner(args, &model)?, names })
    };
    opened.into_iter().map(placed).collect()
}

/// What a model is called: without a name of its own, as its file.
fn told<'a>(names: &'a [String], model: &'a str) -> Vec<Cow<'a, str>> {
    if !names.is_empty() {
        return names.iter().map(|name| name.as_str().into()).collect();
    }
    let file = Path::new(model).file_name().unwrap_or_default().to_string_lossy();
    match file.strip_suffix(".gguf") {
        Some(stem) => vec![stem.to_owned().into()],
        None => vec![file],
    }
}

/// The names that stand before a model: `NAME,..=MODEL`. A path with `=` in it is one without.
fn with_names(given: &str) -> (Vec<String>, &str) {
    match given.split_once('=') {
        Some((names, model)) if !names.is_empty() && !names.contains(['/', '\\']) && !Path::new(given).exists() => {
            (names.split(',').map(|name| name.trim().to_owned()).collect(), model)
        }
        _ => (Vec::new(), given),
    }
}

fn describe_names(models: &[ServedModel]) -> String {
    models.iter().map(|model| model.runner.model().name()).collect::<Vec<_>>().join(" and ")
}

fn describe_places(models: &[ServedModel]) -> String {
    let of = |plan: &Plan| format!("{} of {} tokens", plan.sequences, plan.context);
    models.iter().map(|model| of(model.runner.plan())).collect::<Vec<_>>().join(" and ")
}

/// Puts a model on its devices, and starts the thread that generates texts. Each opens the devices, and connects to the servers, for itself: what becomes of
/// one, the others do not see.
fn runner(args: &Args, loaded: &Model) -> Result<Runner> {
    let set = devices::open(&args.devices)?;
    let sequences = Sequences::Served(args.parallel as usize);
    let model_args = ModelArgs { sequences, ..args.model.clone() };
    let options = model::load_options(&model_args, loaded, &set)?;
    output::errln(format_args!("model: {}", model::describe(loaded)))?;
    let placed = model::place(loaded, &set, &options)?;
    output::err(model::table_of(&placed.plan()))?;
    run(args, placed)
}

fn run(args: &Args, placed: Placed) -> Result<Runner> {
    let options = run_options();
    Ok(placed.run_with(if args.no_failover { options.without_failover() } else { options })?)
}

/// How texts of a service go on: over what is left when a server is lost, and all is told.
pub(crate) fn run_options() -> RunOptions {
    let recovered = |recovery: &Recovery| drop(warn(output::one_line(&recovery.to_string())));
    RunOptions::default().patience(PATIENCE).on_stall(print::stalls()).on_recovery(recovered)
}

fn warn(what: impl std::fmt::Display) -> Result<()> {
    Ok(output::errln(format_args!("warning: {what}"))?)
}

fn serve_options(args: &Args, addr: SocketAddr, keys: Option<Arc<Tokens>>) -> ServeOptions {
    let waiting = args.max_waiting as usize;
    let limits = Limits { waiting, waiting_each: waiting.div_ceil(2), ..Limits::default() };
    let hosts = match (&keys, addr.ip().is_loopback()) {
        (_, true) if args.allow_host.is_empty() => Hosts::Local,
        (Some(_), _) => Hosts::Any,
        (None, _) => Hosts::Private([std::slice::from_ref(&args.host), &args.allow_host].concat()),
    };
    let page = if args.no_page { Page::Absent } else { Page::Shown };
    let beginnings = if args.cache_per_key { Beginnings::OfEachClient } else { Beginnings::OfAll };
    let form_processes = Some(super::follow_forms::processes(args.parallel as usize));
    ServeOptions {
        limits,
        keys,
        names: Vec::new(),
        hosts,
        origins: args.cors.clone(),
        page,
        beginnings,
        form_processes,
    }
}

/// The address to listen on; a name may stand for several, of which the first counts.
fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let mut found = (bare, port).to_socket_addrs().map_err(|e| usage(format_args!("--host {host}: {e}")))?;
    found.next().ok_or_else(|| usage(format_args!("--host {host}: it has no address")))
}

/// Fails if another program listens there.
pub(super) fn check_free(addr: SocketAddr) -> Result<()> {
    match TcpListener::bind(addr) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            Err(anyhow!("another program listens on {addr}: end it, or take another port (--port; 0 picks a free one)"))
        }
        // What else is wrong is told by whoever listens in the end.
        _ => Ok(()),
    }
}

/// Whether what protects the server is enough for its address.
fn check_trust(args: &Args, addr: SocketAddr) -> Result<()> {
    let ip = addr.ip();
    if ip.is_loopback() {
        return Ok(());
    }
    let refused = |why: &str, instead: &str| Err(usage(format_args!("refusing to listen on {ip}: {why}. {instead}")));
    match (args.tls_cert.is_some(), args.api_key_file.is_some(), args.insecure) {
        (true, true, _) => Ok(()),
        // Not even with --insecure: who makes keys believes that they keep others out.
        (false, true, _) => refused(
            "keys and texts would travel unencrypted, for everyone on the way to read",
            "Give --tls-cert and --tls-key as well (outboard cert DIR makes them)",
        ),
        (false, false, false) => refused(
            "anyone who reaches it could use the model, and read what others write",
            "Give --api-key-file, --tls-cert and --tls-key (outboard cert DIR makes certificates), listen on 127.0.0.1 (and reach it \
             through an SSH tunnel or a proxy), or give --insecure if the network is yours alone",
        ),
        (true, false, false) => refused(
            "it would be encrypted, but anyone who reaches it could use the model",
            "Give --api-key-file to know your clients, or --insecure if the network is yours alone",
        ),
        (encrypted, false, true) => {
            let lacks = if encrypted { "no authentication" } else { "no encryption and no authentication" };
            let line = "!".repeat(78);
            Ok(output::errln(format_args!(
                "{line}\nWARNING: --insecure: {ip} is open to everyone who can reach it.\nThere is {lacks}. Never do this on an open network!\n{line}"
            ))?)
        }
    }
}

fn keys(args: &Args) -> Result<Option<Arc<Tokens>>> {
    let Some(path) = &args.api_key_file else { return Ok(None) };
    let keys = Tokens::load_of("--api-key-file", path).map_err(|e| anyhow!("{e}"))?;
    outboard_serve::warn_if_readable(path).map_or(Ok(()), warn)?;
    Ok(Some(Arc::new(keys)))
}

fn tls(args: &Args) -> Result<Option<ServerTls>> {
    let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let tls = ServerTls::load_http(cert, key).map_err(|e| anyhow!("{e}"))?;
    outboard_serve::warn_if_readable(key).map_or(Ok(()), warn)?;
    Ok(Some(tls))
}

fn describe_trust(keys: Option<&Tokens>, encrypted: bool) -> String {
    let clients = keys.map_or("any client".to_owned(), |keys| format!("keys ({})", keys.len()));
    format!("{}, {clients}", if encrypted { "TLS 1.3" } else { "not encrypted" })
}

/// Lets texts come to their end and to their readers, for so long, or until the next signal.
fn drain(server: &Server, limit: Duration, signals: &Receiver<()>) -> Result<()> {
    server.drain();
    let (texts, connections) = (|| server.service().texts(), || server.connections());
    if texts() > 0 {
        let seconds = limit.as_secs();
        output::errln(format_args!("draining: {} texts, at most {seconds} s; a second signal ends them", texts()))?;
    }
    let end = Instant::now() + limit;
    while texts() + connections() > 0 && Instant::now() < end {
        if signals.recv_timeout(LOOK).is_ok() {
            break;
        }
    }
    match (texts(), connections()) {
        (0, 0) => Ok(()),
        (0, left) => warn(format_args!("{left} connections are ended before all that they were to carry was taken")),
        (left, _) => warn(format_args!("{left} texts are ended before they are complete")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_model_has_names_before_it_or_none() {
        for (given, names, model) in [
            ("smollm2", vec![], "smollm2"),
            ("chat=smollm2", vec!["chat"], "smollm2"),
            ("a,b=/models/x=1.gguf", vec!["a", "b"], "/models/x=1.gguf"),
            ("/models/x=1.gguf", vec![], "/models/x=1.gguf"),
            ("=x", vec![], "=x"),
        ] {
            let (got, path) = with_names(given);
            assert_eq!((got.iter().map(String::as_str).collect::<Vec<_>>(), path), (names, model));
        }
    }

    #[test]
    fn what_others_can_reach_needs_encryption_and_keys() {
        // `None`: good. Otherwise a part of the error.
        let tls = ["--tls-cert", "f", "--tls-key", "f"];
        let keys = ["--api-key-file", "f"];
        for (host, flags, expected) in [
            ("127.0.0.1", vec![], None),
            ("[::1]", keys.to_vec(), None),
            ("0.0.0.0", vec![], Some("refusing to listen on 0.0.0.0")),
            ("::", keys.to_vec(), Some("keys and texts would travel unencrypted")),
            ("10.0.0.1", [keys.as_slice(), &["--insecure"]].concat(), Some("keys and texts would travel unencrypted")),
            ("10.0.0.1", tls.to_vec(), Some("Give --api-key-file to know your clients")),
            ("10.0.0.1", [tls.as_slice(), &["--insecure"]].concat(), None),
            ("10.0.0.1", [tls.as_slice(), &keys].concat(), None),
            ("10.0.0.1", vec!["--insecure"], None),
        ] {
            let line = ["serve", "-m", "x", "--host", host].into_iter().chain(flags.iter().copied());
            let args = Line::parse_from(line).args;
            let checked = check_trust(&args, address(host, 1).unwrap()).map_err(|e| e.to_string());
            match expected {
                None => assert_eq!(checked, Ok(()), "{host} {flags:?}"),
                Some(part) => {
                    assert!(checked.as_ref().is_err_and(|e| e.contains(part)), "{host} {flags:?}: {checked:?}")
                }
            }
        }
        for half in [["--tls-cert", "f"], ["--tls-key", "f"]] {
            assert!(Line::try_parse_from(["serve", "-m", "x"].into_iter().chain(half)).is_err());
        }
    }
}
