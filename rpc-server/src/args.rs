//! The command line of `rpc-server`, also run by other binaries that start servers.

use crate::blobs::{BlobOptions, Blobs, tighten, warn_if_open};
use crate::limits::{ClientLimits, Limits};
use crate::peer_list::PeerList;
use crate::server::{Server, ServerConfig};
use crate::trust::Trust;
use clap::{Parser, ValueEnum};
use outboard_backends::{DeviceSpec, MAX_THREADS, local_devices, use_ggml};
use outboard_core::Host;
use outboard_core::error::Bytes;
use outboard_core::{Device, Error};
use outboard_net::{ClientTls, ServerTls, TlsFiles, Tokens, warn_if_readable};
use outboard_output::{self as output, Lost};
use outboard_proto::{DEFAULT_PORT, MAX_VERSION, MIN_VERSION};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;

/// Exposes the devices of this host on one endpoint.
#[derive(Clone, Debug, Parser)]
#[command(name = "rpc-server", version, about)]
pub struct ServerArgs {
    /// Address or name to listen on
    #[arg(short = 'H', long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(short, long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// Devices to expose, such as cpu:1,cpu:1 for two CPU devices of one thread, ggml for all GPUs of an installed llama.cpp; by default all but GPUs by Vulkan, which are named: vulkan0
    #[arg(short, long, value_name = "DEV,..")]
    pub device: Option<String>,
    /// Folder of ggml's libraries, which llama.cpp installs; by default the usual places are looked at
    #[arg(long, env = "OUTBOARD_GGML", value_name = "DIR", value_parser = folder_or_nothing())]
    pub ggml: Option<PathBuf>,
    /// Threads of a CPU device that names no number; as many as there are processors by default
    #[arg(short, long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory that clients may take on this host, such as 8G; what is available by default
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_limit: Option<u64>,
    /// Keep weights that clients send on disk, so that they need not send them again; in the user's cache directory if DIR is
    /// not given
    #[arg(short, long, value_name = "DIR", num_args = 0..=1)]
    pub cache: Option<Option<PathBuf>>,
    /// Most of the disk that they take, such as 20G; a fifth of it by default, and at most half of what is free. While some are
    /// being received, these take up to half as much beside it
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "cache")]
    pub cache_limit: Option<u64>,
    /// GGUF files of this host, whose weights clients need not send either
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Certificate of this server, with those between it and its CA (PEM); turns TLS 1.3 on, and QUIC. `outboard cert` makes one
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Let only clients in whose certificate is from this CA (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
    /// Let only clients in that show a token of this file: a line "name token" for each, read again when the file changes; with
    /// --client-ca, they need both
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CA of the other servers that tensors are sent to (PEM): that of --client-ca if not given, or else those of the system
    #[arg(long, value_name = "FILE")]
    pub peer_ca: Option<PathBuf>,
    /// Other servers that this one may connect to, to send tensors to them: host names, IP addresses, or blocks of them such as
    /// 10.0.0.0/24; may be given several times. Any server that a client names, if not given; none, for an empty list
    #[arg(long, value_name = "HOST|CIDR,..", value_delimiter = ',')]
    pub peers: Option<Vec<String>>,
    /// Listen on an address that others can reach, without encryption or without knowing who they are
    #[arg(long)]
    pub insecure: bool,
    /// Most memory that one client may take on each device, all of its sessions together, such as 4G; all that there is by default.
    /// A client is a name of --client-ca or --token-file, or else an address
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub client_memory: Option<u64>,
    /// Serve /metrics for Prometheus, /healthz and /readyz over HTTP there, such as 127.0.0.1:9090; anyone who reaches it may ask
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// How long sessions may go on after SIGTERM or SIGINT, while no new ones are taken; a second signal ends them at once
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN, value_parser = clap::value_parser!(u64).range(..=MAX_DRAIN))]
    pub drain_timeout: u64,
    /// Form of the log, which goes to stderr
    #[arg(long, value_enum, default_value_t)]
    pub log: LogFormat,
    /// Print the devices and exit
    #[arg(long)]
    pub list_devices: bool,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// How long sessions may go on when the server is to stop, in seconds: less than service managers wait before they kill.
const DRAIN: u64 = 10;
/// The longest that can be asked for, in seconds: a day.
const MAX_DRAIN: u64 = 24 * 3600;
/// How often a server that drains looks whether sessions are left.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Exit status for bad usage.
const USAGE: u8 = 2;

/// Runs a server until SIGTERM or SIGINT. Exit status: 0 stopped in order, 1 it did not work or a line of its log was lost, 2 bad usage.
/// A log that cannot be written does not end the server: its clients have nothing to do with that.
pub fn main_with(args: ServerArgs) -> ExitCode {
    start_log(args.log);
    match run(&args) {
        Ok(()) => output::finish(ExitCode::SUCCESS),
        Err(Failure::Failed(error)) => output::fail(error, ExitCode::FAILURE),
        Err(Failure::Usage(error)) => output::fail(error, ExitCode::from(USAGE)),
        Err(Failure::Output(lost)) => output::fail_without(&lost),
    }
}

/// Why a server does not run.
#[derive(Debug)]
enum Failure {
    /// It does not work.
    Failed(Error),
    /// It was started with wrong arguments.
    Usage(Error),
    /// Nobody learns that it runs.
    Output(Lost),
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Failure {
        Failure::Output(lost)
    }
}

fn failed(error: Error) -> Failure {
    Failure::Failed(error)
}

fn run(args: &ServerArgs) -> Result<(), Failure> {
    let addr = address(&args.host, args.port).map_err(Failure::Usage)?;
    let metrics = args.metrics.as_deref().map(metrics_address).transpose().map_err(Failure::Usage)?;
    let trust = if args.list_devices { Trust::default() } else { trust(args, addr)? };
    if let Err(e) = crate::descriptors::raise_limit() {
        tracing::warn!("the limit of file descriptors cannot be raised, so that there may be fewer connections: {e}");
    }
    let devices = open_devices(args)?;
    let list = describe(&devices).map_err(failed)?;
    if args.list_devices {
        output::out(list)?;
        if args.device.is_none()
            && let Some(others) = DeviceSpec::used_when_named()
        {
            output::errln(format_args!("used when named (-d): {others}"))?;
        }
        return Ok(());
    }
    // Before there are clients, whose work would be in the way.
    for device in &devices {
        if let Some(speed) = device.speed() {
            let (bandwidth, gflops) = (Bytes(speed.bandwidth as u64), speed.flops / 1e9);
            tracing::debug!("{}: reads weights at {bandwidth}/s, computes {gflops:.0} GFLOP/s", device.info().name);
        }
    }
    // Before the port is known to anyone, so that a signal always ends the server in order.
    let (stop, stopped) = channel();
    let handler = move || {
        let _ = stop.send(());
    };
    ctrlc::set_handler(handler).map_err(|e| failed(Error::Request(format!("signals cannot be handled: {e}"))))?;
    let blobs = open_blobs(args).map_err(failed)?;
    let cache = match blobs.as_ref().and_then(Blobs::cache) {
        Some((dir, limit)) => format!("{} (at most {})", dir.display(), Bytes(limit)),
        None => "none".to_owned(),
    };
    let client = ClientLimits { memory: args.client_memory, ..ClientLimits::default() };
    let limits = Limits { client, ..Limits::default() };
    let config = ServerConfig { addr, devices, limits, trust: trust.clone() };
    let mut server = Server::start_with(config, blobs).map_err(failed)?;
    let metrics = metrics.map(|addr| server.serve_metrics(addr)).transpose().map_err(failed)?;
    let metrics = metrics.map_or("none".to_owned(), |addr| format!("http://{addr}/metrics"));
    let addr = server.local_addr();
    let limit = args.memory_limit.map_or("what is available".to_owned(), |n| Bytes(n).to_string());
    output::out(format_args!(
        "Starting RPC server v{}\n  endpoint       : {addr}\n  protocol       : {MIN_VERSION} to {MAX_VERSION}\n  \
         memory limit   : {limit}\n  local cache    : {cache}\n  trust          : {}\n  peers          : {}\n  metrics        : {metrics}\nDevices:\n{list}listening on {addr}\n",
        env!("CARGO_PKG_VERSION"),
        describe_trust(&trust),
        trust.may_dial
    ))?;
    tracing::info!(%addr, "listening");
    // An error means that the handler is gone, which lives as long as the process.
    let _ = stopped.recv();
    drain(&server, Duration::from_secs(args.drain_timeout), &stopped);
    tracing::info!("stopping");
    server.stop();
    Ok(())
}

/// Lets sessions come to their end, for so long, or until the next signal.
fn drain(server: &Server, limit: Duration, signals: &Receiver<()>) {
    server.drain();
    let end = Instant::now() + limit;
    let sessions = server.sessions();
    if sessions > 0 {
        tracing::info!(sessions, "draining: no new sessions, at most {} s; a second signal ends it", limit.as_secs());
    }
    while server.sessions() > 0 && Instant::now() < end {
        if signals.recv_timeout(DRAIN_LOOK).is_ok() {
            return tracing::info!("a second signal");
        }
    }
    let left = server.sessions();
    if left > 0 {
        tracing::warn!(sessions = left, "sessions are ended that are left after {} s", limit.as_secs());
    }
}

/// The address of `--metrics`: a host and a port.
fn metrics_address(text: &str) -> outboard_core::Result<SocketAddr> {
    let fail = |why: String| {
        Error::Request(format!("--metrics {text}: {why}; give a host and a port, such as 127.0.0.1:9090"))
    };
    let mut found = text.to_socket_addrs().map_err(|e| fail(e.to_string()))?;
    found.next().ok_or_else(|| fail("it has no address".into()))
}

fn open_devices(args: &ServerArgs) -> Result<Vec<Arc<dyn Device>>, Failure> {
    if args.threads.is_some_and(|n| n == 0 || n > MAX_THREADS) {
        return Err(Failure::Usage(Error::Request(format!("--threads must be 1 to {MAX_THREADS}"))));
    }
    if let Some(folder) = &args.ggml {
        use_ggml(folder);
    }
    let specs = match &args.device {
        Some(list) => DeviceSpec::parse_list(list).map_err(|e| Failure::Usage(Error::Request(e)))?,
        None => DeviceSpec::defaults(),
    };
    local_devices(&Host::new(), &specs, args.threads, args.memory_limit).map_err(failed)
}

/// Where this server has weights, if anywhere.
fn open_blobs(args: &ServerArgs) -> outboard_core::Result<Option<Blobs>> {
    if args.cache.is_none() && args.models.is_none() {
        return Ok(None);
    }
    let user = outboard_system::cache_dir();
    let cache = match &args.cache {
        Some(Some(dir)) => Some(dir.clone()),
        Some(None) => Some(user.as_ref().map(|dir| dir.join("blobs")).ok_or_else(|| {
            Error::Request("-c: this user has no home directory for a cache: name a directory".to_owned())
        })?),
        None => None,
    };
    let digests = user.map(|dir| dir.join("digests"));
    // What is of this program's own is closed to others; about a directory of the user's choice they are told.
    let own = [cache.as_ref().filter(|_| args.cache == Some(None)), digests.as_ref()];
    own.into_iter().flatten().for_each(|dir| tighten(dir));
    let (models, named) = (args.models.clone(), cache.clone());
    let blobs = Blobs::open(&BlobOptions { cache, cache_limit: args.cache_limit, models, digests })?;
    if let Some(line) = named.and_then(|dir| warn_if_open(&dir)) {
        tracing::warn!("{line}");
    }
    Ok(Some(blobs))
}

/// One line per device, as llama.cpp's server prints them.
fn describe(devices: &[Arc<dyn Device>]) -> outboard_core::Result<String> {
    let mut text = String::new();
    for device in devices {
        let (info, memory) = (device.info(), device.memory()?);
        let mib = |bytes: u64| bytes >> 20;
        let (total, free) = (mib(memory.total), mib(memory.free));
        text += &format!("  {}: {} ({total} MiB, {free} MiB free)\n", info.name, info.description);
    }
    Ok(text)
}

/// The address to listen on; a name may stand for several, of which the first counts.
fn address(host: &str, port: u16) -> outboard_core::Result<SocketAddr> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let fail = |why: String| Error::Request(format!("--host {host}: {why}"));
    let mut found = (bare, port).to_socket_addrs().map_err(|e| fail(e.to_string()))?;
    found.next().ok_or_else(|| fail("it has no address".into()))
}

/// Reads what protects the server, and makes sure that it is enough for the address.
fn trust(args: &ServerArgs, addr: SocketAddr) -> Result<Trust, Failure> {
    let ip = addr.ip();
    let refused = |why: &str, instead: &str| {
        Err(Failure::Usage(Error::Request(format!("refusing to listen on {ip}: {why}. {instead}"))))
    };
    let encrypted = args.tls_cert.is_some();
    let knows_clients = args.client_ca.is_some() || args.token_file.is_some();
    if !ip.is_loopback() {
        // Not even with --insecure: who makes tokens believes that they keep others out.
        if args.token_file.is_some() && !encrypted {
            return refused(
                "tokens would travel unencrypted, for everyone on the way to read",
                "Give --tls-cert and --tls-key as well (outboard cert DIR makes them)",
            );
        }
        match (encrypted, knows_clients, args.insecure) {
            (true, true, _) => {}
            (false, _, false) => {
                return refused(
                    "anyone who reaches it could use this host's devices and memory, and read what others compute",
                    "Give --tls-cert, --tls-key, and --client-ca or --token-file (outboard cert DIR makes certificates), listen on \
                     127.0.0.1 (and reach it through an SSH tunnel), or give --insecure if the network is yours alone",
                );
            }
            (true, false, false) => {
                return refused(
                    "it would be encrypted, but anyone who reaches it could use this host's devices and memory",
                    "Give --client-ca or --token-file to know your clients, or --insecure if the network is yours alone",
                );
            }
            (encrypted, _, true) => warn_insecure(addr, encrypted)?,
        }
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(ServerTls::load(cert, key, args.client_ca.as_deref()).map_err(failed)?),
        _ => None,
    };
    let tokens = args.token_file.as_deref().map(Tokens::load).transpose().map_err(failed)?.map(Arc::new);
    for line in [&args.tls_key, &args.token_file].into_iter().flatten().filter_map(|path| warn_if_readable(path)) {
        tracing::warn!("{line}");
    }
    let ca = args.peer_ca.clone().or_else(|| args.client_ca.clone());
    let peers = TlsFiles { ca, cert: args.tls_cert.clone(), key: args.tls_key.clone() };
    let may_dial = args.peers.as_ref().map(|list| PeerList::parse(list.iter().map(String::as_str))).transpose();
    let may_dial = may_dial.map_err(Failure::Usage)?.unwrap_or_default();
    Ok(Trust { tls, tokens, peers: ClientTls::for_peers(peers).map_err(failed)?, may_dial })
}

fn describe_trust(trust: &Trust) -> String {
    let tokens = trust.tokens.as_ref().map(|tokens| format!("tokens ({})", tokens.len()));
    let certificates = trust.tls.as_ref().filter(|tls| tls.asks_clients()).map(|_| "client certificates".to_owned());
    let clients: Vec<String> = certificates.into_iter().chain(tokens).collect();
    let clients = if clients.is_empty() { "any client".to_owned() } else { clients.join(" and ") };
    match trust.tls {
        Some(_) => format!("TLS 1.3 (grpcs://, quic://), {clients}"),
        None => format!("not encrypted, {clients}"),
    }
}

fn warn_insecure(addr: SocketAddr, encrypted: bool) -> Result<(), Lost> {
    let line = "!".repeat(78);
    let lacks = if encrypted { "There is no authentication." } else { "There is no encryption and no authentication." };
    output::errln(format_args!(
        "{line}\nWARNING: --insecure: {} is open to everyone who can reach it.\n{lacks} Never do this on an open network!\n{line}",
        addr.ip()
    ))
}

/// A folder that an environment variable may name: one that is empty names none, and is no error.
pub fn folder_or_nothing() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::TypedValueParser::map(clap::builder::OsStringValueParser::new(), PathBuf::from)
}

/// Parses `8G`, `512 MiB`, `100000`. Units are powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unit {unit} is not one of K, M, G, T")),
    };
    let number: u64 = number.parse().map_err(|_| "it does not start with a whole number".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "it is too large".to_owned())
}

/// Log to stderr; `RUST_LOG` chooses what.
fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let log = log.with_writer(|| output::Log).with_ansi(output::err_is_terminal()).log_internal_errors(false);
    // It fails only if there is a log already.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [("100", 100), ("8G", 8 << 30), ("512 MiB", 512 << 20), ("1kb", 1024), ("2T", 2 << 40)] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in ["", "G", "1X", "-1", "1.5G", "99999999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(address("127.0.0.1", 5).unwrap().to_string(), "127.0.0.1:5");
        assert_eq!(address("[::1]", 5).unwrap().to_string(), "[::1]:5");
        assert!(address("localhost", 5).unwrap().ip().is_loopback());
        assert!(!address("0.0.0.0", 5).unwrap().ip().is_loopback());
    }

    #[test]
    fn what_others_can_reach_needs_encryption_and_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let tokens = file("tokens", "me 0123456789abcdef0123\n");
        let pem = file("pem", "no certificate");
        // `None`: good. Otherwise a part of the error; that of the certificate shows that the rule was passed.
        let tls = ["--tls-cert", &pem, "--tls-key", &pem];
        fn with<'a>(tls: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
            [tls, more].concat()
        }
        let bad_pem = Some("no certificate (BEGIN");
        for (host, flags, expected) in [
            ("127.0.0.1", vec![], None),
            ("::1", vec!["--token-file", &tokens], None),
            ("0.0.0.0", vec![], Some("refusing to listen on 0.0.0.0")),
            ("::", vec!["--token-file", &tokens], Some("tokens would travel unencrypted")),
            ("10.0.0.1", vec!["--token-file", &tokens, "--insecure"], Some("tokens would travel unencrypted")),
            ("10.0.0.1", vec!["--insecure"], None),
            ("10.0.0.1", with(&tls, &[]), Some("Give --client-ca or --token-file")),
            ("10.0.0.1", with(&tls, &["--token-file", &tokens]), bad_pem),
            ("10.0.0.1", with(&tls, &["--client-ca", &pem]), bad_pem),
            ("10.0.0.1", with(&tls, &["--insecure"]), bad_pem),
            ("127.0.0.1", with(&tls, &[]), bad_pem),
            ("127.0.0.1", vec!["--token-file", "/no/such/file"], Some("--token-file /no/such/file")),
        ] {
            let args = ServerArgs::parse_from(["rpc-server", "-H", host].into_iter().chain(flags.iter().copied()));
            let result = trust(&args, address(host, 1).unwrap()).map(drop).map_err(|e| format!("{e:?}"));
            match expected {
                None => assert_eq!(result, Ok(()), "{host} {flags:?}"),
                Some(part) => assert!(result.as_ref().is_err_and(|e| e.contains(part)), "{host} {flags:?}: {result:?}"),
            }
        }
    }

    #[test]
    fn only_flags_that_work_are_offered() {
        use clap::CommandFactory;
        ServerArgs::command().debug_assert();
        let args =
            ServerArgs::parse_from(["rpc-server", "-H", "::1", "-p", "0", "-d", "cpu:1,cpu:1", "--memory-limit", "8G"]);
        assert_eq!((args.host.as_str(), args.port, args.memory_limit), ("::1", 0, Some(8 << 30)));
        let cache = |args: &[&str]| ServerArgs::try_parse_from([&["rpc-server"], args].concat()).map(|a| a.cache).ok();
        assert_eq!(cache(&[]), Some(None));
        assert_eq!(cache(&["-c", "-p", "0"]), Some(Some(None)));
        assert_eq!(cache(&["-c", "dir", "--cache-limit", "1G"]), Some(Some(Some("dir".into()))));
        assert_eq!(cache(&["--cache-limit", "1G"]), None);
        let peers = |args: &[&str]| {
            let args = ServerArgs::parse_from([&["rpc-server"], args].concat());
            trust(&args, address("127.0.0.1", 1).unwrap())
                .map(|trust| trust.may_dial.to_string())
                .map_err(|e| matches!(e, Failure::Usage(_)))
        };
        assert_eq!(peers(&[]).unwrap(), "any server");
        assert_eq!(peers(&["--peers", ""]).unwrap(), "none");
        assert_eq!(peers(&["--peers", "gpu1,10.0.0.0/8", "--peers", "::1"]).unwrap(), "gpu1, 10.0.0.0/8, ::1/128");
        assert!(peers(&["--peers", "gpu1:50052"]).unwrap_err());
        for half in [["--tls-cert", "f"], ["--tls-key", "f"], ["--client-ca", "f"]] {
            assert!(ServerArgs::try_parse_from(["rpc-server"].into_iter().chain(half)).is_err(), "{half:?}");
        }
    }
}
