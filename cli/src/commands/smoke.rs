//! `outboard smoke`: does everything between here and the servers work, and how fast is it?

use super::print_json;
use crate::args::{RPC_HELP, RpcList, usage};
use crate::measure::round_trip;
use crate::print;
use crate::trust::TrustArgs;
use anyhow::{Result, bail};
use bytes::Bytes;
use outboard_backends::{DeviceSpec, local_devices, use_ggml};
use outboard_conformance::Filter;
use outboard_core::Host;
use outboard_core::error::Bytes as Size;
use outboard_core::op::{Binary, BinaryKind, MulMat, Norm, NormKind};
use outboard_core::{DType, Device, GraphBuilder, Queue, Slice, TensorId, Ticket, Usage};
use outboard_output as output;
use outboard_rpc_client::{PeerPath, RemoteDevice, connect};
use outboard_scheduler::{Hints, Scheduler, SchedulerOptions};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for one answer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of a copy whose rate is measured.
const COPY_BYTES: usize = 16 << 20;
/// Width of the graph that goes over all devices.
const WIDTH: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, help = RPC_HELP, env = "OUTBOARD_RPC", value_name = "LIST", default_value = "", hide_default_value = true)]
    rpc: RpcList,
    /// Local devices to check, too, such as vulkan0 or ggml:CPU
    #[arg(long = "dev", alias = "device", value_name = "D,D,..")]
    dev: Option<String>,
    /// Folder of ggml's libraries, for local devices of ggml's
    #[arg(long, env = "OUTBOARD_GGML", value_name = "DIR", value_parser = outboard_rpc_server::folder_or_nothing())]
    ggml: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Check {
    name: String,
    endpoint: String,
    ok: bool,
    detail: String,
}

#[derive(Serialize)]
struct LinkReport {
    from: String,
    to: String,
    rtt_us: f64,
    gbps: f64,
    /// Whether bytes go straight from one to the other, or through this process.
    direct: bool,
    /// How bytes get there: "direct", or "relayed: " and why.
    path: String,
}

#[derive(Serialize)]
struct Smoke {
    ok: bool,
    checks: Vec<Check>,
    links: Vec<LinkReport>,
}

/// One server that answered, or this host.
struct Side {
    name: String,
    devices: Vec<Arc<dyn Device>>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if args.rpc.0.is_empty() && args.dev.is_none() {
        return Err(usage("there is no server to check: give --rpc host:port,host:port, or local devices with -dev"));
    }
    let options = args.trust.options()?;
    let local = local(args)?;
    let [reference, others @ ..] = &local.devices[..] else { bail!("this host has no reference device") };
    let [cpu, ..] = others else { bail!("this host has no CPU device") };
    let mut smoke = Smoke { ok: true, checks: Vec::new(), links: Vec::new() };
    let mut sides = vec![Side { name: "local".into(), devices: others.to_vec() }];
    for endpoint in &args.rpc.0 {
        let name = endpoint.to_string();
        let connected = connect(std::slice::from_ref(endpoint), &options);
        let devices = smoke.check("connect", &name, connected.map_err(Into::into), |devices| {
            let ids: Vec<&str> = devices.iter().map(|d| d.info().name.as_str()).collect();
            let carrier = devices.iter().find_map(|d| RemoteDevice::of(d.as_ref())).map_or("?", |d| d.carrier().name());
            format!("{carrier}, {} device(s): {}", ids.len(), ids.join(", "))
        });
        sides.extend(devices.map(|devices| Side { name, devices }));
    }
    let named = local.named.iter().map(|&place| &local.devices[place]);
    for device in named.chain(sides.iter().skip(1).flat_map(|side| &side.devices)) {
        let id = &device.info().id;
        smoke.check("memory", id, device.memory().map_err(Into::into), |m| {
            format!("{} of {} free", Size(m.free), Size(m.total))
        });
        smoke.check("ops", id, ops(device.as_ref(), reference.as_ref()), Clone::clone);
    }
    for from in &sides {
        for to in sides.iter().filter(|to| to.name != from.name) {
            let link = smoke.check(&format!("copy to {}", to.name), &from.name, measure(from, to), |l| {
                format!("{:.0} us, {:.2} GB/s, {}", l.rtt_us, l.gbps, l.path)
            });
            smoke.links.extend(link);
        }
    }
    let devices: Vec<_> = sides.iter().flat_map(|s| s.devices.iter().cloned()).collect();
    // With the local CPU alone there is nothing to go over.
    if devices.len() > 1 {
        let (answered, asked) = (sides.len() - 1, args.rpc.0.len());
        let missing = if answered < asked { format!(", {answered} of {asked} servers") } else { String::new() };
        let what = format!("{} devices{missing}", devices.len());
        smoke.check("graph over all", &what, graph(&devices, cpu), Clone::clone);
    }
    if args.json {
        print_json(&smoke)?;
    } else {
        output::out(smoke.text())?;
    }
    Ok(if smoke.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Devices of this process.
struct Local {
    /// The reference, the CPU, and what else is named.
    devices: Vec<Arc<dyn Device>>,
    /// The places of what is named.
    named: Vec<usize>,
}

fn local(args: &Args) -> Result<Local> {
    if let Some(folder) = &args.ggml {
        use_ggml(folder);
    }
    let mut specs = DeviceSpec::parse_list("reference,cpu").map_err(anyhow::Error::msg)?;
    let named = args.dev.as_deref().map_or(Ok(Vec::new()), DeviceSpec::parse_list).map_err(usage)?;
    let named = DeviceSpec::add(&mut specs, named);
    Ok(Local { devices: local_devices(&Host::new(), &specs, None, None)?, named })
}

impl Smoke {
    /// Records a result; gives it on if it is good.
    fn check<T>(&mut self, name: &str, endpoint: &str, result: Result<T>, detail: impl Fn(&T) -> String) -> Option<T> {
        let text = match &result {
            Ok(value) => detail(value),
            Err(e) => output::one_line(&format!("{e:#}")),
        };
        self.ok &= result.is_ok();
        self.checks.push(Check { name: name.into(), endpoint: endpoint.into(), ok: result.is_ok(), detail: text });
        result.ok()
    }

    fn text(&self) -> String {
        let mut table = print::table(&["", "check", "of", "result"], &[]);
        for c in &self.checks {
            table.add_row([if c.ok { "ok" } else { "FAILED" }, &c.name, &c.endpoint, &c.detail]);
        }
        print::indented(&table)
    }
}

/// Every op on a device against the reference here.
fn ops(device: &dyn Device, reference: &dyn Device) -> Result<String> {
    let report = outboard_conformance::run(device, reference, &Filter::quick())?;
    let known: Vec<_> = outboard_backends::known(device.info()).differs.iter().map(|d| (d.of, d.most)).collect();
    let beyond = report.beyond(&known);
    let Some(first) = beyond.first() else {
        let worst = report.ops.values().map(|op| op.worst).fold(0.0, f64::max);
        let (ops, cases, unsupported) = (report.ops.len(), report.cases(), report.unsupported());
        let without = if unsupported > 0 { format!(", {unsupported} not supported") } else { String::new() };
        let apart = match report.failed() {
            0 => String::new(),
            n => format!(", {n} that are known to differ"),
        };
        return Ok(format!("{ops} ops, {cases} cases{without}{apart}, worst NMSE {worst:.1e}"));
    };
    bail!("{} of {} cases wrong, first {first}", beyond.len(), report.cases())
}

/// Round trip and rate of a copy between the first devices of two sides.
fn measure(from: &Side, to: &Side) -> Result<LinkReport> {
    let (Some(a), Some(b)) = (from.devices.first(), to.devices.first()) else { bail!("a server without devices") };
    let link = Link::open(a.as_ref(), b.as_ref())?;
    let pattern: Vec<u8> = (0..COPY_BYTES).map(|i| (i * 31 + i / 4096) as u8).collect();
    let pattern = Bytes::from(pattern);
    link.from_queue.write(&link.src, pattern.clone())?;
    link.from_queue.finish(DEADLINE)?;
    let path = match (RemoteDevice::of(a.as_ref()), RemoteDevice::of(b.as_ref())) {
        (Some(a), Some(b)) => a.peer_link(b),
        _ => PeerPath::Relayed("one of them is this host".into()),
    };
    let rtt = round_trip(|| link.copy(4, &path))?;
    let start = Instant::now();
    link.copy(COPY_BYTES as u64, &path)?;
    let seconds = start.elapsed().as_secs_f64();
    if link.to_queue.read(&link.dst)?.wait(DEADLINE)? != pattern {
        bail!("the bytes that arrived are not those that were sent");
    }
    Ok(LinkReport {
        from: from.name.clone(),
        to: to.name.clone(),
        rtt_us: rtt.as_secs_f64() * 1e6,
        gbps: COPY_BYTES as f64 / seconds / 1e9,
        direct: !matches!(path, PeerPath::Relayed(_)),
        path: path.to_string(),
    })
}

/// Two devices with memory for a copy from one to the other.
struct Link<'d> {
    from: &'d dyn Device,
    to: &'d dyn Device,
    from_queue: Arc<dyn Queue>,
    to_queue: Arc<dyn Queue>,
    src: Slice,
    dst: Slice,
}

impl<'d> Link<'d> {
    fn open(from: &'d dyn Device, to: &'d dyn Device) -> Result<Link<'d>> {
        let memory =
            |device: &dyn Device| -> Result<Slice> { Ok(Slice::whole(device.alloc(COPY_BYTES as u64, Usage::Any)?)) };
        let (from_queue, to_queue) = (from.queue()?, to.queue()?);
        let (src, dst) = (memory(from)?, memory(to)?);
        Ok(Link { from, to, from_queue, to_queue, src, dst })
    }

    /// Copies the first bytes, and waits until they are there.
    fn copy(&self, bytes: u64, path: &PeerPath) -> Result<()> {
        let (src, dst) = (self.src.part(0, bytes)?, self.dst.part(0, bytes)?);
        match (self.from.peer(), self.to.peer()) {
            (Some(from), Some(to)) if !matches!(path, PeerPath::Relayed(_)) => {
                let mut ticket = [0; 32];
                getrandom::fill(&mut ticket)?;
                let ticket = Ticket(ticket);
                from.offer(self.from_queue.as_ref(), ticket, &src, self.to)?;
                to.accept(self.to_queue.as_ref(), ticket, &dst)?;
            }
            _ => self.to_queue.write(&dst, self.from_queue.read(&src)?.wait(DEADLINE)?)?,
        }
        Ok(self.to_queue.finish(DEADLINE)?)
    }
}

/// A graph with a product on each device, against the same on the local CPU alone.
fn graph(devices: &[Arc<dyn Device>], cpu: &Arc<dyn Device>) -> Result<String> {
    let weights: Vec<usize> = (0..devices.len()).collect();
    let split = chain(devices, &weights)?;
    let alone = chain(std::slice::from_ref(cpu), &vec![0; devices.len()])?;
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (a, b) in split.iter().zip(&alone) {
        error += f64::from(a - b).powi(2);
        norm += f64::from(*b).powi(2);
    }
    let nmse = error / norm.max(f64::MIN_POSITIVE);
    if nmse <= 1e-6 && split.len() == alone.len() {
        Ok(format!("NMSE {nmse:.1e} against the local CPU"))
    } else {
        bail!("the result differs from the local CPU's: NMSE {nmse:.1e}")
    }
}

/// `x = norm(w x) + x` once per entry of `places`, with that w on that device.
fn chain(devices: &[Arc<dyn Device>], places: &[usize]) -> Result<Vec<f32>> {
    let mut scheduler = Scheduler::new(devices.to_vec(), SchedulerOptions { deadline: DEADLINE })?;
    let mut g = GraphBuilder::new();
    let input = g.input("x", DType::F32, &[WIDTH, 4])?;
    let mut x = input;
    let mut leaves: Vec<(TensorId, usize)> = Vec::new();
    for (i, &device) in places.iter().enumerate() {
        let w = g.weight(&format!("w{i}"), DType::F32, &[WIDTH, WIDTH])?;
        leaves.push((w, device));
        let y = g.push(MulMat, &[w, x])?;
        let y = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[y])?;
        x = g.push(Binary { kind: BinaryKind::Add }, &[y, x])?;
    }
    g.output(x);
    let graph = Arc::new(g.finish()?);
    let values = |n: usize, seed: usize| -> Bytes {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
        (0..n).flat_map(|i| value(i).to_le_bytes()).collect::<Vec<u8>>().into()
    };
    let mut bound = HashMap::new();
    for (i, &(w, device)) in leaves.iter().enumerate() {
        let bytes = values(WIDTH * WIDTH, i + 1);
        let slice = Slice::whole(devices[device].alloc(bytes.len() as u64, Usage::Weights)?);
        if let Some(queue) = scheduler.queue(device) {
            queue.write(&slice, bytes)?;
        }
        bound.insert(w, slice);
    }
    let plan = scheduler.plan(graph, &Hints { leaves: leaves.into_iter().collect(), ..Hints::default() })?;
    let program = scheduler.prepare(plan, &bound)?;
    scheduler.run(&program, &[(input, values(WIDTH * 4, 0))])?;
    let out = scheduler.read(&program, x)?.wait(DEADLINE)?;
    Ok(out.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}
