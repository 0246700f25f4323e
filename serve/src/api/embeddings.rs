//! `/v1/embeddings`.

use super::common::ids;
use crate::body;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::limits::EMBEDDINGS;
use crate::params::{Params, kind};
use crate::queue::Client;
use crate::reading::Embedded;
use crate::service::Service;
use crate::settings::take_cache_salt;
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outboard::{Embedding, Model, Pooling, Scale};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// What is asked for.
struct Asked {
    input: Vec<Input>,
    format: Format,
    pooling: Pooling,
    scale: Scale,
    cache_salt: Option<String>,
}

enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Numbers,
    /// Of F32, little-endian.
    Base64,
}

impl Format {
    /// Bytes of a number at most, about.
    fn bytes(self) -> usize {
        match self {
            Format::Numbers => 16,
            Format::Base64 => 6,
        }
    }
}

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, params, room) = body::read(service, request).await?;
    let Asked { input, format, pooling, scale, cache_salt } = parse(&service, params)?;
    let width = service.model().inner().hparams().n_embd;
    // The answer, and the numbers that it is made of.
    let each = width.saturating_mul(format.bytes() + size_of::<f32>());
    let most = service.options().limits.bodies_each / each.max(1);
    if input.len() > most {
        let message = format!(
            "{} texts of {width} numbers each are more than an answer has room for: it has at most {most} of them",
            input.len()
        );
        return Err(ApiError::of_param("input", message));
    }
    let encode = |model: &Model, input| match input {
        Input::Text(text) => model.encode_whole(&text).map_err(|e| ApiError::from(e).about("input")),
        Input::Tokens(tokens) => Ok(tokens),
    };
    let tokens: Vec<Vec<u32>> =
        service.work(&room, move |model| input.into_iter().map(|input| encode(model, input)).collect()).await?;
    drop(room);
    let mut held = service.rooms().enter(client.clone());
    held.grow(tokens.len() * width * size_of::<f32>())?;
    let held = Arc::new(held);
    let prompt_tokens: usize = tokens.iter().map(Vec::len).sum();
    let embeddings = service.read(&client, Embedded { tokens, pooling, scale, cache_salt }).await?;
    let name = service.name().to_owned();
    let write = move |_: &Model| Ok(written(&embeddings, format, &name, prompt_tokens));
    let json = service.work(&held, write).await?;
    json_answer(json, service.rooms().enter(client))
}

fn parse(service: &Service, mut params: Params) -> Result<Asked> {
    let (model, n_vocab) = (service.model(), service.model().tokenizer().n_vocab());
    let format = match params.string("encoding_format")?.as_deref() {
        None | Some("float") => Format::Numbers,
        Some("base64") => Format::Base64,
        Some(_) => return Err(ApiError::of_param("encoding_format", "'encoding_format' must be float or base64")),
    };
    let pooling = match params.string("pooling")?.as_deref() {
        None => model.pooling(),
        Some("mean") => Pooling::Mean,
        Some("last") => Pooling::Last,
        Some(_) => return Err(ApiError::of_param("pooling", "'pooling' must be mean or last")),
    };
    // As llama-server has it: 2 is the root of the squares' sum.
    let scale = match params.integer("embd_normalize", i64::MIN..=i64::MAX)? {
        None | Some(2) => Scale::Unit,
        Some(-1) => Scale::AsItIs,
        Some(_) => return Err(ApiError::unsupported("embd_normalize", "it is 2, for vectors of length 1, or -1")),
    };
    let width = model.inner().hparams().n_embd;
    let why = format!(
        "the beginning of a vector means something only where a model was trained for it, which its file does not say; the only value is {width}"
    );
    params.absent("dimensions", &why, |value| value.as_u64() == Some(width as u64))?;
    params.without_effect(&["user"]);
    let cache_salt = take_cache_salt(&mut params)?;
    let input = inputs(params.required("input")?, n_vocab)?;
    params.finish()?;
    Ok(Asked { input, format, pooling, scale, cache_salt })
}

/// A text, several, the tokens of one, or of several.
fn inputs(value: Value, n_vocab: usize) -> Result<Vec<Input>> {
    let wrong = |at: &str, found: &str| {
        ApiError::of_param(at, format!("'{at}' must be a string, tokens, or a list of them, not {found}"))
    };
    let list = match value {
        Value::Array(list) if list.is_empty() => return Err(wrong("input", "an empty list")),
        Value::Array(list) if list.iter().all(Value::is_number) => vec![Value::Array(list)],
        Value::Array(list) if list.len() <= EMBEDDINGS => list,
        Value::Array(list) => {
            let message = format!("'input' has {} texts, and at most {EMBEDDINGS} are taken", list.len());
            return Err(ApiError::of_param("input", message));
        }
        one @ Value::String(_) => vec![one],
        other => return Err(wrong("input", kind(&other))),
    };
    let several = list.len() > 1;
    let one = |(i, value): (usize, Value)| {
        let at = if several { format!("input[{i}]") } else { "input".to_owned() };
        match value {
            Value::String(text) if text.is_empty() => Err(wrong(&at, "an empty string")),
            Value::String(text) => Ok(Input::Text(text)),
            Value::Array(list) if list.is_empty() => Err(wrong(&at, "an empty list")),
            Value::Array(list) => Ok(Input::Tokens(ids(&list, &at, n_vocab)?)),
            other => Err(wrong(&at, kind(&other))),
        }
    };
    list.into_iter().enumerate().map(one).collect()
}

/// The answer. A vector is as long as many others: it is written straight, without a tree of values.
fn written(embeddings: &[Embedding], format: Format, model: &str, tokens: usize) -> String {
    let mut out = String::from("{\"object\":\"list\",\"data\":[");
    for (index, embedding) in embeddings.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(out, "{comma}{{\"object\":\"embedding\",\"index\":{index},\"embedding\":");
        match format {
            Format::Numbers => push_numbers(&mut out, &embedding.values),
            Format::Base64 => {
                let bytes: Vec<u8> = embedding.values.iter().flat_map(|value| value.to_le_bytes()).collect();
                out.push('"');
                STANDARD.encode_string(bytes, &mut out);
                out.push('"');
            }
        }
        out.push('}');
    }
    let cached: usize = embeddings.iter().map(|embedding| embedding.cached).sum();
    let usage = json!({
        "prompt_tokens": tokens, "total_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached},
    });
    let _ = write!(out, "],\"model\":{},\"usage\":{usage}}}", json!(model));
    out
}

fn push_numbers(out: &mut String, values: &[f32]) {
    for (i, value) in values.iter().enumerate() {
        out.push(if i == 0 { '[' } else { ',' });
        // The shortest that is read as the same; all are finite.
        let _ = write!(out, "{value:?}");
    }
    out.push_str(if values.is_empty() { "[]" } else { "]" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_json_that_is_read_as_the_same_numbers() {
        let values = vec![0.1, -1.0, 3.4e-38, 1e-45, 123_456_790.0];
        let of = |format| -> Value {
            let embeddings = [Embedding { values: values.clone(), cached: 2 }, Embedding { values: vec![], cached: 1 }];
            serde_json::from_str(&written(&embeddings, format, "a \"model\"", 7)).unwrap()
        };
        let numbers = of(Format::Numbers);
        let read: Vec<f32> =
            numbers["data"][0]["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        assert_eq!((read, &numbers["data"][1]["index"]), (values.clone(), &json!(1)));
        assert_eq!((&numbers["model"], &numbers["data"][1]["embedding"]), (&json!("a \"model\""), &json!([])));
        let details = json!({"cached_tokens": 3});
        let usage = json!({"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": details});
        assert_eq!(numbers["usage"], usage);
        let base64 = of(Format::Base64);
        let bytes = STANDARD.decode(base64["data"][0]["embedding"].as_str().unwrap()).unwrap();
        let read: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(read, values);
    }

    #[test]
    fn inputs_are_texts_or_tokens_one_or_several() {
        let count = |value: Value| inputs(value, 10).map(|inputs| inputs.len());
        assert_eq!([count(json!("a")), count(json!(["a", "b"])), count(json!([1, 2]))], [Ok(1), Ok(2), Ok(1)]);
        assert_eq!([count(json!([[1, 2], [3]])), count(json!(["a", [1]]))], [Ok(2), Ok(2)]);
        let wrong =
            [json!(""), json!([]), json!([""]), json!([[]]), json!([10]), json!({}), json!([[1], 2]), json!([1.5])];
        for value in wrong {
            assert!(count(value.clone()).is_err(), "{value}");
        }
        assert!(count(json!(vec!["a"; EMBEDDINGS + 1])).is_err());
    }
}
