//! The events of an answer of `/v1/responses` as it comes.

use super::output::{Head, LogProb};
use crate::answer_parser::{Call, Part, Splitter};
use crate::error::ApiError;
use crate::stream::{Out, Writer, named};
use outboard::{Generation, Piece};
use serde_json::{Map, Value, json};

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
pub(super) struct Events {
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
pub(super) struct Open {
    item: Value,
    /// Text, or reasoning.
    pub(super) part: Part,
    pub(super) log_probs: Vec<LogProb>,
}

impl Open {
    pub(super) fn text(&self) -> &str {
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
    pub(super) fn new(head: Head, splitter: Splitter) -> Events {
        Events { head, splitter, number: 0, items: Vec::new(), open: None, waiting: Vec::new(), end: None }
    }

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
    pub(super) fn close(&mut self, out: &mut Out) -> (&'static str, Value) {
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
        let mut response = self.head.response("failed", &json!(self.items), &Value::Null);
        response["error"] =
            json!({"code": openai["code"].as_str().unwrap_or("server_error"), "message": openai["message"]});
        self.say("response.failed", about(response), out);
    }
}
