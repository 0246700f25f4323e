//! `/tokenize` and `/detokenize`, as llama-server and vLLM have them, and `/tokenizer_info`, as vLLM has it.

use super::common::{ids, json_response, token};
use super::status::model_of;
use crate::body;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::limits::{PIECES, TOKENS};
use crate::params::{Params, is_nothing};
use crate::room::Room;
use crate::service::Service;
use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use outboard::llm::tokenizer::{Bos, SpecialText, SpecialTokens};
use outboard::{Error, Model};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn tokenize(State(service): State<Service>, request: Request) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    if params.seen("prompt").is_some() {
        return tokenize_as_vllm(service, params, room).await;
    }
    params.absent(
        "messages",
        "a chat has its tokens behind /v1/messages/count_tokens, which counts them",
        is_nothing,
    )?;
    let content = params.required_string("content")?;
    let bos = if params.boolean("add_special")?.unwrap_or(false) { Bos::Add } else { Bos::Omit };
    let parses = params.boolean("parse_special")?.unwrap_or(true);
    let special = if parses { SpecialText::Parse } else { SpecialText::Literal };
    let with_pieces = params.boolean("with_pieces")?.unwrap_or(false);
    params.finish()?;
    let work = move |model: &Model| {
        let tokens = model.tokenizer().encode(&content, special, bos).map_err(Error::from)?;
        let told = if with_pieces { pieces(model, &tokens)? } else { json!(tokens) };
        Ok(json!({"tokens": told}).to_string())
    };
    let answer = service.work(&room, work).await?;
    json_answer(answer, service.rooms().enter(room.client().clone()))
}

/// The same in vLLM's words.
async fn tokenize_as_vllm(service: Service, mut params: Params, room: Arc<Room>) -> Result<Response> {
    let prompt = params.required_string("prompt")?;
    let bos = if params.boolean("add_special_tokens")?.unwrap_or(true) { Bos::Add } else { Bos::Omit };
    params.absent("return_token_strs", "llama-server's 'with_pieces' has the same, of 'content'", |v| v == false)?;
    params.finish()?;
    let context = service.context();
    let work = move |model: &Model| {
        let tokens = model.tokenizer().encode(&prompt, SpecialText::Parse, bos).map_err(Error::from)?;
        Ok(json!({"count": tokens.len(), "max_model_len": context, "tokens": tokens, "token_strs": null}).to_string())
    };
    let answer = service.work(&room, work).await?;
    json_answer(answer, service.rooms().enter(room.client().clone()))
}

/// What programs need to know of a tokenizer that ask for tokens here.
pub(crate) async fn info(State(service): State<Service>, RawQuery(query): RawQuery) -> Result<Response> {
    let service = service.of_name(model_of(query.as_deref()).as_deref())?;
    let (model, tokenizer) = (service.model(), service.model().tokenizer());
    let text = |id: Option<u32>| id.map(|id| token(model, id).0);
    Ok(json_response(&json!({
        "bos_token": text(tokenizer.bos()), "eos_token": text(tokenizer.eos()), "model_max_length": service.context(),
        "chat_template": model.inner().gguf().str("tokenizer.chat_template"),
    })))
}

/// Tokens with what they stand for.
fn pieces(model: &Model, tokens: &[u32]) -> Result<Value> {
    if tokens.len() > PIECES {
        let message = format!("pieces are told of at most {PIECES} tokens, and there are {}", tokens.len());
        return Err(ApiError::of_param("with_pieces", message));
    }
    let piece = |id: &u32| {
        let (text, bytes) = token(model, *id);
        let piece: Value = String::from_utf8(bytes.clone()).map_or_else(|_| json!(bytes), |_| json!(text));
        json!({"id": id, "piece": piece})
    };
    Ok(tokens.iter().map(piece).collect::<Vec<Value>>().into())
}

pub(crate) async fn detokenize(State(service): State<Service>, request: Request) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    let list = params.required_list("tokens", TOKENS)?;
    params.finish()?;
    let work = move |model: &Model| {
        let tokens = ids(&list, "tokens", model.tokenizer().n_vocab())?;
        let content = model.tokenizer().decode(&tokens, SpecialTokens::Show);
        // The second is vLLM's name of it. It may be long: there is no tree of values with two of them.
        let content = Value::String(content).to_string();
        Ok(format!("{{\"content\":{content},\"prompt\":{content}}}"))
    };
    let answer = service.work(&room, work).await?;
    json_answer(answer, service.rooms().enter(room.client().clone()))
}
