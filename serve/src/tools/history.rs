//! What the messages of a chat say of calls, and of what tools have answered.

use super::{NAME, TELLS_NOT_OF_TOOLS, check_type};
use crate::error::{ApiError, Result};
use crate::limits::{CONTAINERS, TOOLS};
use crate::params::{Params, containers};
use crate::style::Style;
use outboard::{Message, ToolCall};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The messages of a chat that are being read, with the calls in them.
#[derive(Debug)]
pub(crate) struct History<'s> {
    style: &'s Style,
    pub(crate) messages: Vec<Message>,
    /// Names of tools that were called, by the ids of calls.
    called: HashMap<String, String>,
    /// Lists and objects in arguments, which are JSON in strings.
    containers: usize,
}

impl<'s> History<'s> {
    /// None yet, for a model that writes like this.
    pub(crate) fn new(style: &'s Style) -> History<'s> {
        History { style, messages: Vec::new(), called: HashMap::new(), containers: 0 }
    }

    /// One more. `at` is the parameter that has its calls.
    pub(crate) fn push(&mut self, message: Message, at: &str) -> Result<()> {
        if !message.calls.is_empty() {
            self.check(at)?;
        }
        self.called.extend(message.calls.iter().map(|call| (call.id.clone(), call.name.clone())));
        self.messages.push(message);
        Ok(())
    }

    /// A call more of the last message, if that is the assistant's, or of a new one.
    pub(crate) fn push_call(&mut self, call: ToolCall, reasoning: String, at: &str) -> Result<()> {
        self.check(at)?;
        self.called.insert(call.id.clone(), call.name.clone());
        match self.messages.last_mut().filter(|last| last.role == "assistant") {
            Some(last) => {
                last.reasoning += &reasoning;
                last.calls.push(call);
            }
            None => {
                let calls = vec![call];
                self.messages.push(Message { calls, reasoning, ..Message::new("assistant", "") });
            }
        }
        Ok(())
    }

    /// What the tool of a call has answered; `at` is the parameter that has the call's id.
    pub(crate) fn push_result(&mut self, id: &str, content: String, at: &str) -> Result<()> {
        self.check(at)?;
        let Some(name) = self.called.get(id) else {
            let id: String = id.chars().take(NAME).collect();
            let message = format!("'{at}' is '{id}', and no message before has a call with this id");
            return Err(ApiError::of_param(at, message));
        };
        self.messages.push(Message::result(id, name.as_str(), content));
        Ok(())
    }

    /// The last message, if it is the assistant's: what the answer begins with.
    pub(crate) fn take_opening(&mut self) -> Result<Option<String>> {
        let Some(last) = self.messages.pop_if(|last| last.role == "assistant") else { return Ok(None) };
        if !last.calls.is_empty() || !last.reasoning.is_empty() {
            let what = "to go on from a message of the assistant's that has calls or reasoning";
            return Err(ApiError::unsupported("messages", what));
        }
        Ok(Some(last.content))
    }

    /// An error about a parameter, if the model's template knows no calls.
    pub(crate) fn check(&self, at: &str) -> Result<()> {
        if self.style.knows_tools { Ok(()) } else { Err(ApiError::unsupported(at, TELLS_NOT_OF_TOOLS)) }
    }
}

/// OpenAI's `tool_calls` of an assistant's message.
pub(crate) fn take_calls(params: &mut Params, history: &mut History<'_>) -> Result<Vec<ToolCall>> {
    let at = params.name("tool_calls");
    let list = params.list("tool_calls", TOOLS)?.unwrap_or_default();
    let call = |(i, value): (usize, Value)| {
        let mut params = Params::of(value, &format!("{at}[{i}]"))?;
        check_type(&mut params, "function")?;
        let id = params.required_string("id")?;
        let at = params.name("function");
        let mut function = Params::of(params.required("function")?, &at)?;
        // What else servers say of a call is not for the model.
        take_call(&mut function, id, history)
    };
    list.into_iter().enumerate().map(call).collect()
}

/// The name and the arguments of a call, which are JSON in a string.
pub(crate) fn take_call(params: &mut Params, id: String, history: &mut History<'_>) -> Result<ToolCall> {
    let (at, name) = (params.name("arguments"), params.required_string("name")?);
    let text = params.string("arguments")?.unwrap_or_default();
    history.containers += containers(text.as_bytes());
    if history.containers > CONTAINERS {
        let message = format!("the arguments of all calls have at most {CONTAINERS} lists and objects");
        return Err(ApiError::of_param(at, message));
    }
    let wrong = |e| ApiError::of_param(at.clone(), format!("'{at}' must be a string with a JSON object in it: {e}"));
    let arguments = if text.trim().is_empty() { Map::new() } else { serde_json::from_str(&text).map_err(wrong)? };
    Ok(ToolCall { id, name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::CallSyntax;
    use serde_json::json;

    #[test]
    fn results_belong_to_calls() {
        let style = Style { calls: Some(CallSyntax::Tagged), knows_tools: true, ..Style::default() };
        let param = |error: ApiError| error.openai()["error"]["param"].as_str().unwrap_or_default().to_owned();
        let mut history = History::new(&style);
        let call = |id: &str| ToolCall { id: id.into(), name: "f".into(), arguments: Map::new() };
        history.push_call(call("1"), "hm".into(), "a").unwrap();
        history.push_call(call("2"), String::new(), "a").unwrap();
        history.push_result("2", "two".into(), "b").unwrap();
        assert_eq!(param(history.push_result("3", "three".into(), "b").unwrap_err()), "b");
        let [calls, result] = history.messages.as_slice() else { panic!("{history:?}") };
        assert_eq!((calls.calls.len(), result.result_of.as_ref()), (2, Some(&("2".into(), "f".into()))));
        let many = json!({"name": "f", "arguments": format!("{{\"a\": [{}]}}", vec!["[]"; CONTAINERS / 2].join(","))});
        let mut take = || take_call(&mut Params::of(many.clone(), "c").unwrap(), "4".into(), &mut history);
        assert!(take().is_ok());
        assert_eq!(param(take().unwrap_err()), "c.arguments");
        let without = Style::default();
        assert_eq!(param(History::new(&without).push_call(call("1"), String::new(), "x").unwrap_err()), "x");
    }
}
