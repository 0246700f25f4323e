//! `outboard plan`: where each millisecond of a token goes, device by device, and what other hosts would change.
//!
//! The model is placed as `run` places it, and measured with weights that have no values: kernels take as long, and nothing is
//! sent. What other hosts would change is predicted from that ([`predict`]).

mod picture;
mod predict;
mod report;
mod shortage;

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs, SplitMode};
use crate::devices::{self, DeviceSet};
use crate::measure::{Sample, Side, Test, median, progress};
use crate::model::{self, Layers, Loaded};
use crate::print;
use crate::trace::{TokenTime, Trace, Tracer};
use anyhow::{Result, bail};
use outboard_core::Device;
use outboard_llm::{Engine, LoadOptions, Parts, attention_cost};
use outboard_output as output;
use outboard_rpc_client::{PeerPath, RemoteDevice};
use picture::{Picture, Timeline};
use predict::{Computed, Member, Outlook, Present, Speed, Ways, with_head};
use report::{Change, CopyRow, DeviceRow, ModelRow, Report, ServerRow, Times};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens that are decoded: enough for a mean, and few enough for a large model on a slow host.
const DECODE: usize = 32;
/// Tokens of the prompt, if the context has room for them.
const PROMPT: usize = 512;
/// Repetitions, of which the one with the median time counts.
const REPETITIONS: usize = 5;
/// No further repetition begins after this long.
const ENOUGH: Duration = Duration::from_secs(15);
/// Tokens that go through the layers alone, in each repetition.
const ALONE: usize = 8;
/// Round trips to each server, of which the median counts.
const ROUND_TRIPS: usize = 21;
/// Longest wait for one of them.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Write a picture of it to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let picture = args.svg.as_deref().map(Picture::create).transpose()?;
    let loaded = model::open(&args.model.model)?;
    let set = devices::open(&args.devices)?;
    let options = LoadOptions { blank: true, ..model::load_options(&args.model, &loaded.model, &set)? };
    if options.n_ctx < Test::Decode(1).ctx() {
        bail!("a context of {} tokens is too small to measure anything: make it larger with -c", options.n_ctx);
    }
    let setup = Setup {
        parts: Parts::new(&loaded.model, options.n_ctx, attention_cost(&set.devices))?,
        members: members(&set, &options)?,
        servers: servers(&set)?,
        single: args.model.split_mode == SplitMode::None,
        scattered: !args.model.override_tensor.is_empty(),
        options,
    };
    let n_ctx = setup.options.n_ctx;
    if !args.json {
        output::outln(format_args!("model: {}", model::describe(&loaded)))?;
    }
    let tracer = Tracer::new(&set.host);
    let mut engine = match model::load(&loaded, set, &setup.options) {
        Ok(engine) => engine,
        Err(e) => {
            if setup.members.iter().any(|m| m.share > 0.0) && shortage::is_shortage(&e) {
                shortage::tell(args.json, &loaded, &setup.parts, &setup.members, &e)?;
            }
            return Err(e);
        }
    };
    if !args.json {
        output::out(model::plan_table(&engine))?;
    }
    engine.set_watch(print::stalls());
    let mut side = Side::new(engine);
    let decode = Measured::take(&mut side, &tracer, &loaded, Test::Decode(DECODE.min(n_ctx - 2)))?;
    let prompt = Measured::take(&mut side, &tracer, &loaded, Test::Prompt(PROMPT.min(n_ctx)))?;
    let head_ms = head_ms(&mut side, &tracer, &loaded, &decode)?;
    progress("")?;
    let report = gather(&loaded, &mut side.engine, setup, [&decode, &prompt], head_ms)?;
    if args.json {
        print_json(&report)?;
    } else {
        output::out(report.text())?;
    }
    if let Some(picture) = picture {
        picture.write(&report, timeline(&side.engine, &decode).as_ref())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is known before anything is measured.
struct Setup {
    options: LoadOptions,
    parts: Parts,
    members: Vec<Member>,
    servers: Vec<ServerRow>,
    /// Everything is meant to be on one device.
    single: bool,
    /// Some weights were placed by name.
    scattered: bool,
}

/// The devices as predictions see them; what they had to compute is not known yet.
fn members(set: &DeviceSet, options: &LoadOptions) -> Result<Vec<Member>> {
    let free = devices::free(&set.devices)?;
    let member = |(d, (device, capacity)): (usize, (&Arc<dyn Device>, u64))| {
        let info = device.info();
        Member {
            id: info.id.clone(),
            host: host(device.as_ref()),
            pool: info.pool(),
            capacity,
            costs: info.costs,
            share: options.split.get(d).copied().unwrap_or(0.0),
            speed: None,
        }
    };
    Ok(set.devices.iter().zip(free).enumerate().map(member).collect())
}

/// The server of a device, or a local device itself.
fn host(device: &dyn Device) -> String {
    RemoteDevice::of(device).map_or_else(|| device.info().id.clone(), |remote| remote.endpoint().to_string())
}

/// How far the servers are.
fn servers(set: &DeviceSet) -> Result<Vec<ServerRow>> {
    let mut rows = Vec::new();
    for device in devices::one_of_each_server(&set.devices) {
        let Some(remote) = RemoteDevice::of(device.as_ref()) else { continue };
        let queue = device.queue()?;
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            queue.finish(DEADLINE)?;
            times.push(print::ms(start.elapsed()));
        }
        let (endpoint, carrier) = (remote.endpoint().to_string(), remote.carrier().name());
        rows.push(ServerRow { endpoint, carrier, rtt_ms: median(&times) });
    }
    Ok(rows)
}

/// The repetition of a test whose time is the median.
struct Measured {
    test: Test,
    sample: Sample,
    trace: Trace,
    repetitions: usize,
}

impl Measured {
    fn take(side: &mut Side, tracer: &Tracer, loaded: &Loaded, test: Test) -> Result<Measured> {
        progress(&format!("{}: warm-up", test.name()))?;
        side.run(loaded, test.warm_up(), 0)?;
        let start = Instant::now();
        let mut taken = Vec::new();
        while taken.is_empty() || taken.len() < REPETITIONS && start.elapsed() < ENOUGH {
            progress(&format!("{}: {} of {REPETITIONS}", test.name(), taken.len() + 1))?;
            taken.push(side.traced(tracer, loaded, test, taken.len() as u64)?);
        }
        taken.sort_by(|(a, _), (b, _)| a.ms_per_token().total_cmp(&b.ms_per_token()));
        let repetitions = taken.len();
        let (sample, trace) = taken.swap_remove(repetitions / 2);
        Ok(Measured { test, sample, trace, repetitions })
    }

    /// The time of the test, in milliseconds.
    fn ms(&self) -> f64 {
        self.sample.ms_per_token() * self.sample.tokens as f64
    }

    /// What each of these devices did, each time divided by `n`; `None` if that is not known.
    fn times(&self, engine: &Engine, n: usize) -> Option<Vec<TokenTime>> {
        let times = self.trace.token_times(self.sample.range, n)?;
        let wire_ms = times.first()?.wire_ms;
        let whole = self.ms() / n.max(1) as f64;
        let of = |id: &String| {
            let idle = || TokenTime { device: id.clone(), compute_ms: 0.0, wire_ms, waiting_ms: whole - wire_ms };
            times.iter().find(|t| t.device == *id).cloned().unwrap_or_else(idle)
        };
        Some(engine.loads().iter().map(|load| of(&load.id)).collect())
    }
}

/// What the head takes of a token, on the device with the end of the model, in milliseconds: the difference to tokens that go through
/// the layers alone. `None` if that is not known.
fn head_ms(side: &mut Side, tracer: &Tracer, loaded: &Loaded, decode: &Measured) -> Result<Option<f64>> {
    progress("head")?;
    let n = ALONE.min(side.engine.n_ctx());
    let load = side.engine.homes().last().and_then(|&d| side.engine.loads().get(d));
    let Some(last) = load.map(|l| l.id.clone()) else { return Ok(None) };
    let of = |times: &[TokenTime]| times.iter().find(|t| t.device == last).map(|t| t.compute_ms);
    // Warm-up: the graph is not there yet.
    side.layers_alone(tracer, loaded, n)?;
    let mut alone = Vec::new();
    for _ in 0..decode.repetitions {
        alone.extend(side.layers_alone(tracer, loaded, n)?.as_deref().and_then(of));
    }
    let whole = decode.times(&side.engine, decode.test.tokens()).as_deref().and_then(of);
    Ok(whole.filter(|_| !alone.is_empty()).map(|whole| (whole - median(&alone)).max(0.0)))
}

/// Everything that there is to say.
fn gather(
    loaded: &Loaded,
    engine: &mut Engine,
    setup: Setup,
    [decode, prompt]: [&Measured; 2],
    head_ms: Option<f64>,
) -> Result<Report> {
    let Setup { options, mut parts, mut members, servers, single, scattered } = setup;
    let homes = engine.homes().to_vec();
    let (token_times, prompt_times) = (decode.times(engine, decode.test.tokens()), prompt.times(engine, 1));
    let times = token_times.as_ref().zip(prompt_times.as_ref());
    let last = homes.last().and_then(|&d| token_times.as_ref()?.get(d));
    if let (Some(last), Some(head_ms)) = (last, head_ms) {
        parts = with_head(&parts, &homes, last.compute_ms, last.compute_ms - head_ms);
    }
    let free: Vec<u64> = members.iter().map(|m| m.capacity).collect();
    // Another division of the layers needs as much memory for results, wherever it is.
    let results = engine.loads().iter().map(|l| l.compute_bytes).max().unwrap_or(0);
    let pools: Vec<String> = members.iter().map(|m| m.pool.clone()).collect();
    for (d, member) in members.iter_mut().enumerate() {
        let sharing = pools.iter().filter(|pool| **pool == member.pool).count() as u64;
        member.capacity = member.capacity.saturating_sub(results.saturating_mul(sharing));
        member.speed = times.and_then(|(token, whole)| {
            let (token_ms, prompt_ms) = (token.get(d)?.compute_ms, whole.get(d)?.compute_ms);
            let computed = Computed { token_ms, prompt_ms, prompt_tokens: prompt.test.tokens() };
            Speed::measured(&parts, &homes, d, computed)
        });
    }
    let mut devices = Vec::new();
    for (d, load) in engine.loads().iter().enumerate() {
        let member = members.get(d);
        let known = times.and_then(|(token, whole)| {
            let (token, whole) = (token.get(d)?, whole.get(d)?);
            Some(Times {
                compute_ms: token.compute_ms,
                wire_ms: token.wire_ms,
                waiting_ms: token.waiting_ms,
                layer_ms: member.and_then(|m| m.speed).filter(|_| !scattered).map(|s| s.layer_ms(&parts)),
                prompt_compute_ms: whole.compute_ms,
                prompt_busy: whole.compute_ms / prompt.ms().max(1e-9),
            })
        });
        devices.push(DeviceRow {
            id: load.id.clone(),
            host: member.map(|m| m.host.clone()).unwrap_or_default(),
            layers: Layers::new(&load.layers),
            weight_bytes: load.weight_bytes,
            cache_bytes: load.cache_bytes,
            compute_bytes: load.compute_bytes,
            free_bytes: free.get(d).copied().unwrap_or(0),
            times: known,
        });
    }
    let gaps = decode.trace.gaps(decode.sample.range, decode.test.tokens());
    let rtts: Vec<f64> = servers.iter().map(|s| s.rtt_ms).collect();
    let one_way = (!rtts.is_empty()).then(|| median(&rtts) / 2.0);
    let present = Present {
        ways: Ways::measured(&members, &homes, &gaps, one_way),
        parts,
        members,
        homes,
        single,
        scattered,
        n_ubatch: options.n_ubatch.min(options.n_ctx),
        prompt_tokens: prompt.test.tokens(),
        token_ms: decode.sample.ms_per_token(),
        prompt_ms: prompt.ms(),
    };
    let h = loaded.model.hparams();
    let mut notes = Vec::new();
    if times.is_none() {
        let why = decode.trace.errors.iter().chain(&prompt.trace.errors).next();
        notes.push(why.map_or_else(
            || "what the devices did was not recorded as a whole: where the time went is not known".to_owned(),
            |e| format!("where the time went is not known: {}", output::one_line(e)),
        ));
    }
    if h.n_expert > 0 && !servers.is_empty() {
        notes.push(
            "without their values the weights choose the same experts for every token: prompts may be slower".into(),
        );
    }
    Ok(Report {
        model: ModelRow::of(loaded),
        n_ctx: options.n_ctx,
        n_ctx_train: h.n_ctx_train,
        fits: true,
        devices,
        token_ms: present.token_ms,
        decode_tps: decode.sample.tps(),
        decode_tokens: decode.test.tokens(),
        decode_repetitions: decode.repetitions,
        head_ms,
        prompt_ms: present.prompt_ms,
        prompt_tps: prompt.sample.tps(),
        prompt_tokens: present.prompt_tokens,
        prompt_repetitions: prompt.repetitions,
        copies: copies(engine)?,
        servers,
        changes: changes(&present),
        net: devices::net(engine.devices()),
        notes,
    })
}

/// What goes from device to device for a token.
fn copies(engine: &mut Engine) -> Result<Vec<CopyRow>> {
    let copies = engine.step_copies()?;
    let devices = engine.devices();
    let row = |c: outboard_llm::StepCopy| {
        let (from, to) = (devices.get(c.from)?, devices.get(c.to)?);
        let (direct, path) = way(from.as_ref(), to.as_ref());
        let (from, to) = (from.info().id.clone(), to.info().id.clone());
        Some(CopyRow { what: c.what, bytes: c.bytes, from, to, once: c.once, direct, path })
    };
    Ok(copies.into_iter().filter_map(row).collect())
}

/// How bytes get from one device to another, and whether that is without this process.
fn way(from: &dyn Device, to: &dyn Device) -> (bool, String) {
    let path = match (RemoteDevice::of(from), RemoteDevice::of(to)) {
        (Some(from), Some(to)) => from.peer_link(to),
        (None, None) => return (true, "same host".into()),
        _ => PeerPath::Relayed("one of them is this host".into()),
    };
    (!matches!(path, PeerPath::Relayed(_)), path.to_string())
}

/// Every host away, and every host twice.
fn changes(present: &Present) -> Vec<Change> {
    let per_token = present.parts.bytes_per_token().max(1);
    let row = |change: &'static str, host: &String, outlook: Outlook| {
        let room = present.room(host);
        Change {
            change,
            host: host.clone(),
            fits: outlook.missing.is_none(),
            missing_bytes: outlook.missing.unwrap_or(0),
            room_bytes: room,
            context_tokens: room / per_token,
            devices: outlook
                .devices
                .into_iter()
                .map(|(id, layers)| report::Place { id, layers: Layers::new(&layers) })
                .collect(),
            decode_tps: outlook.token_ms.filter(|ms| *ms > 0.0).map(|ms| 1e3 / ms),
            prompt_tps: outlook.prompt_ms.filter(|ms| *ms > 0.0).map(|ms| 1e3 * present.prompt_tokens as f64 / ms),
            notes: outlook.notes,
        }
    };
    let hosts = present.hosts();
    let without = hosts.iter().map(|h| row("without", h, present.without(h)));
    without.chain(hosts.iter().map(|h| row("another", h, present.with_another(h)))).collect()
}

/// One token, as the picture shows it.
fn timeline(engine: &Engine, decode: &Measured) -> Option<Timeline> {
    let id = |d: usize| engine.loads().get(d).map(|l| l.id.as_str());
    let first = id(*engine.homes().first()?)?;
    let (range, n) = (decode.sample.range, decode.test.tokens());
    let homes = engine.homes();
    let round = homes.first() == homes.last() && homes.iter().any(|home| Some(home) != homes.first());
    let token = decode.trace.one_token(first, round, range, n)?;
    let row = |device: &str| engine.loads().iter().position(|l| l.id == device);
    let work = decode.trace.work(token).into_iter();
    let spans = work.filter_map(|(device, start, end)| Some((row(device)?, start, end))).collect();
    Some(Timeline { ms: print::ms(token.1 - token.0), spans })
}
