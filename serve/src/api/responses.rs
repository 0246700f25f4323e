//! OpenAI's `/v1/responses`: one text for a list of messages. Nothing is stored, so that a conversation is sent anew each time.

use super::usual::{id, is_zero, json_response, now, take_absent, text_of};
use crate::body;
use crate::error::{ApiError, Result};
use crate::form;
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing, kind};
use crate::queue::Client;
use crate::service::Service;
use crate::settings::Settings;
use crate::stream::{self, Out, Writer, named};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use outboard::{Finish, Generation, Message, Piece};
use serde_json::{Value, json};

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (mut params, room) = body::read(&service, request).await?;
    service.check_model(params.string("model")?.as_deref())?;
    let mut settings = Settings::take(&mut params, &["max_output_tokens"], "stop", 1)?;
    let form = form::take_text(&mut params)?;
    let streams = params.boolean("stream")?.unwrap_or(false);
    let (messages, instructions) = take_messages(params)?;
    let format = form.as_ref().map_or_else(|| json!({"type": "text"}), form::Wanted::format);
    settings.constraint = form::compile(&service, &room, form).await?;
    let prompt = service.encode_chat(&room, messages).await?;
    drop(room);
    let answers = service.begin(&client, &[prompt], &settings)?;
    let input = answers.prompt_tokens;
    let (id, item) = (id("resp_"), id("msg_"));
    let head =
        Head { id, item, created: now(), name: service.name().to_owned(), instructions, input, settings, format };
    if streams {
        return Ok(stream::respond(answers, Events { head, number: 0, text: String::new(), end: None }));
    }
    let text = answers.complete().await?.pop().unwrap_or_default();
    Ok(json_response(&head.done(&text)))
}

/// Takes the input, with the instructions before it, and all that is left.
fn take_messages(mut params: Params) -> Result<(Vec<Message>, Option<String>)> {
    const NOT_STORED: &str = "nothing is stored; send the conversation as 'input'";
    for name in ["previous_response_id", "conversation", "prompt", "background"] {
        params.absent(name, NOT_STORED, is_nothing)?;
    }
    params.absent("truncation", "an input that is too long is an error", |value| value == "disabled")?;
    params.absent("include", "there is nothing more to say than the text", is_nothing)?;
    params.absent("reasoning", "models are asked as their template says", is_nothing)?;
    params.absent("max_tool_calls", "calls of tools are not parsed", is_zero)?;
    if let Some(mut options) = params.object("stream_options")? {
        options.absent("include_obfuscation", "events are as long as their text", is_nothing)?;
        options.finish()?;
    }
    params.absent("logit_bias", "this API has none", is_nothing)?;
    take_absent(&mut params)?;
    let instructions = params.string("instructions")?;
    let input = params.required("input")?;
    params.finish()?;
    let mut messages: Vec<Message> = instructions.iter().map(|text| Message::new("system", text.as_str())).collect();
    match input {
        Value::String(text) => messages.push(Message::new("user", text)),
        Value::Array(items) if !items.is_empty() && items.len() <= MESSAGES => {
            for (i, item) in items.into_iter().enumerate() {
                messages.push(message(Params::of(item, &format!("input[{i}]"))?)?);
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
    Ok((messages, instructions))
}

fn message(mut params: Params) -> Result<Message> {
    let item = params.string("type")?.unwrap_or_else(|| "message".into());
    if item != "message" {
        let item: String = item.chars().take(40).collect();
        return Err(ApiError::unsupported(
            params.name("type"),
            &format!("an item of type '{item}'; there are messages"),
        ));
    }
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
    // Of an answer that is sent back.
    params.without_effect(&["id", "status"]);
    let (at, content) = (params.name("content"), params.required("content")?);
    params.finish()?;
    Ok(Message::new(role, text_of(content, &at, &["input_text", "output_text"])?))
}

/// What all parts of an answer have in common.
struct Head {
    id: String,
    item: String,
    created: u64,
    name: String,
    instructions: Option<String>,
    /// Tokens of the prompt.
    input: usize,
    settings: Settings,
    /// The form of the text.
    format: Value,
}

impl Head {
    /// The answer as it is, with these items.
    fn response(&self, status: &str, output: &Value, usage: &Value) -> Value {
        let cut = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": cut, "instructions": self.instructions, "max_output_tokens": self.settings.most,
            "model": self.name, "output": output, "parallel_tool_calls": true, "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null}, "store": false,
            "temperature": self.settings.sampler.temperature, "text": {"format": self.format}, "tool_choice": "auto",
            "tools": [], "top_p": self.settings.sampler.top_p, "truncation": "disabled", "usage": usage, "user": null,
            "metadata": {}, "background": false,
        })
    }

    fn part(text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    }

    fn item(&self, status: &str, content: &Value) -> Value {
        json!({"id": self.item, "type": "message", "status": status, "role": "assistant", "content": content})
    }

    fn status(text: &Generation) -> &'static str {
        match text.finish {
            Finish::Eos | Finish::Stop => "completed",
            Finish::Length | Finish::Context | Finish::Cancelled => "incomplete",
        }
    }

    fn done(&self, text: &Generation) -> Value {
        let (status, output) = (Head::status(text), text.tokens.len());
        let usage = json!({
            "input_tokens": self.input, "input_tokens_details": {"cached_tokens": text.cached}, "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": self.input + output,
        });
        self.response(status, &json!([self.item(status, &json!([Head::part(&text.text)]))]), &usage)
    }
}

/// An answer as it comes.
struct Events {
    head: Head,
    /// Of the next event.
    number: u64,
    text: String,
    end: Option<Box<Generation>>,
}

impl Events {
    fn say(&mut self, name: &str, mut event: Value, out: &mut Out) {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        out.push_back(named(name, &event));
    }

    /// One about the text's part of the answer.
    fn say_of_part(&mut self, name: &str, what: (&str, Value), out: &mut Out) {
        let mut event = json!({"item_id": self.head.item, "output_index": 0, "content_index": 0});
        event[what.0] = what.1;
        if name.starts_with("response.output_text") {
            event["logprobs"] = json!([]);
        }
        self.say(name, event, out);
    }
}

impl Writer for Events {
    fn begin(&mut self, out: &mut Out) {
        let response = self.head.response("in_progress", &json!([]), &Value::Null);
        self.say("response.created", json!({"response": response}), out);
        self.say("response.in_progress", json!({"response": response}), out);
        let item = self.head.item("in_progress", &json!([]));
        self.say("response.output_item.added", json!({"output_index": 0, "item": item}), out);
        self.say_of_part("response.content_part.added", ("part", Head::part("")), out);
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        if !piece.text.is_empty() {
            self.text += &piece.text;
            self.say_of_part("response.output_text.delta", ("delta", piece.text.into()), out);
        }
        self.end = piece.end.or(self.end.take());
    }

    fn end(&mut self, out: &mut Out) {
        let end = self.end.take().unwrap_or_default();
        let (text, status) = (std::mem::take(&mut self.text), Head::status(&end));
        self.say_of_part("response.output_text.done", ("text", text.as_str().into()), out);
        self.say_of_part("response.content_part.done", ("part", Head::part(&text)), out);
        let item = self.head.item(status, &json!([Head::part(&text)]));
        self.say("response.output_item.done", json!({"output_index": 0, "item": item}), out);
        let name = if status == "completed" { "response.completed" } else { "response.incomplete" };
        self.say(name, json!({"response": self.head.done(&end)}), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        let openai = &error.openai()["error"];
        let said = json!({"code": openai["code"], "message": openai["message"], "param": openai["param"]});
        self.say("error", said, out);
    }
}
