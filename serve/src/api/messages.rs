//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

use super::usual::{id, json_response, text_of};
use crate::body;
use crate::error::{ApiError, Result};
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing};
use crate::queue::Client;
use crate::service::Service;
use crate::settings::Settings;
use crate::stream::{self, Out, Writer, named};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use outboard::llm::tokenizer::SpecialTokens;
use outboard::{Finish, Generation, Message, Model, Piece};
use serde_json::{Value, json};

/// What this API calls the strings that end a text.
const STOPS: &str = "stop_sequences";

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    params.check_there("max_tokens")?;
    let settings = Settings::take(&mut params, &["max_tokens"], STOPS, 1)?;
    let streams = params.boolean("stream")?.unwrap_or(false);
    let messages = take_messages(params)?;
    let prompt = service.encode_chat(&room, messages).await?;
    drop(room);
    let answers = service.begin(&client, &[prompt], &settings)?;
    let (model, name, input) = (service.model().clone(), service.name().to_owned(), answers.prompt_tokens);
    let head = Head { id: id("msg_"), name, input, stops: settings.stop, model };
    if streams {
        return Ok(stream::respond(answers, Events { head }));
    }
    let text = answers.complete().await?.pop().unwrap_or_default();
    let (reason, stop) = head.why(&text);
    let content = json!([{"type": "text", "text": text.text}]);
    Ok(json_response(&head.message(&content, reason, stop, &head.usage(&text))))
}

pub(crate) async fn count(State(service): State<Service>, request: Request) -> Result<Response> {
    let (service, params, room) = body::read(service, request).await?;
    let prompt = service.encode_chat(&room, take_messages(params)?).await?;
    Ok(json_response(&json!({"input_tokens": prompt.len()})))
}

/// Takes the messages, the system's among them, and all that is left.
fn take_messages(mut params: Params) -> Result<Vec<Message>> {
    for name in
        ["tools", "tool_choice", "mcp_servers", "container", "context_management", "output_config", "output_format"]
    {
        params.absent(name, "a model here writes text, and calls nothing", is_nothing)?;
    }
    params.absent("thinking", "models are asked as their template says", |value| value["type"] == "disabled")?;
    params.absent("service_tier", "all requests are the same", |value| value == "auto" || value == "standard_only")?;
    params.without_effect(&["metadata", "cache_control"]);
    let system = params.take("system").map(|system| text_of(system, "system", &["text"])).transpose()?;
    let list = params.required_list("messages", MESSAGES)?;
    params.finish()?;
    let mut messages: Vec<Message> = system.into_iter().map(|text| Message::new("system", text)).collect();
    for (i, value) in list.into_iter().enumerate() {
        messages.push(message(Params::of(value, &format!("messages[{i}]"))?)?);
    }
    match messages.last().map(|message| message.role.as_str()) {
        Some("user") => Ok(messages),
        Some("assistant") => Err(ApiError::unsupported(
            "messages",
            "a last message of the assistant's, to go on from; the last one must be the user's",
        )),
        _ => Err(ApiError::of_param("messages", "'messages' must have one message at least")),
    }
}

fn message(mut params: Params) -> Result<Message> {
    let (name, role) = (params.name("role"), params.string("role")?.unwrap_or_default());
    if role != "user" && role != "assistant" {
        return Err(ApiError::of_param(name.clone(), format!("'{name}' must be user or assistant")));
    }
    let (at, content) = (params.name("content"), params.required("content")?);
    params.finish()?;
    Ok(Message::new(role, text_of(content, &at, &["text"])?))
}

/// What all parts of an answer have in common.
struct Head {
    id: String,
    name: String,
    /// Tokens of the prompt.
    input: usize,
    stops: Vec<String>,
    model: Model,
}

impl Head {
    fn message(&self, content: &Value, reason: Option<&str>, stop: Option<&str>, usage: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.name, "content": content,
            "stop_reason": reason, "stop_sequence": stop,
            "usage": usage,
        })
    }

    /// What a text has used. Tokens that the cache had are counted for themselves.
    fn usage(&self, text: &Generation) -> Value {
        json!({
            "input_tokens": self.input.saturating_sub(text.cached), "output_tokens": text.tokens.len(),
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": text.cached,
        })
    }

    /// Why a text has ended, and with which string.
    fn why(&self, text: &Generation) -> (Option<&'static str>, Option<&str>) {
        match text.finish {
            Finish::Eos => (Some("end_turn"), None),
            Finish::Stop => (Some("stop_sequence"), self.stop(text)),
            Finish::Length | Finish::Context | Finish::Cancelled => (Some("max_tokens"), None),
        }
    }

    /// The string that stands behind a text.
    fn stop(&self, text: &Generation) -> Option<&str> {
        let whole = self.model.tokenizer().decode(&text.tokens, SpecialTokens::Skip);
        let rest = whole.strip_prefix(&text.text)?;
        self.stops.iter().find(|stop| rest.starts_with(stop.as_str())).map(String::as_str)
    }
}

/// An answer as it comes.
struct Events {
    head: Head,
}

impl Writer for Events {
    fn begin(&mut self, out: &mut Out) {
        let message = self.head.message(&json!([]), None, None, &self.head.usage(&Generation::default()));
        out.push_back(named("message_start", &json!({"type": "message_start", "message": message})));
        let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
        out.push_back(named("content_block_start", &block));
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        if !piece.text.is_empty() {
            let delta = json!({"type": "text_delta", "text": piece.text});
            let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
            out.push_back(named("content_block_delta", &event));
        }
        if let Some(end) = piece.end {
            out.push_back(named("content_block_stop", &json!({"type": "content_block_stop", "index": 0})));
            let (reason, stop) = self.head.why(&end);
            let delta = json!({"stop_reason": reason, "stop_sequence": stop});
            let usage = self.head.usage(&end);
            out.push_back(named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage})));
        }
    }

    fn end(&mut self, out: &mut Out) {
        out.push_back(named("message_stop", &json!({"type": "message_stop"})));
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        out.push_back(named("error", &error.anthropic()));
    }
}
