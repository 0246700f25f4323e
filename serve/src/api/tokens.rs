//! `/tokenize` and `/detokenize`, as llama-server has them.

use super::common::{ids, token};
use crate::body;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::limits::{PIECES, TOKENS};
use crate::service::Service;
use axum::extract::{Request, State};
use axum::response::Response;
use outboard::llm::tokenizer::{Bos, SpecialText, SpecialTokens};
use outboard::{Error, Model};
use serde_json::{Value, json};

pub(crate) async fn tokenize(State(service): State<Service>, request: Request) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
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
        Ok(json!({"content": content}).to_string())
    };
    let answer = service.work(&room, work).await?;
    json_answer(answer, service.rooms().enter(room.client().clone()))
}
