//! OpenAI's `/v1/responses`: one text for a list of messages. Nothing is stored, so that a conversation is sent anew each time.

use super::usual::{call_id, id, is_zero, json_response, now, take_absent, text_of};
use crate::body;
use crate::error::{ApiError, Result};
use crate::form;
use crate::limits::MESSAGES;
use crate::params::{BY_TEMPLATE, Params, is_nothing, kind};
use crate::queue::Client;
use crate::service::Service;
use crate::settings::Settings;
use crate::split::{Call, Calls, Part, Splitter, Whole};
use crate::stream::{self, Out, Writer, named};
use crate::style::Style;
use crate::tools::{History, Offer, take_call};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use outboard::{Finish, Generation, Message, Piece};
use serde_json::{Map, Value, json};

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    let mut settings = Settings::take(&mut params, &["max_output_tokens"], "stop", 1)?;
    let style = service.style();
    settings.shown = style.shown.clone();
    let form = form::take_text(&mut params)?;
    let streams = params.boolean("stream")?.unwrap_or(false);
    let said =
        |name: &str, default: &str| params.seen(name).map_or_else(|| default.to_owned(), Value::to_string).into();
    let repeated = Repeated { tools: said("tools", "[]"), tool_choice: said("tool_choice", "\"auto\"") };
    let offer = Offer::of_responses(&mut params, style)?;
    let (messages, instructions) = take_messages(params, style)?;
    let format = form.clone();
    let form = offer.form_or(form)?;
    settings.constraint = form::compile(&service, &room, form.as_ref()).await?;
    let (prompt, splitter) = service.encode_chat(&room, messages, &offer, form.as_ref()).await?;
    drop(room);
    let answers = service.begin(&client, &[prompt], &settings)?;
    let (input, style, name) = (answers.prompt_tokens, style.clone(), service.name().to_owned());
    let head = Head {
        id: id("resp_"),
        created: now(),
        name,
        style,
        instructions,
        input,
        calls: offer.calls,
        repeated,
        settings,
        format,
    };
    if streams {
        let items = Vec::new();
        return Ok(stream::respond(answers, Events { head, splitter, number: 0, items, open: None, end: None }));
    }
    let whole = Whole::one(answers, &splitter).await?;
    let status = Head::status(&whole.text);
    let mut items: Vec<Value> = whole.parts.iter().map(|part| head.item(part, status)).collect();
    if items.is_empty() {
        items.push(head.item(&Part::Text(String::new()), status));
    }
    Ok(json_response(&head.done(&items, &whole.text, whole.reasoning_tokens)))
}

/// Takes the input, with the instructions before it, and all that is left.
fn take_messages(mut params: Params, style: &Style) -> Result<(Vec<Message>, Option<String>)> {
    const NOT_STORED: &str = "nothing is stored; send the conversation as 'input'";
    for name in ["previous_response_id", "conversation", "prompt", "background"] {
        params.absent(name, NOT_STORED, is_nothing)?;
    }
    params.absent("truncation", "an input that is too long is an error", |value| value == "disabled")?;
    params.absent("include", "there is nothing more to say than the text", is_nothing)?;
    params.absent("reasoning", BY_TEMPLATE, is_nothing)?;
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
            "truncation": "disabled", "usage": usage, "user": null, "metadata": {}, "background": false,
        })
    }

    /// A part of the answer as an item, complete or with nothing in it yet.
    fn item(&self, part: &Part, status: &str) -> Value {
        match part {
            Part::Text(text) => {
                let content: Vec<Value> = (status != "in_progress").then(|| part_of(text)).into_iter().collect();
                json!({"id": id("msg_"), "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Part::Reasoning(text) => {
                let content: Vec<Value> = (status != "in_progress").then(|| thought_of(text)).into_iter().collect();
                json!({"id": id("rs_"), "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Part::Call(Call { name, .. }) if status == "in_progress" => self.call(name, "", status),
            Part::Call(call) => self.call(&call.name, &call.json(), "completed"),
        }
    }

    fn call(&self, name: &str, arguments: &str, status: &str) -> Value {
        let call_id = call_id("call_", &self.style);
        json!({"id": id("fc_"), "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments})
    }

    fn status(text: &Generation) -> &'static str {
        match text.finish {
            Finish::Eos | Finish::Stop => "completed",
            Finish::Length | Finish::Context | Finish::Cancelled => "incomplete",
        }
    }

    fn done(&self, items: &[Value], text: &Generation, reasoning_tokens: usize) -> Value {
        let output = text.tokens.len();
        let usage = json!({
            "input_tokens": self.input, "input_tokens_details": {"cached_tokens": text.cached}, "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens}, "total_tokens": self.input + output,
        });
        self.response(Head::status(text), &items.into(), &usage)
    }
}

/// An event about a response, which is not copied: it may be large.
fn about(response: Value) -> Value {
    Map::from_iter([("response".to_owned(), response)]).into()
}

fn part_of(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn thought_of(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
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
    end: Option<Box<Generation>>,
}

/// The item that is being written.
struct Open {
    item: Value,
    /// Text, or reasoning.
    part: Part,
}

impl Open {
    fn text(&self) -> &str {
        match &self.part {
            Part::Text(text) | Part::Reasoning(text) => text,
            Part::Call(_) => "",
        }
    }

    /// What its events are called, and what it consists of.
    fn kind(&self) -> (&'static str, fn(&str) -> Value) {
        match &self.part {
            Part::Reasoning(_) => ("response.reasoning_text", thought_of),
            Part::Text(_) | Part::Call(_) => ("response.output_text", part_of),
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
        if name.starts_with("response.output_text") {
            event["logprobs"] = json!([]);
        }
        self.say(name, event, out);
    }

    fn begin_item(&mut self, part: &Part, out: &mut Out) -> Value {
        self.end_item("completed", out);
        let item = self.head.item(part, "in_progress");
        self.say("response.output_item.added", json!({"output_index": self.items.len(), "item": item}), out);
        item
    }

    fn end_item(&mut self, status: &str, out: &mut Out) {
        let Some(mut open) = self.open.take() else { return };
        let (kind, content) = open.kind();
        let part = content(open.text());
        self.say_of(&format!("{kind}.done"), &open.item, ("text", open.text().into()), out);
        self.say_of("response.content_part.done", &open.item, ("part", part.clone()), out);
        (open.item["content"], open.item["status"]) = (json!([part]), status.into());
        self.done(open.item, out);
    }

    fn done(&mut self, item: Value, out: &mut Out) {
        self.say("response.output_item.done", json!({"output_index": self.items.len(), "item": item}), out);
        self.items.push(item);
    }

    fn part(&mut self, part: Part, out: &mut Out) {
        let more = match &part {
            Part::Call(call) => {
                let (json, mut item) = (call.json(), self.begin_item(&part, out));
                const DELTA: &str = "response.function_call_arguments.delta";
                self.say_of(DELTA, &item, ("delta", json.as_str().into()), out);
                let event = json!({
                    "item_id": item["id"], "output_index": self.items.len(), "name": call.name, "arguments": json,
                });
                self.say("response.function_call_arguments.done", event, out);
                (item["arguments"], item["status"]) = (json.into(), "completed".into());
                return self.done(item, out);
            }
            Part::Text(text) | Part::Reasoning(text) => text.clone(),
        };
        let goes_on = |open: &Open| std::mem::discriminant(&open.part) == std::mem::discriminant(&part);
        if !self.open.as_ref().is_some_and(goes_on) {
            let item = self.begin_item(&part, out);
            let empty = if matches!(part, Part::Text(_)) { Part::Text } else { Part::Reasoning };
            let open = Open { item, part: empty(String::new()) };
            let (_, content) = open.kind();
            self.say_of("response.content_part.added", &open.item, ("part", content("")), out);
            self.open = Some(open);
        }
        let Some(mut open) = self.open.take() else { return };
        let (kind, _) = open.kind();
        self.say_of(&format!("{kind}.delta"), &open.item, ("delta", more.as_str().into()), out);
        if let Part::Text(text) | Part::Reasoning(text) = &mut open.part {
            text.push_str(&more);
        }
        self.open = Some(open);
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
        for part in self.splitter.piece(&piece) {
            self.part(part, out);
        }
        self.end = piece.end.or(self.end.take());
    }

    fn end(&mut self, out: &mut Out) {
        let end = self.end.take().unwrap_or_default();
        let status = Head::status(&end);
        if self.items.is_empty() && self.open.is_none() {
            self.part(Part::Text(String::new()), out);
        }
        self.end_item(status, out);
        let name = if status == "completed" { "response.completed" } else { "response.incomplete" };
        let response = self.head.done(&self.items, &end, self.splitter.reasoning_tokens);
        self.say(name, about(response), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        let openai = &error.openai()["error"];
        let said = json!({"code": openai["code"], "message": openai["message"], "param": openai["param"]});
        self.say("error", said, out);
    }
}
