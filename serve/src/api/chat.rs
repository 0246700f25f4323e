//! `/v1/chat/completions`.

use super::usual::{
    Delivery, FINGERPRINT, Used, finish_reason, id, is_of_text, json_response, now, take_absent, take_delivery,
    text_of, token,
};
use crate::body;
use crate::error::{ApiError, Result};
use crate::form::{self, Wanted};
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing};
use crate::queue::Client;
use crate::service::Service;
use crate::settings::{Settings, take_bias, take_n};
use crate::stream::{self, Out, Writer, data};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use outboard::{Generation, Message, Model, Piece};
use serde_json::{Value, json};

/// What is asked for.
struct Asked {
    messages: Vec<Message>,
    settings: Settings,
    delivery: Delivery,
    form: Option<Wanted>,
}

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (params, room) = body::read(&service, request).await?;
    let Asked { messages, mut settings, delivery, form } = parse(&service, params)?;
    settings.constraint = form::compile(&service, &room, form).await?;
    let prompt = service.encode_chat(&room, messages).await?;
    drop(room);
    let answers = service.begin(&client, &[prompt], &settings)?;
    let (id, created, prompt_tokens) = (id("chatcmpl-"), now(), answers.prompt_tokens);
    let head = Head { id, created, model: service.model().clone(), name: service.name().to_owned() };
    if delivery != Delivery::Whole {
        let writer = Chunks {
            head,
            with_usage: delivery == Delivery::StreamWithUsage,
            with_log_probs: settings.log_probs,
            ends_at_eog: !settings.ignore_eos,
            texts: settings.n,
            used: Used::by(prompt_tokens),
        };
        return Ok(stream::respond(answers, writer));
    }
    let texts = answers.complete().await?;
    let mut used = Used::by(prompt_tokens);
    texts.iter().for_each(|text| used.add(text));
    let choices: Vec<Value> = texts.iter().enumerate().map(|(i, text)| choice(&head, &settings, i, text)).collect();
    let mut body = head.object("chat.completion", choices.into());
    body["usage"] = used.openai();
    Ok(json_response(&body))
}

fn parse(service: &Service, mut params: Params) -> Result<Asked> {
    service.check_model(params.string("model")?.as_deref())?;
    let mut settings = Settings::take(&mut params, &["max_tokens", "max_completion_tokens"], "stop", 1)?;
    settings.n = take_n(&mut params)?;
    settings.bias = take_bias(&mut params, service.model().tokenizer().n_vocab())?;
    settings.log_probs = params.boolean("logprobs")?.unwrap_or(false);
    let delivery = take_delivery(&mut params)?;
    let form = form::take(&mut params)?;
    take_absent(&mut params)?;
    let list = params.required_list("messages", MESSAGES)?;
    params.finish()?;
    Ok(Asked { messages: messages(list)?, settings, delivery, form })
}

/// The messages of a chat.
fn messages(list: Vec<Value>) -> Result<Vec<Message>> {
    if list.is_empty() {
        return Err(ApiError::of_param("messages", "'messages' must have one message at least"));
    }
    list.into_iter().enumerate().map(|(i, value)| message(Params::of(value, &format!("messages[{i}]"))?)).collect()
}

fn message(mut params: Params) -> Result<Message> {
    let role = params.string("role")?.unwrap_or_default();
    let role = match role.as_str() {
        "system" | "user" | "assistant" => role,
        // What it is called for models that templates do not know of.
        "developer" => "system".to_owned(),
        "tool" | "function" => return Err(ApiError::unsupported(params.name("role"), "calls of tools are not parsed")),
        _ => {
            let name = params.name("role");
            return Err(ApiError::of_param(
                name.clone(),
                format!("'{name}' must be system, developer, user or assistant"),
            ));
        }
    };
    for name in ["tool_calls", "function_call", "tool_call_id", "audio", "refusal", "name", "annotations"] {
        params.absent(name, "templates get the role and the text of a message", is_nothing)?;
    }
    let (at, content) = (params.name("content"), params.required("content")?);
    params.finish()?;
    Ok(Message::new(role, text_of(content, &at, &["text"])?))
}

/// What all parts of an answer begin with.
struct Head {
    id: String,
    created: u64,
    model: Model,
    name: String,
}

impl Head {
    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.name,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }

    fn log_prob(&self, id: u32, log_prob: f32) -> Value {
        let (text, bytes) = token(&self.model, id);
        json!({"token": text, "logprob": log_prob, "bytes": bytes, "top_logprobs": []})
    }
}

fn choice(head: &Head, settings: &Settings, index: usize, text: &Generation) -> Value {
    let log_probs = settings.log_probs.then(|| {
        let both = text.tokens.iter().zip(&text.log_probs);
        let of_text = both.filter(|(id, _)| is_of_text(head.model.tokenizer(), **id, settings.ignore_eos));
        let content: Vec<Value> = of_text.map(|(&id, &log_prob)| head.log_prob(id, log_prob)).collect();
        json!({"content": content, "refusal": null})
    });
    json!({
        "index": index, "message": {"role": "assistant", "content": text.text, "refusal": null},
        "logprobs": log_probs, "finish_reason": finish_reason(text.finish),
    })
}

/// An answer as it comes.
struct Chunks {
    head: Head,
    with_usage: bool,
    with_log_probs: bool,
    ends_at_eog: bool,
    texts: usize,
    used: Used,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.with_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: &Value, log_probs: &Value, finish: Option<&str>) -> Event {
        data(&self.chunk(json!([{"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": finish}])))
    }
}

impl Writer for Chunks {
    fn begin(&mut self, out: &mut Out) {
        let first = json!({"role": "assistant", "content": ""});
        out.extend((0..self.texts).map(|index| self.delta(index, &first, &Value::Null, None)));
    }

    fn piece(&mut self, number: usize, piece: Piece, out: &mut Out) {
        let log_prob = match (piece.token, piece.log_prob) {
            (Some(id), Some(log_prob)) if is_of_text(self.head.model.tokenizer(), id, !self.ends_at_eog) => {
                Some(self.head.log_prob(id, log_prob))
            }
            _ => None,
        };
        if !piece.text.is_empty() || (self.with_log_probs && log_prob.is_some()) {
            let log_probs = log_prob.map_or(Value::Null, |one| json!({"content": [one], "refusal": null}));
            out.push_back(self.delta(number, &json!({"content": piece.text}), &log_probs, None));
        }
        if let Some(end) = piece.end {
            self.used.add(&end);
            out.push_back(self.delta(number, &json!({}), &Value::Null, Some(finish_reason(end.finish))));
        }
    }

    fn end(&mut self, out: &mut Out) {
        if self.with_usage {
            let mut last = self.chunk(json!([]));
            last["usage"] = self.used.openai();
            out.push_back(data(&last));
        }
        out.push_back(Event::default().data("[DONE]"));
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        out.push_back(data(&error.openai()));
    }
}
