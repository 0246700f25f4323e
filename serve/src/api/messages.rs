//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

use super::common::{call_id, id, json_response, shown_text, text_of, text_of_part};
use crate::answer_parser::{Part, Splitter, Whole};
use crate::body;
use crate::chat::Chat;
use crate::counted_body::json_answer;
use crate::error::{ApiError, NO_THREADS, Result};
use crate::form::{self, Wanted};
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing, kind};
use crate::queue::Client;
use crate::service::Service;
use crate::settings::Settings;
use crate::stream::{self, Out, Writer, named};
use crate::style::Style;
use crate::template::TemplateVariables;
use crate::tools::{History, Offer};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use outboard::{Finish, Generation, Message, Model, Piece, ToolCall};
use serde_json::{Value, json};
use std::sync::Arc;

/// What this API calls the strings that end a text.
const STOPS: &str = "stop_sequences";

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    params.check_there("max_tokens")?;
    let mut settings = Settings::take(&mut params, &["max_tokens"], STOPS, 1)?;
    let streams = params.boolean("stream")?.unwrap_or(false);
    let Asked { chat, thinking, form } = take_asked(&service, params)?;
    let (answers, splitter) = chat.begin(&service, &client, room, form, &mut settings).await?;
    let (model, name, input) = (service.model().clone(), service.name().to_owned(), answers.prompt_tokens);
    let (style, shown) = (service.style().clone(), settings.shown);
    let head = Head { id: id("msg_"), name, input, stops: settings.stop, shown, style, thinking, model };
    if streams {
        return Ok(stream::respond(answers, Events { head, splitter, open: None, blocks: 0, called: false }));
    }
    let whole = Whole::one(answers, &splitter).await?;
    let mut content: Vec<Value> = whole.parts.iter().filter_map(|part| head.block(part)).collect();
    if content.is_empty() {
        content.push(json!({"type": "text", "text": ""}));
    }
    let (reason, stop) = head.why(&whole.text, whole.calls().next().is_some());
    let message = head.message(&content.into(), reason, stop, &head.usage(&whole.text));
    json_answer(message.to_string(), service.rooms().enter(client))
}

pub(crate) async fn count(State(service): State<Service>, request: Request) -> Result<Response> {
    let (service, params, room) = body::read(service, request).await?;
    let Asked { chat, .. } = take_asked(&service, params)?;
    let (prompt, _) = chat.encode(&service, &room, None).await?;
    Ok(json_response(&json!({"input_tokens": prompt.len()})))
}

/// What is asked for.
struct Asked {
    chat: Chat,
    thinking: Thinking,
    form: Option<Wanted>,
}

/// Whether an answer has the model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thinking {
    Shown,
    LeftOut,
}

/// Takes the messages, the system's among them, and all that is left.
fn take_asked(service: &Service, mut params: Params) -> Result<Asked> {
    let style = service.style();
    let offer = Offer::of_messages(&mut params, style)?;
    for name in ["mcp_servers", "container"] {
        params.absent(name, "a model here writes text and calls of tools", is_nothing)?;
    }
    if params.take("thread").is_some() {
        return Err(ApiError::unsupported("thread", "nothing is stored; send the messages").with_code(NO_THREADS));
    }
    take_context_management(&mut params)?;
    let mut template = TemplateVariables::take(service.model(), style, &mut params)?;
    let form = take_output(&mut params, &mut template)?;
    let thinking = take_thinking(&mut params, &mut template)?;
    let variables = template.variables;
    params.absent("service_tier", "all requests are the same", |value| value == "auto" || value == "standard_only")?;
    params.without_effect(&["metadata", "cache_control"]);
    let system = params.take("system").map(|system| text_of(system, "system", &["text"])).transpose()?;
    let list = params.required_list("messages", MESSAGES)?;
    params.finish()?;
    let mut history = History::new(style);
    if let Some(text) = system {
        history.push(Message::new("system", text), "system")?;
    }
    for (i, value) in list.into_iter().enumerate() {
        message(Params::of(value, &format!("messages[{i}]"))?, &mut history)?;
    }
    let opening = history.take_opening()?.unwrap_or_default();
    match history.messages.last().map(|message| message.role.as_str()) {
        Some("user" | "tool") => {
            Ok(Asked { chat: Chat { messages: history.messages, variables, offer, opening }, thinking, form })
        }
        _ => Err(ApiError::of_param(
            "messages",
            "'messages' must have one of the user's, and no two of the assistant's at the end",
        )),
    }
}

/// `output_config`, and `output_format` from before: the form of an answer, and how much to reason where the model's template asks.
fn take_output(params: &mut Params, template: &mut TemplateVariables<'_>) -> Result<Option<Wanted>> {
    let mut formats = Vec::from_iter(params.object("output_format")?);
    if let Some(mut config) = params.object("output_config")? {
        template.take_effort(&mut config, "effort")?;
        formats.extend(config.object("format")?);
        config.finish()?;
    }
    if formats.len() > 1 {
        return Err(ApiError::of_param("output_format", "'output_format' and 'output_config.format' are two forms"));
    }
    formats.pop().map_or(Ok(None), |format| form::take_format(format, ""))
}

/// `context_management`: what is to be left out of messages. Templates leave out earlier reasoning as their model wants it; nothing else is.
fn take_context_management(params: &mut Params) -> Result<()> {
    let Some(mut context) = params.object("context_management")? else { return Ok(()) };
    let why = "messages are read as they are; only 'clear_thinking_20251015' is taken, which the model's template does";
    let clears_thinking = |edit: &Value| edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_thinking_"));
    context.absent("edits", why, |edits| edits.as_array().is_some_and(|edits| edits.iter().all(clears_thinking)))?;
    context.finish()
}

/// `thinking`: whether a model reasons, where its template asks, and whether the answer shows it. For how long, the model says; one that never reasons answers at once.
fn take_thinking(params: &mut Params, template: &mut TemplateVariables<'_>) -> Result<Thinking> {
    let Some(mut thinking) = params.object("thinking")? else { return Ok(Thinking::LeftOut) };
    let kind = thinking.required_string("type")?;
    thinking.count("budget_tokens", 1..=i64::from(i32::MAX))?;
    let display = thinking.string("display")?;
    thinking.finish()?;
    match kind.as_str() {
        "disabled" => template.think(false).map(|()| Thinking::LeftOut),
        "enabled" | "adaptive" => {
            if kind == "enabled" {
                template.think(true)?;
            }
            Ok(if display.as_deref() == Some("omitted") { Thinking::LeftOut } else { Thinking::Shown })
        }
        _ => Err(ApiError::of_param("thinking.type", "'thinking.type' must be enabled, adaptive or disabled")),
    }
}

/// A message: the texts in it, and beside them calls of the assistant's, or results of the user's tools.
fn message(mut params: Params, history: &mut History<'_>) -> Result<()> {
    let (name, role) = (params.name("role"), params.string("role")?.unwrap_or_default());
    if role != "user" && role != "assistant" {
        return Err(ApiError::of_param(name.clone(), format!("'{name}' must be user or assistant")));
    }
    let (at, content) = (params.name("content"), params.required("content")?);
    params.finish()?;
    let Value::Array(blocks) = content else {
        return history.push(Message::new(role, text_of(content, &at, &["text"])?), &at);
    };
    let mut message = Message::new(role, "");
    let mut texts = Vec::new();
    // A message of results alone says nothing itself.
    let mut says = blocks.is_empty();
    for (i, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        match (block["type"].as_str().unwrap_or_default(), message.role.as_str()) {
            ("tool_result", "user") => {
                result(Params::of(block, &at)?, history)?;
                continue;
            }
            ("tool_use", "assistant") => message.calls.push(call(Params::of(block, &at)?)?),
            ("thinking", "assistant") => message.reasoning += &thought(Params::of(block, &at)?)?,
            _ => texts.push(text_of_part(block, &at, &["text"])?),
        }
        says = true;
    }
    message.content = texts.join("\n");
    if says { history.push(message, &at) } else { Ok(()) }
}

/// A `tool_result`.
fn result(mut params: Params, history: &mut History<'_>) -> Result<()> {
    // That something went wrong, the text says.
    params.without_effect(&["type", "cache_control", "is_error"]);
    let (at, at_id) = (params.name("content"), params.name("tool_use_id"));
    let id = params.required_string("tool_use_id")?;
    let content = params.take("content").map(|content| text_of(content, &at, &["text"])).transpose()?;
    params.finish()?;
    history.push_result(&id, content.unwrap_or_default(), &at_id)
}

/// A `tool_use`.
fn call(mut params: Params) -> Result<ToolCall> {
    params.without_effect(&["type", "cache_control", "caller"]);
    let (id, name, at) = (params.required_string("id")?, params.required_string("name")?, params.name("input"));
    let arguments = match params.required("input")? {
        Value::Object(map) => map,
        other => return Err(ApiError::of_param(at.clone(), format!("'{at}' must be an object, not {}", kind(&other)))),
    };
    params.finish()?;
    Ok(ToolCall { id, name, arguments })
}

/// A `thinking` of an earlier answer.
fn thought(mut params: Params) -> Result<String> {
    params.without_effect(&["type", "signature", "cache_control"]);
    let text = params.required_string("thinking")?;
    params.finish()?;
    Ok(text)
}

/// What all parts of an answer have in common.
struct Head {
    id: String,
    name: String,
    /// Tokens of the prompt.
    input: usize,
    stops: Vec<String>,
    /// Control tokens that are part of texts.
    shown: Arc<[u32]>,
    style: Style,
    thinking: Thinking,
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

    /// A part of an answer, unless it is left out.
    fn block(&self, part: &Part) -> Option<Value> {
        match part {
            Part::Text(text) => Some(json!({"type": "text", "text": text})),
            Part::Reasoning(_) if self.thinking == Thinking::LeftOut => None,
            Part::Reasoning(text) => Some(json!({"type": "thinking", "thinking": text, "signature": ""})),
            Part::Call(call) => {
                let id = call_id("toolu_", &self.style);
                Some(json!({"type": "tool_use", "id": id, "name": call.name, "input": call.arguments}))
            }
        }
    }

    /// What a text has used. Tokens that the cache had are counted for themselves.
    fn usage(&self, text: &Generation) -> Value {
        json!({
            "input_tokens": self.input.saturating_sub(text.cached), "output_tokens": text.tokens.len(),
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": text.cached,
        })
    }

    /// Why a text has ended, and with which string.
    fn why(&self, text: &Generation, called: bool) -> (Option<&'static str>, Option<&str>) {
        match text.finish {
            Finish::Eos | Finish::Stop if called => (Some("tool_use"), None),
            Finish::Eos => (Some("end_turn"), None),
            Finish::Stop => (Some("stop_sequence"), self.stop(text)),
            Finish::Length | Finish::Context | Finish::Cancelled => (Some("max_tokens"), None),
        }
    }

    /// The string that stands behind a text.
    fn stop(&self, text: &Generation) -> Option<&str> {
        let whole = shown_text(self.model.tokenizer(), &text.tokens, &self.shown);
        let rest = whole.strip_prefix(&text.text)?;
        self.stops.iter().find(|stop| rest.starts_with(stop.as_str())).map(String::as_str)
    }
}

/// An answer as it comes.
struct Events {
    head: Head,
    splitter: Splitter,
    /// What the block that is open has: its type.
    open: Option<&'static str>,
    /// How many were begun.
    blocks: usize,
    called: bool,
}

impl Events {
    fn say(name: &str, mut event: Value, out: &mut Out) {
        event["type"] = name.into();
        out.push_back(named(name, &event));
    }

    /// The number of the block that was begun last.
    fn index(&self) -> usize {
        self.blocks.saturating_sub(1)
    }

    fn begin_block(&mut self, kind: &'static str, block: &Value, out: &mut Out) {
        self.end_block(out);
        (self.open, self.blocks) = (Some(kind), self.blocks + 1);
        let event = json!({"index": self.index(), "content_block": block});
        Events::say("content_block_start", event, out);
    }

    fn end_block(&mut self, out: &mut Out) {
        if self.open.take().is_some() {
            Events::say("content_block_stop", json!({"index": self.index()}), out);
        }
    }

    fn delta(&self, delta: &Value, out: &mut Out) {
        Events::say("content_block_delta", json!({"index": self.index(), "delta": delta}), out);
    }

    fn part(&mut self, part: &Part, out: &mut Out) {
        let Some(mut block) = self.head.block(part) else { return };
        match part {
            Part::Text(text) => {
                if self.open != Some("text") {
                    self.begin_block("text", &json!({"type": "text", "text": ""}), out);
                }
                self.delta(&json!({"type": "text_delta", "text": text}), out);
            }
            Part::Reasoning(text) => {
                if self.open != Some("thinking") {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.begin_block("thinking", &block, out);
                }
                self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Part::Call(call) => {
                self.called = true;
                block["input"] = json!({});
                self.begin_block("tool_use", &block, out);
                self.delta(&json!({"type": "input_json_delta", "partial_json": call.json()}), out);
                self.end_block(out);
            }
        }
    }
}

impl Writer for Events {
    fn begin(&mut self, out: &mut Out) {
        let message = self.head.message(&json!([]), None, None, &self.head.usage(&Generation::default()));
        Events::say("message_start", json!({"message": message}), out);
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        for part in self.splitter.piece(&piece) {
            self.part(&part, out);
        }
        if let Some(end) = piece.end {
            if self.blocks == 0 {
                self.begin_block("text", &json!({"type": "text", "text": ""}), out);
            }
            self.end_block(out);
            let (reason, stop) = self.head.why(&end, self.called);
            let delta = json!({"stop_reason": reason, "stop_sequence": stop});
            Events::say("message_delta", json!({"delta": delta, "usage": self.head.usage(&end)}), out);
        }
    }

    fn end(&mut self, out: &mut Out) {
        Events::say("message_stop", json!({}), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        out.push_back(named("error", &error.anthropic()));
    }

    fn ping(&self) -> Event {
        named("ping", &json!({"type": "ping"}))
    }
}
