//! An answer of `/v1/responses`, and what its items look like.

use super::events::Open;
use crate::answer_parser::{Call, Calls, Part};
use crate::api::common::{call_id, first, id, is_of_text, log_prob_of};
use crate::form;
use crate::settings::Settings;
use crate::style::Style;
use outboard::{Finish, Generation, Model, Piece};
use serde_json::{Value, json};

/// What all parts of an answer have in common.
pub(super) struct Head {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: Model,
    pub(super) name: String,
    pub(super) style: Style,
    pub(super) instructions: Option<String>,
    /// Tokens of the prompt.
    pub(super) input: usize,
    pub(super) calls: Calls,
    pub(super) repeated: Repeated,
    pub(super) settings: Settings,
    /// The form of the text.
    pub(super) format: Option<form::Wanted>,
}

/// What the request says of tools, as JSON: parsed it takes far more, and many texts may wait.
pub(super) struct Repeated {
    pub(super) tools: Box<str>,
    pub(super) tool_choice: Box<str>,
}

impl Head {
    /// The answer as it is, with these items.
    pub(super) fn response(&self, status: &str, output: &Value, usage: &Value) -> Value {
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
    pub(super) fn item(&self, part: &Part) -> Value {
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
    pub(super) fn log_prob(&self, piece: &Piece) -> Option<LogProb> {
        let (most, id, own) = (self.settings.log_probs?, piece.token?, piece.log_prob?);
        is_of_text(self.model.tokenizer(), id, self.settings.ignore_eos).then(|| LogProb {
            id,
            own,
            top: first(&piece.top_log_probs, most).into(),
        })
    }

    pub(super) fn log_probs(&self, all: &[LogProb]) -> Value {
        all.iter().map(|LogProb { id, own, top }| log_prob_of(&self.model, *id, *own, top)).collect()
    }

    /// What an item that is being written consists of.
    pub(super) fn content(&self, open: &Open) -> Value {
        match &open.part {
            Part::Reasoning(text) => json!({"type": "reasoning_text", "text": text}),
            Part::Text(_) | Part::Call(_) => {
                let log_probs = self.log_probs(&open.log_probs);
                json!({"type": "output_text", "text": open.text(), "annotations": [], "logprobs": log_probs})
            }
        }
    }

    pub(super) fn status(text: &Generation) -> &'static str {
        match text.finish {
            Finish::Eos | Finish::Stop => "completed",
            Finish::Length | Finish::Context | Finish::Cancelled => "incomplete",
        }
    }

    pub(super) fn done(&self, items: &[Value], text: &Generation, reasoning_tokens: usize) -> Value {
        let (output, written) = (text.tokens.len(), self.input.saturating_sub(text.cached));
        let usage = json!({
            "input_tokens": self.input, "input_tokens_details": {"cached_tokens": text.cached, "cache_write_tokens": written}, "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens}, "total_tokens": self.input + output,
        });
        self.response(Head::status(text), &items.into(), &usage)
    }
}

/// A token of a text with its log-probability, and those of the most probable ones in its place. As JSON it takes far more.
pub(super) struct LogProb {
    id: u32,
    own: f32,
    top: Box<[(u32, f32)]>,
}
