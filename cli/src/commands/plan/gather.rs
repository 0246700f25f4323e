//! The report of what was measured, and of what is predicted from it.

use super::Setup;
use super::measured::{Measurements, Times};
use super::predict::{Computed, Latencies, Member, Outlook, Present, Speed, with_head};
use super::report::{self, Change, CopyRow, DeviceRow, ModelRow, Report};
use crate::devices;
use crate::measure::median;
use crate::model::Layers;
use anyhow::Result;
use outboard::Model;
use outboard_core::Device;
use outboard_llm::{DeviceLoad, Parts, PlacedModel, Route};
use outboard_output as output;
use outboard_rpc_client::{PeerPath, RemoteDevice};

/// Everything that there is to say.
pub(super) fn gather(
    loaded: &Model,
    engine: &mut PlacedModel,
    setup: Setup,
    measured: &Measurements,
) -> Result<Report> {
    let times = measured.times(engine);
    let present = present(engine, &setup, measured, &times);
    let Measurements { decode, prompt, head_ms } = measured;
    Ok(Report {
        model: ModelRow::of(loaded),
        n_ctx: setup.options.n_ctx,
        n_ctx_train: loaded.inner().hparams().n_ctx_train,
        fits: true,
        devices: device_rows(engine.loads(), &setup, &present, &times),
        token_ms: present.token_ms,
        decode_tps: decode.sample.tps(),
        decode_tokens: decode.test.tokens(),
        decode_repetitions: decode.repetitions,
        head_ms: *head_ms,
        prompt_ms: present.prompt_ms,
        prompt_tps: prompt.sample.tps(),
        prompt_tokens: present.prompt_tokens,
        prompt_repetitions: prompt.repetitions,
        copies: copies(engine)?,
        changes: changes(&present),
        net: devices::net(engine.devices()),
        notes: notes(loaded, &setup, measured, &times),
        servers: setup.servers,
    })
}

/// The devices as they are, for predictions.
fn present(engine: &PlacedModel, setup: &Setup, measured: &Measurements, times: &Times) -> Present {
    let Measurements { decode, prompt, head_ms } = measured;
    let route = engine.route().clone();
    let parts = measured_parts(&setup.parts, &route, times, *head_ms);
    let mut members = setup.members.clone();
    keep_free_for_results(&mut members, engine.loads());
    let prompt_tokens = prompt.test.tokens();
    for (d, member) in members.iter_mut().enumerate() {
        member.speed = times.of(d).and_then(|(token, prompt)| {
            let (token_ms, prompt_ms) = (token.compute_ms, prompt.compute_ms);
            let computed = Computed { token_ms, prompt_ms, prompt_tokens };
            Speed::measured(&parts, &route, d, computed)
        });
    }
    let gaps = decode.trace.gaps(decode.sample.range, decode.test.tokens());
    let rtts: Vec<f64> = setup.servers.iter().map(|s| s.rtt_ms).collect();
    let one_way = (!rtts.is_empty()).then(|| median(&rtts) / 2.0);
    Present {
        latencies: Latencies::measured(&members, &route, &gaps, one_way),
        parts,
        members,
        route,
        single: setup.single,
        scattered: setup.scattered,
        n_ubatch: setup.options.n_ubatch.min(setup.options.n_ctx),
        prompt_tokens,
        token_ms: decode.sample.ms_per_token(),
        prompt_ms: prompt.ms(),
    }
}

/// The parts with a head that weighs what was measured of it.
fn measured_parts(parts: &Parts, route: &Route, times: &Times, head_ms: Option<f64>) -> Parts {
    let last = times.token.as_ref().and_then(|token| token.get(route.last()));
    match last.zip(head_ms) {
        Some((last, head_ms)) => with_head(parts, route, last.compute_ms, last.compute_ms - head_ms),
        None => parts.clone(),
    }
}

/// Takes the memory for results away from what devices have for weights and cache: another division of the layers needs as much of it,
/// wherever it is.
fn keep_free_for_results(members: &mut [Member], loads: &[DeviceLoad]) {
    let results = loads.iter().map(|l| l.compute_bytes).max().unwrap_or(0);
    let pools: Vec<String> = members.iter().map(|m| m.pool.clone()).collect();
    for member in members {
        let sharing = pools.iter().filter(|pool| **pool == member.pool).count() as u64;
        member.capacity = member.capacity.saturating_sub(results.saturating_mul(sharing));
    }
}

fn device_rows(loads: &[DeviceLoad], setup: &Setup, present: &Present, times: &Times) -> Vec<DeviceRow> {
    let row = |(d, load): (usize, &DeviceLoad)| {
        let (before, member) = (setup.members.get(d), present.members.get(d));
        let layer_ms = member.and_then(|m| m.speed).filter(|_| !setup.scattered).map(|s| s.layer_ms(&present.parts));
        DeviceRow {
            id: load.id.clone(),
            host: before.map(|m| m.host.clone()).unwrap_or_default(),
            layers: Layers::new(&load.layers),
            weight_bytes: load.weight_bytes,
            cache_bytes: load.cache_bytes,
            compute_bytes: load.compute_bytes,
            free_bytes: before.map_or(0, |m| m.capacity),
            times: times.of(d).map(|(token, prompt)| report::Times {
                compute_ms: token.compute_ms,
                wire_ms: token.wire_ms,
                waiting_ms: token.waiting_ms,
                layer_ms,
                prompt_compute_ms: prompt.compute_ms,
                prompt_busy: prompt.compute_ms / present.prompt_ms.max(1e-9),
            }),
        }
    };
    loads.iter().enumerate().map(row).collect()
}

/// What the figures leave out.
fn notes(loaded: &Model, setup: &Setup, measured: &Measurements, times: &Times) -> Vec<String> {
    let mut notes = Vec::new();
    if !times.are_known() {
        let why = measured.decode.trace.errors.iter().chain(&measured.prompt.trace.errors).next();
        notes.push(why.map_or_else(
            || "what the devices did was not recorded as a whole: where the time went is not known".to_owned(),
            |e| format!("where the time went is not known: {}", output::one_line(e)),
        ));
    }
    if loaded.inner().hparams().n_expert > 0 && !setup.servers.is_empty() {
        notes.push(
            "without their values the weights choose the same experts for every token: prompts may be slower".into(),
        );
    }
    notes
}

/// What goes from device to device for a token.
fn copies(engine: &mut PlacedModel) -> Result<Vec<CopyRow>> {
    let copies = engine.step_copies()?;
    let devices = engine.devices();
    let row = |c: outboard_llm::StepCopy| {
        let (from, to) = (devices.get(c.from)?, devices.get(c.to)?);
        let (direct, path) = path_between(from.as_ref(), to.as_ref());
        let (from, to) = (from.info().id.clone(), to.info().id.clone());
        Some(CopyRow { what: c.what, bytes: c.bytes, from, to, once: c.once, direct, path })
    };
    Ok(copies.into_iter().filter_map(row).collect())
}

/// How bytes get from one device to another, and whether that is without this process.
fn path_between(from: &dyn Device, to: &dyn Device) -> (bool, String) {
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
                .map(|(id, layers)| report::Placed { id, layers: Layers::new(&layers) })
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
