//! What there is, and how it does: `/health`, `/metrics`, `/v1/models`, `/props`, `/slots`.

use super::common::{FINGERPRINT, json_response};
use crate::engine::Slot;
use crate::error::{ApiError, Result};
use crate::service::Service;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) async fn health(State(service): State<Service>) -> Result<Response> {
    service.check_not_draining()?;
    if let Some(dead) = service.models().iter().find(|model| !model.engine.runner.is_running()) {
        let message = format!("what generates the texts of '{}' has ended; start the server again", dead.name());
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    Ok(json_response(&json!({"status": "ok"})))
}

pub(crate) async fn metrics(State(service): State<Service>) -> Result<Response> {
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written");
    let text = service.metrics().render(service.models().iter().map(|model| &*model.engine)).map_err(failed)?;
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

pub(crate) async fn models(State(service): State<Service>) -> Response {
    let models = service.models();
    let all = models.iter().map(|model| described(&service.with(model.clone()), model.name()));
    let [first, last] = [models.first(), models.last()].map(|model| model.map(|model| model.name()));
    // Anthropic's clients ask for pages.
    json_response(&json!({
        "object": "list", "data": all.collect::<Vec<_>>(), "has_more": false, "first_id": first, "last_id": last,
    }))
}

pub(crate) async fn model(
    State(service): State<Service>,
    name: std::result::Result<Path<String>, PathRejection>,
) -> Result<Response> {
    let Path(name) = name.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.body_text()))?;
    Ok(json_response(&described(&service.of_name(Some(&name))?, &name)))
}

fn described(service: &Service, name: &str) -> Value {
    let (model, plan) = (service.model(), service.engine().runner.plan());
    json!({
        "id": name, "object": "model", "created": service.since(), "owned_by": "outboard",
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active",
        "max_input_tokens": plan.context, "max_tokens": plan.context,
        "aliases": service.names(),
        "meta": {
            "name": model.name(), "architecture": model.inner().hparams().arch, "n_vocab": model.tokenizer().n_vocab(),
            "n_ctx": plan.context, "n_ctx_train": model.trained_context(), "size": model.inner().gguf().file_bytes(),
        },
    })
}

pub(crate) async fn props(State(service): State<Service>, RawQuery(query): RawQuery) -> Result<Response> {
    let service = service.of_name(model_of(query.as_deref()).as_deref())?;
    let (model, plan) = (service.model(), service.engine().runner.plan());
    let text = |id: Option<u32>| {
        let bytes = id.and_then(|id| model.tokenizer().token_text(id)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let device =
        |load: &outboard::DeviceLoad| json!({"id": load.id, "layers": load.layers, "weight_bytes": load.weight_bytes});
    let devices: Vec<Value> = plan.devices.iter().map(device).collect();
    Ok(json_response(&json!({
        "model": service.name(), "total_slots": plan.sequences, "n_ctx": plan.context, "cache_tokens": plan.cache_tokens,
        "chat_template": model.inner().gguf().str("tokenizer.chat_template"),
        "bos_token": text(model.tokenizer().bos()), "eos_token": text(model.tokenizer().eos()),
        "default_generation_settings": {
            "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "repeat_last_n": 64,
            "presence_penalty": 0.0, "frequency_penalty": 0.0,
        },
        "modalities": {"vision": false, "audio": false},
        "devices": devices, "build_info": FINGERPRINT,
    })))
}

/// What is in each place for a text; what it says is nobody else's business.
pub(crate) async fn slots(State(service): State<Service>, RawQuery(query): RawQuery) -> Result<Response> {
    if let Some(name) = model_of(query.as_deref()) {
        return Ok(json_response(&slots_of(&service.of_name(Some(&name))?).into()));
    }
    let mut all: Vec<Value> =
        service.models().iter().flat_map(|model| slots_of(&service.with(model.clone()))).collect();
    all.iter_mut().enumerate().for_each(|(id, slot)| slot["id"] = id.into());
    Ok(json_response(&all.into()))
}

/// The model that a query names.
pub(crate) fn model_of(query: Option<&str>) -> Option<String> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .find(|(name, _)| name == "model")
        .map(|(_, value)| value.into_owned())
}

pub(crate) fn slots_of(service: &Service) -> Vec<Value> {
    let (model, n_ctx) = (service.name(), service.engine().runner.plan().context);
    let slot = |(id, slot): (usize, Option<Arc<Slot>>)| match slot {
        None => json!({"id": id, "model": model, "n_ctx": n_ctx, "is_processing": false}),
        Some(slot) => json!({
            "id": id, "model": model, "n_ctx": n_ctx, "is_processing": true, "prompt_tokens": slot.prompt,
            "tokens": slot.tokens.load(Ordering::Relaxed), "seconds": slot.since.elapsed().as_secs_f64(),
        }),
    };
    service.engine().slots().into_iter().enumerate().map(slot).collect()
}
