//! `outboard plan`: where each millisecond of a token goes, device by device, and what other hosts would change.
//!
//! The model is placed as `run` places it, and measured with weights that have no values ([`measured`]): kernels take as long, and
//! nothing is sent. What other hosts would change is predicted from that ([`predict`]).

mod gather;
mod measured;
mod picture;
mod predict;
mod report;
mod shortage;

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs, SplitMode};
use crate::devices;
use crate::measure::{Side, Test, round_trip};
use crate::model;
use crate::print;
use crate::trace::Tracer;
use anyhow::{Result, bail};
use gather::gather;
use measured::Measurements;
use outboard::{Devices, Model};
use outboard_core::Device;
use outboard_llm::{LoadOptions, Parts, PlacedModel};
use outboard_output as output;
use outboard_rpc_client::RemoteDevice;
use picture::Picture;
use predict::Member;
use report::ServerRow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the answer of a server.
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
    let loaded = model::open(args.model.only()?)?;
    let set = devices::open(&args.devices)?;
    let setup = Setup::new(args, &loaded, &set)?;
    if !args.json {
        output::outln(format_args!("model: {}", model::describe(&loaded)))?;
    }
    let tracer = Tracer::new(set.host());
    let mut engine = load(args, &loaded, &set, &setup)?;
    if !args.json {
        output::out(model::plan_table(&engine))?;
    }
    engine.set_watch(print::stalls());
    let mut side = Side::new(engine)?;
    let measured = Measurements::take(&mut side, &tracer, &loaded)?;
    let report = gather(&loaded, &mut side.engine, setup, &measured)?;
    if args.json {
        print_json(&report)?;
    } else {
        output::out(report.text())?;
    }
    if let Some(picture) = picture {
        picture.write(&report, measured.timeline(&side.engine).as_ref())?;
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

impl Setup {
    fn new(args: &Args, loaded: &Model, set: &Devices) -> Result<Setup> {
        let (options, parts) = model::options_and_parts(&args.model, loaded, set)?;
        if options.n_ctx < Test::Decode(1).ctx() {
            bail!("a context of {} tokens is too small to measure anything: make it larger with -c", options.n_ctx);
        }
        Ok(Setup {
            parts,
            members: members(set, &options)?,
            servers: servers(set)?,
            single: args.model.split_mode == SplitMode::None,
            scattered: !args.model.override_tensor.is_empty(),
            options: LoadOptions { blank: true, ..options },
        })
    }
}

/// Puts the model on the devices. If they have too little memory, says what is missing.
fn load(args: &Args, loaded: &Model, set: &Devices, setup: &Setup) -> Result<PlacedModel> {
    let engine = model::load(loaded, set, &setup.options);
    if let Err(e) = &engine
        && setup.members.iter().any(|m| m.share > 0.0)
        && shortage::is_shortage(e)
    {
        shortage::tell(args.json, loaded, &setup.parts, &setup.members, e)?;
    }
    engine
}

/// The devices as predictions see them; what they had to compute is not known yet.
fn members(set: &Devices, options: &LoadOptions) -> Result<Vec<Member>> {
    let free = devices::free(set.list())?;
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
    Ok(set.list().iter().zip(free).enumerate().map(member).collect())
}

/// The server of a device, or a local device itself.
fn host(device: &dyn Device) -> String {
    RemoteDevice::of(device).map_or_else(|| device.info().id.clone(), |remote| remote.endpoint().to_string())
}

/// How far the servers are.
fn servers(set: &Devices) -> Result<Vec<ServerRow>> {
    let mut rows = Vec::new();
    for device in outboard::devices::one_of_each_server(set.list()) {
        let Some(remote) = RemoteDevice::of(device.as_ref()) else { continue };
        let queue = device.queue()?;
        let rtt_ms = print::ms(round_trip(|| queue.finish(DEADLINE))?);
        rows.push(ServerRow { endpoint: remote.endpoint().to_string(), carrier: remote.carrier().name(), rtt_ms });
    }
    Ok(rows)
}
