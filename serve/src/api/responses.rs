//! OpenAI's `/v1/responses`: one text for a list of messages. Nothing is stored, so that a conversation is sent anew each time.

use super::common::{call_id, first, id, is_of_text, is_zero, log_prob_of, now, take_absent, text_of};
use crate::answer_parser::{Call, Calls, Part, Splitter};
use crate::body;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::form;
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing, kind};
use crate::queue::Client;
use crate::service::{Chat, Service};
use crate::settings::Settings;
use crate::stream::{self, Out, Writer, named};
use crate::style::Style;
use crate::template::TemplateVariables;
use crate::tools::{History, Offer, take_call};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use outboard::llm::N_TOP;
use outboard::{Finish, Generation, Message, Model, Piece};
use serde_json::{Map, Value, json};

/// So often the log-probabilities of a text are among its last events.
const COPIES: usize = 4;

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    let mut settings = Settings::take(&mut params, &["max_output_tokens"], "stop", 1)?;
    let style = service.style();
    settings.shown = style.shown.clone();
    settings.log_probs = take_log_probs(&mut params)?;
    settings.check_log_probs(COPIES, service.context())?;
    let form = form::take_text(&mut params)?;
    let streams = params.boolean("stream")?.unwrap_or(false);
    let said =
        |name: &str, default: &str| params.seen(name).map_or_else(|| default.to_owned(), Value::to_string).into();
    let repeated = Repeated { tools: said("tools", "[]"), tool_choice: said("tool_choice", "\"auto\"") };
    let offer = Offer::of_responses(&mut params, style)?;
    let mut template = TemplateVariables::take(service.model(), &mut params)?;
    if let Some(mut reasoning) = params.object("reasoning")? {
        template.take_effort(&mut reasoning, "effort")?;
        // All of it is given.
        reasoning.without_effect(&["summary", "generate_summary"]);
        reasoning.finish()?;
    }
    let variables = template.variables;
    let (messages, instructions) = take_messages(params, style)?;
    let format = form.clone();
    let form = offer.form_or(form)?;
    service.check_room(&client, 1)?;
    settings.constraint = form::compile(&service, &room, form.as_ref()).await?;
    let calls = offer.calls;
    let chat = Chat { messages, variables, offer, opening: String::new() };
    let (prompt, splitter) = service.encode_chat(&room, chat, form.as_ref()).await?;
    drop(room);
    let answers = service.begin(&client, &[prompt], &settings)?;
    let (input, style, name) = (answers.prompt_tokens, style.clone(), service.name().to_owned());
    let head = Head {
        id: id("resp_"),
        created: now(),
        model: service.model().clone(),
        name,
        style,
        instructions,
        input,
        calls,
        repeated,
        settings,
        format,
    };
    let mut events =
        Events { head, splitter, number: 0, items: Vec::new(), open: None, waiting: Vec::new(), end: None };
    if streams {
        return Ok(stream::respond(answers, events));
    }
    stream::feed(answers, &mut events).await?;
    json_answer(events.close(&mut Out::new()).1.to_string(), service.rooms().enter(client))
}

/// `include` and `top_logprobs`: how many of the most probable tokens come with each token and its log-probability.
fn take_log_probs(params: &mut Params) -> Result<Option<usize>> {
    const LOG_PROBS: &str = "message.output_text.logprobs";
    const INCLUDES: usize = 16;
    let (at, include) = (params.name("include"), params.strings("include", INCLUDES)?);
    if let Some(other) = include.iter().find(|name| *name != LOG_PROBS) {
        let other: String = other.chars().take(60).collect();
        return Err(ApiError::unsupported(at, &format!("'{other}'; there is '{LOG_PROBS}' alone")));
    }
    let top = params.count("top_logprobs", 0..=N_TOP as i64)?.unwrap_or(0);
    if include.is_empty() && top > 0 {
        let message = format!("'top_logprobs' needs 'include' to have '{LOG_PROBS}'");
        return Err(ApiError::of_param("top_logprobs", message));
    }
    Ok((!include.is_empty()).then_some(top))
}

/// Takes the input, with the instructions before it, and all that is left.
fn take_messages(mut params: Params, style: &Style) -> Result<(Vec<Message>, Option<String>)> {
    const NOT_STORED: &str = "nothing is stored; send the conversation as 'input'";
    for name in ["previous_response_id", "conversation", "prompt", "background"] {
        params.absent(name, NOT_STORED, is_nothing)?;
    }
    params.absent("truncation", "an input that is too long is an error", |value| value == "disabled")?;
    params.absent("max_tool_calls", "it is about tools of the server, and there are none", is_zero)?;
    if let Some(mut options) = params.object("stream_options")? {
        options.absent("include_obfuscation", "events are as long as their text", is_nothing)?;
        options.finish()?;
    }
    params.absent("logit_bias", "this API has none", is_nothing)?;
    take_absent(&mut params)?;
    let instructions = params.string("instructions")?;
    let input = params.required("input")?;
    params.finish()?;
    let mut history = History::new(style);
    if let Some(text) = &instructions {
        history.push(Message::new("system", text.as_str()), "instructions")?;
    }
    match input {
        Value::String(text) => history.push(Message::new("user", text), "input")?,
        Value::Array(items) if !items.is_empty() && items.len() <= MESSAGES => {
            let mut reasoning = String::new();
            for (i, value) in items.into_iter().enumerate() {
                item(Params::of(value, &format!("input[{i}]"))?, &mut reasoning, &mut history)?;
            }
        }
        other => {
            let found = if other.is_array() { "a list of none, or of too many" } else { kind(&other) };
            return Err(ApiError::of_param(
                "input",
                format!("'input' must be a string or a list of messages, not {found}"),
            ));
        }
    }
    Ok((history.messages, instructions))
}

/// An item of the input. Reasoning is kept for what follows it.
fn item(mut params: Params, reasoning: &mut String, history: &mut History<'_>) -> Result<()> {
    let (at_type, item) = (params.name("type"), params.string("type")?.unwrap_or_else(|| "message".into()));
    // Of an answer that is sent back.
    params.without_effect(&["id", "status"]);
    match item.as_str() {
        "message" => {
            let mut message = message(params)?;
            if message.role == "assistant" {
                message.reasoning = std::mem::take(reasoning);
            }
            history.push(message, "input")
        }
        "function_call" => {
            history.check(&at_type)?;
            let id = params.required_string("call_id")?;
            let call = take_call(&mut params, id, history)?;
            params.finish()?;
            history.push_call(call, std::mem::take(reasoning), &at_type)
        }
        "function_call_output" => {
            history.check(&at_type)?;
            let (at, at_id) = (params.name("output"), params.name("call_id"));
            let (id, output) = (params.required_string("call_id")?, params.required("output")?);
            params.finish()?;
            history.push_result(&id, text_of(output, &at, &["input_text", "output_text"])?, &at_id)
        }
        "reasoning" => {
            *reasoning += &thought(params)?;
            Ok(())
        }
        _ => {
            let item: String = item.chars().take(40).collect();
            let why = format!(
                "an item of type '{item}'; there are messages, reasoning, calls of functions and their outputs"
            );
            Err(ApiError::unsupported(at_type, &why))
        }
    }
}

/// The text of earlier reasoning.
fn thought(mut params: Params) -> Result<String> {
    params.absent("encrypted_content", "it is not of this server", is_nothing)?;
    params.without_effect(&["summary"]);
    let at = params.name("content");
    let text = params.take("content").map(|content| text_of(content, &at, &["reasoning_text"])).transpose()?;
    params.finish()?;
    Ok(text.unwrap_or_default())
}

fn message(mut params: Params) -> Result<Message> {
    let (name, role) = (params.name("role"), params.string("role")?.unwrap_or_default());
    let role = match role.as_str() {
        "system" | "user" | "assistant" => role,
        "developer" => "system".to_owned(),
        _ => {
            return Err(ApiError::of_param(
                name.clone(),
                format!("'{name}' must be system, developer, user or assistant"),
            ));
        }
    };
    let (at, content) = (params.name("content"), params.required("content")?);
    params.finish()?;
    Ok(Message::new(role, text_of(content, &at, &["input_text", "output_text"])?))
}

/// What all parts of an answer have in common.
struct Head {
    id: String,
    created: u64,
    model: Model,
    name: String,
    style: Style,
    instructions: Option<String>,
    /// Tokens of the prompt.
    input: usize,
    calls: Calls,
    repeated: Repeated,
    settings: Settings,
    /// The form of the text.
    format: Option<form::Wanted>,
}

/// What the request says of tools, as JSON: parsed it takes far more, and many texts may wait.
struct Repeated {
    tools: Box<str>,
    tool_choice: Box<str>,
}

impl Head {
    /// The answer as it is, with these items.
    fn response(&self, status: &str, output: &Value, usage: &Value) -> Value {
        let parsed = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
        let format = self.format.as_ref().map_or_else(|| json!({"type": "text"}), form::Wanted::format);
        let cut = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": cut, "instructions": self.instructions, "max_output_tokens": self.settings.most,
            "model": self.name, "output": output, "parallel_tool_calls": self.calls == Calls::Any,
            "previous_response_id": null, "reasoning": {"effort": null, "summary": null}, "store": false,
            "temperature": self.settings.sampler.temperature, "text": {"format": format},
            "tools": parsed(&self.repeated.tools), "tool_choice": parsed(&self.repeated.tool_choice), "top_p": self.settings.sampler.top_p,
            "top_logprobs": self.settings.log_probs.unwrap_or(0), "truncation": "disabled", "usage": usage, "user": null, "metadata": {}, "background": false,
        })
    }

    /// The item that a part of the answer becomes, with nothing in it yet.
    fn item(&self, part: &Part) -> Value {
        const BEGUN: &str = "in_progress";
        match part {
            Part::Text(_) => {
                json!({"id": id("msg_"), "type": "message", "status": BEGUN, "role": "assistant", "content": []})
            }
            Part::Reasoning(_) => {
                json!({"id": id("rs_"), "type": "reasoning", "summary": [], "content": [], "status": BEGUN})
            }
            Part::Call(Call { name, .. }) => {
                let call_id = call_id("call_", &self.style);
                json!({"id": id("fc_"), "type": "function_call", "status": BEGUN, "call_id": call_id, "name": name, "arguments": ""})
            }
        }
    }

    /// The log-probability of a token, if it is wanted and the token is one of the text.
    fn log_prob(&self, piece: &Piece) -> Option<LogProb> {
        let (most, id, own) = (self.settings.log_probs?, piece.token?, piece.log_prob?);
        is_of_text(self.model.tokenizer(), id, self.settings.ignore_eos).then(|| LogProb {
            id,
            own,
            top: first(&piece.top_log_probs, most).into(),
        })
    }

    fn log_probs(&self, all: &[LogProb]) -> Value {
        all.iter().map(|LogProb { id, own, top }| log_prob_of(&self.model, *id, *own, top)).collect()
    }

    /// What an item that is being written consists of.
    fn content(&self, open: &Open) -> Value {
        match &open.part {
            Part::Reasoning(text) => json!({"type": "reasoning_text", "text": text}),
            Part::Text(_) | Part::Call(_) => {
                let log_probs = self.log_probs(&open.log_probs);
                json!({"type": "output_text", "text": open.text(), "annotations": [], "logprobs": log_probs})
            }
        }
    }

    fn status(text: &Generation) -> &'static str {
        match text.finish {
            Finish::Eos | Finish::Stop => "completed",
            Finish::Length | Finish::Context | Finish::Cancelled => "incomplete",
        }
    }

    fn done(&self, items: &[Value], text: &Generation, reasoning_tokens: usize) -> Value {
        let (output, written) = (text.tokens.len(), self.input.saturating_sub(text.cached));
        let usage = json!({
            "input_tokens": self.input, "input_tokens_details": {"cached_tokens": text.cached, "cache_write_tokens": written}, "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens}, "total_tokens": self.input + output,
        });
        self.response(Head::status(text), &items.into(), &usage)
    }
}

/// A token of a text with its log-probability, and those of the most probable ones in its place. As JSON it takes far more.
struct LogProb {
    id: u32,
    own: f32,
    top: Box<[(u32, f32)]>,
}

/// Log-probabilities as events have them: without the bytes of their tokens.
fn in_event(mut log_probs: Value) -> Value {
    for one in log_probs.as_array_mut().into_iter().flatten() {
        for top in one["top_logprobs"].as_array_mut().into_iter().flatten() {
            top.as_object_mut().and_then(|top| top.remove("bytes"));
        }
        one.as_object_mut().and_then(|one| one.remove("bytes"));
    }
    log_probs
}

/// An event about a response, which is not copied: it may be large.
fn about(response: Value) -> Value {
    Map::from_iter([("response".to_owned(), response)]).into()
}

/// An answer as it comes.
struct Events {
    head: Head,
    splitter: Splitter,
    /// Of the next event.
    number: u64,
    /// Those that are complete.
    items: Vec<Value>,
    open: Option<Open>,
    /// Log-probabilities of tokens that are not said yet: what they stand for may be text, or the beginning of a mark.
    waiting: Vec<LogProb>,
    end: Option<Box<Generation>>,
}

/// The item that is being written.
struct Open {
    item: Value,
    /// Text, or reasoning.
    part: Part,
    log_probs: Vec<LogProb>,
}

impl Open {
    fn text(&self) -> &str {
        match &self.part {
            Part::Text(text) | Part::Reasoning(text) => text,
            Part::Call(_) => "",
        }
    }

    /// What its events are called.
    fn kind(&self) -> &'static str {
        match &self.part {
            Part::Reasoning(_) => "response.reasoning_text",
            Part::Text(_) | Part::Call(_) => "response.output_text",
        }
    }
}

impl Events {
    fn say(&mut self, name: &str, mut event: Value, out: &mut Out) {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        out.push_back(named(name, &event));
    }

    /// One about the item that is being written.
    fn say_of(&mut self, name: &str, item: &Value, what: (&str, Value), out: &mut Out) {
        let mut event = json!({"item_id": item["id"], "output_index": self.items.len()});
        if item["type"] != "function_call" {
            event["content_index"] = 0.into();
        }
        event[what.0] = what.1;
        self.say(name, event, out);
    }

    /// One with some of the text that is being written, or all of it.
    fn say_text(&mut self, open: &Open, what: (&str, &str, &str), log_probs: &[LogProb], out: &mut Out) {
        let (event, name, text) = what;
        let mut said = json!({"item_id": open.item["id"], "output_index": self.items.len(), "content_index": 0});
        said[name] = text.into();
        if matches!(open.part, Part::Text(_)) {
            said["logprobs"] = in_event(self.head.log_probs(log_probs));
        }
        self.say(&format!("{}.{event}", open.kind()), said, out);
    }

    fn begin_item(&mut self, part: &Part, out: &mut Out) -> Value {
        self.end_item("completed", out);
        let item = self.head.item(part);
        self.say("response.output_item.added", json!({"output_index": self.items.len(), "item": item}), out);
        item
    }

    fn end_item(&mut self, status: &str, out: &mut Out) {
        let Some(mut open) = self.open.take() else { return };
        self.say_text(&open, ("done", "text", open.text()), &open.log_probs, out);
        let part = self.head.content(&open);
        self.say_of("response.content_part.done", &open.item, ("part", part.clone()), out);
        (open.item["content"], open.item["status"]) = (json!([part]), status.into());
        self.done(open.item, out);
    }

    fn done(&mut self, item: Value, out: &mut Out) {
        self.say("response.output_item.done", json!({"output_index": self.items.len(), "item": item}), out);
        self.items.push(item);
    }

    fn part(&mut self, part: Part, out: &mut Out) {
        match part {
            Part::Call(call) => self.call(call, out),
            Part::Text(ref text) | Part::Reasoning(ref text) => self.text(&part, text, out),
        }
    }

    fn call(&mut self, call: Call, out: &mut Out) {
        self.waiting.clear();
        let (json, name) = (call.json(), call.name.clone());
        let mut item = self.begin_item(&Part::Call(call), out);
        self.say_of("response.function_call_arguments.delta", &item, ("delta", json.as_str().into()), out);
        let event = json!({"item_id": item["id"], "output_index": self.items.len(), "name": name, "arguments": json});
        self.say("response.function_call_arguments.done", event, out);
        (item["arguments"], item["status"]) = (json.into(), "completed".into());
        self.done(item, out);
    }

    fn text(&mut self, part: &Part, more: &str, out: &mut Out) {
        let goes_on = |open: &Open| std::mem::discriminant(&open.part) == std::mem::discriminant(part);
        if !self.open.as_ref().is_some_and(goes_on) {
            let item = self.begin_item(part, out);
            let empty = if matches!(part, Part::Text(_)) { Part::Text } else { Part::Reasoning };
            let open = Open { item, part: empty(String::new()), log_probs: Vec::new() };
            self.say_of("response.content_part.added", &open.item, ("part", self.head.content(&open)), out);
            self.open = Some(open);
        }
        let Some(mut open) = self.open.take() else { return };
        let log_probs = std::mem::take(&mut self.waiting);
        self.say_text(&open, ("delta", "delta", more), &log_probs, out);
        if let Part::Text(text) | Part::Reasoning(text) = &mut open.part {
            text.push_str(more);
        }
        if matches!(part, Part::Text(_)) {
            open.log_probs.extend(log_probs);
        }
        self.open = Some(open);
    }

    /// Ends the last item. Gives what the last event is called, and the response that it has.
    fn close(&mut self, out: &mut Out) -> (&'static str, Value) {
        let end = self.end.take().unwrap_or_default();
        let status = Head::status(&end);
        let is_text = self.open.as_ref().is_some_and(|open| matches!(open.part, Part::Text(_)));
        // An answer has an item at least, and a token that gives no text has a probability all the same.
        if self.items.is_empty() && self.open.is_none() || is_text && !self.waiting.is_empty() {
            self.part(Part::Text(String::new()), out);
        }
        self.end_item(status, out);
        let name = if status == "completed" { "response.completed" } else { "response.incomplete" };
        (name, self.head.done(&self.items, &end, self.splitter.reasoning_tokens))
    }
}

impl Writer for Events {
    fn begin(&mut self, out: &mut Out) {
        let response = self.head.response("in_progress", &json!([]), &Value::Null);
        let event = about(response);
        self.say("response.created", event.clone(), out);
        self.say("response.in_progress", event, out);
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        let thought = self.splitter.reasoning_tokens;
        let parts = self.splitter.piece(&piece);
        if self.splitter.reasoning_tokens == thought {
            self.waiting.extend(self.head.log_prob(&piece));
        }
        for part in parts {
            self.part(part, out);
        }
        self.end = piece.end.or(self.end.take());
    }

    fn end(&mut self, out: &mut Out) {
        let (name, response) = self.close(out);
        self.say(name, about(response), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        let openai = &error.openai()["error"];
        let said = json!({"code": openai["code"], "message": openai["message"], "param": openai["param"]});
        self.say("error", said, out);
    }
}
