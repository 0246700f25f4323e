//! `/cluster`: what is where and how it does, for the page and `outboard top`.

use super::common::{FINGERPRINT, json_response};
use super::status::{model_of, slots_of};
use crate::error::Result;
use crate::service::Service;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use outboard::cluster::{DeviceState, Loss, Reach, ServerState, TokenTime};
use outboard::{Cluster, NetStats, Stall};
use serde_json::{Value, json};
use std::time::{Duration, UNIX_EPOCH};

pub(crate) async fn cluster(State(service): State<Service>, RawQuery(query): RawQuery) -> Result<Response> {
    let service = service.of_name(model_of(query.as_deref()).as_deref())?;
    let models: Vec<&str> = service.models().iter().map(|model| model.name()).collect();
    let cluster = service.engine().runner.cluster();
    Ok(json_response(&json!({
        "build_info": FINGERPRINT, "draining": service.is_draining(), "model": model(&service), "models": models,
        "tokens": cluster.tokens, "tokens_per_second": cluster.tokens_per_second.map(|rate| rounded(rate, 10.0)),
        "token_ms": cluster.token_time.map(ms), "waiting": service.engine().queue.waiting(),
        "slots": slots_of(&service), "hosts": hosts(&cluster),
        "losses": cluster.losses.iter().map(loss).collect::<Vec<_>>(), "stall": cluster.stall.as_ref().map(stall),
    })))
}

fn model(service: &Service) -> Value {
    let (model, plan) = (service.model(), service.engine().runner.plan());
    let hparams = model.inner().hparams();
    json!({
        "id": service.name(), "name": model.name(), "architecture": hparams.arch, "layers": hparams.n_layer,
        "size": model.inner().gguf().file_bytes(), "n_ctx": plan.context, "cache_tokens": plan.cache_tokens,
    })
}

/// This host, if it has devices of the model, and the servers; each with its devices.
fn hosts(cluster: &Cluster) -> Vec<Value> {
    let of = |server: Option<usize>| -> Vec<Value> {
        cluster.devices.iter().filter(|device| device.server == server).map(device).collect()
    };
    let here = of(None);
    let here = (!here.is_empty()).then(|| json!({"endpoint": null, "state": "here", "devices": here}));
    let servers = cluster.servers.iter().enumerate().map(|(place, server)| host(server, &of(Some(place))));
    here.into_iter().chain(servers).collect()
}

fn host(server: &ServerState, devices: &[Value]) -> Value {
    let (state, detail) = match &server.reach {
        None => ("unknown", None),
        Some(Reach::Answers) => ("answers", None),
        Some(Reach::Silent(time)) => ("silent", Some(format!("no answer for {} s", time.as_secs()))),
        Some(Reach::Lost(why)) => ("lost", Some(why.clone())),
    };
    json!({
        "endpoint": server.endpoint, "state": state, "detail": detail, "round_trip_ms": server.round_trip.map(ms),
        "bytes": bytes(server.bytes), "bytes_per_second": server.bytes_per_second.map(bytes), "devices": devices,
    })
}

fn bytes(of: NetStats) -> Value {
    json!({"sent": of.sent_bytes, "received": of.recv_bytes, "to_servers": of.peer_bytes})
}

fn device(device: &DeviceState) -> Value {
    let info = &device.info;
    let holds = device.load.as_ref().map(|load| {
        json!({
            "layers": load.layers, "weight_bytes": load.weight_bytes, "cache_bytes": load.cache_bytes,
            "compute_bytes": load.compute_bytes,
        })
    });
    let memory = device.memory.map(|memory| json!({"total": memory.total, "free": memory.free}));
    json!({
        "id": info.id, "name": info.name, "kind": info.kind.name(), "backend": info.backend, "description": info.description,
        "memory_pool": info.memory_pool, "holds": holds, "memory": memory, "token": device.token.map(token),
    })
}

fn token(time: TokenTime) -> Value {
    json!({"compute_ms": ms(time.compute), "wire_ms": ms(time.wire), "waiting_ms": ms(time.waiting)})
}

fn loss(loss: &Loss) -> Value {
    let at = loss.at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    json!({"at": at, "what": loss.what, "stood_still_ms": ms(loss.took)})
}

fn stall(stall: &Stall) -> Value {
    json!({"who": stall.who, "doing": stall.doing, "seconds": stall.after.as_secs()})
}

/// Milliseconds, to a microsecond.
fn ms(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3, 1e3)
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}
