//! What a request to `/v1/responses` says: messages, reasoning, calls of functions and their results.

use crate::api::common::{is_zero, take_absent, text_of};
use crate::error::{ApiError, Result};
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing, kind};
use crate::style::Style;
use crate::tools::{History, take_call};
use outboard::Message;
use serde_json::Value;

/// Takes the input, with the instructions before it, and all that is left.
pub(super) fn take_messages(mut params: Params, style: &Style) -> Result<(Vec<Message>, Option<String>)> {
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
            // Many templates know of one such message, at the beginning.
            match history.messages.as_mut_slice() {
                [first] if first.role == "system" && message.role == "system" => {
                    first.content.push_str("\n\n");
                    first.content.push_str(&message.content);
                    Ok(())
                }
                _ => history.push(message, "input"),
            }
        }
        "function_call" => {
            history.check(&at_type)?;
            let id = params.required_string("call_id")?;
            // What else servers say of a call is not for the model.
            let call = take_call(&mut params, id, history)?;
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
    // What servers say of an answer that is sent back is not for the model.
    if role != "assistant" {
        params.finish()?;
    }
    Ok(Message::new(role, text_of(content, &at, &["input_text", "output_text", "text"])?))
}
