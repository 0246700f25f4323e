//! What the APIs have in common.

use crate::error::{ApiError, Result};
use crate::params::{BY_TEMPLATE, Params, is_nothing, kind};
use crate::stream::{Out, data};
use crate::style::{CallSyntax, Style};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use outboard::llm::tokenizer::{SpecialTokens, Tokenizer};
use outboard::{Finish, Generation, Model};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// What answers say they are made by.
pub(crate) const FINGERPRINT: &str = concat!("outboard-", env!("CARGO_PKG_VERSION"));

/// An answer of JSON.
pub(crate) fn json_response(body: &Value) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body.to_string()).into_response()
}

/// Whether a token is part of a text, and does not just end it.
pub(crate) fn is_of_text(tokenizer: &Tokenizer, id: u32, ignores_eos: bool) -> bool {
    ignores_eos || !tokenizer.is_eog(id)
}

/// Another id each time.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Why a text ended, as OpenAI's API says it.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos | Finish::Stop => "stop",
        Finish::Length | Finish::Context | Finish::Cancelled => "length",
    }
}

/// The same of a text in which there are calls of tools: it ends with them, if the model has ended it.
pub(crate) fn finish_reason_with(finish: Finish, called: bool) -> &'static str {
    match finish {
        Finish::Eos | Finish::Stop if called => "tool_calls",
        finish => finish_reason(finish),
    }
}

/// An id for a call of a tool; templates of Mistral's models take nine letters and digits only.
pub(crate) fn call_id(prefix: &str, style: &Style) -> String {
    if style.calls == Some(CallSyntax::Bracketed) { format!("{:09x}", rand::random::<u32>()) } else { id(prefix) }
}

/// The text of tokens as an answer has it, with what is behind its end.
pub(crate) fn shown_text(tokenizer: &Tokenizer, tokens: &[u32], shown: &[u32]) -> String {
    let mut bytes = Vec::new();
    for id in tokens {
        let special = if shown.contains(id) { SpecialTokens::Show } else { SpecialTokens::Skip };
        tokenizer.token_bytes(*id, special, &mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What texts have used: tokens of their prompts, those of them that the cache had already, and tokens that were generated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Texts behind each prompt.
    n: usize,
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    /// Those of them that are reasoning, if the model may reason.
    pub(crate) reasoning: Option<usize>,
}

impl Used {
    /// By prompts of so many tokens, with `n` texts behind each, so far.
    pub(crate) fn by(prompt: usize, n: usize) -> Used {
        Used { n, prompt, cached: 0, generated: 0, reasoning: None }
    }

    /// By reasoning.
    pub(crate) fn add_reasoning(&mut self, tokens: usize, style: &Style) {
        if style.reasons() {
            self.reasoning = Some(self.reasoning.unwrap_or(0) + tokens);
        }
    }

    /// By the text of this number, which is complete. A prompt with several texts is read by the first of them.
    pub(crate) fn add(&mut self, number: usize, text: &Generation) {
        if number.is_multiple_of(self.n) {
            self.cached += text.cached;
        }
        self.generated += text.tokens.len();
    }

    /// As OpenAI's API says it. A prompt with several texts is counted once.
    pub(crate) fn openai(self) -> Value {
        let Used { prompt, cached, generated, reasoning, .. } = self;
        let mut used = json!({
            "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached.min(prompt)},
        });
        if let Some(reasoning) = reasoning {
            used["completion_tokens_details"] = json!({"reasoning_tokens": reasoning});
        }
        used
    }
}

/// Takes the parameters of OpenAI's APIs for texts that are not here.
pub(crate) fn take_absent(params: &mut Params) -> Result<()> {
    const NO_TOOLS: &str = "tools are for chats: /v1/chat/completions, /v1/responses and /v1/messages";
    params.absent("tools", NO_TOOLS, is_nothing)?;
    params.absent("functions", NO_TOOLS, is_nothing)?;
    let none = |value: &Value| value == "none" || value == "auto";
    params.absent("tool_choice", NO_TOOLS, none)?;
    params.absent("function_call", NO_TOOLS, none)?;
    params.absent("parallel_tool_calls", NO_TOOLS, Value::is_boolean)?;
    params.absent(
        "top_logprobs",
        "it is of /v1/chat/completions and /v1/responses, and for /v1/completions 'logprobs' is a number; the only value here is 0",
        is_zero,
    )?;
    params.absent("modalities", "a model here writes text", |value| value == &json!(["text"]))?;
    params.absent("audio", "a model here writes text", is_nothing)?;
    params.absent("prediction", "it would change nothing of the text, and nothing is gained by it", is_nothing)?;
    params.absent("store", "nothing is stored", is_nothing)?;
    params.absent("service_tier", "all requests are the same", |value| value == "auto" || value == "default")?;
    params.absent("reasoning_effort", "it is for chats", is_nothing)?;
    params.absent("verbosity", BY_TEMPLATE, is_nothing)?;
    params.absent("web_search_options", "nothing is searched for", |_| false)?;
    params.without_effect(&["user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]);
    // What programs say of themselves: Codex, and those for OpenRouter.
    params.without_effect(&["client_metadata", "session_id"]);
    Ok(())
}

pub(crate) fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

/// The end of a stream of OpenAI's chunks. `last` is the chunk that says what was used, if that is wanted.
pub(crate) fn end_chunks(last: Option<Value>, used: Used, out: &mut Out) {
    if let Some(mut last) = last {
        last["usage"] = used.openai();
        out.push_back(data(&last));
    }
    out.push_back(Event::default().data("[DONE]"));
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// When it is complete.
    Whole,
    /// As it comes.
    Stream,
    /// The same, with what it has used in the end.
    StreamWithUsage,
}

/// `stream` and `stream_options`.
pub(crate) fn take_delivery(params: &mut Params) -> Result<Delivery> {
    let streams = params.boolean("stream")?.unwrap_or(false);
    let Some(mut options) = params.object("stream_options")? else {
        return Ok(if streams { Delivery::Stream } else { Delivery::Whole });
    };
    if !streams {
        return Err(ApiError::of_param("stream_options", "'stream_options' needs 'stream': true"));
    }
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    options.absent("include_obfuscation", "events are as long as their text", is_nothing)?;
    options.absent("continuous_usage_stats", "usage is known at the end", |value| value == false)?;
    options.finish()?;
    Ok(if usage { Delivery::StreamWithUsage } else { Delivery::Stream })
}

/// The text of a message: a string, or a list of parts whose types are among these.
pub(crate) fn text_of(content: Value, at: &str, types: &[&str]) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            return Err(ApiError::of_param(
                at,
                format!("'{at}' must be a string or a list of parts, not {}", kind(&other)),
            ));
        }
    };
    let part = |(i, part)| text_of_part(part, &format!("{at}[{i}]"), types);
    let texts: Vec<String> = parts.into_iter().enumerate().map(part).collect::<Result<_>>()?;
    Ok(texts.join("\n"))
}

/// The text of one part of a message.
pub(crate) fn text_of_part(part: Value, at: &str, types: &[&str]) -> Result<String> {
    let mut part = Params::of(part, at)?;
    let kind = part.string("type")?.unwrap_or_default();
    if !types.contains(&kind.as_str()) {
        let kind: String = kind.chars().take(40).collect();
        let why = format!("a part of type '{kind}'; a model here reads {}", types.join(" and "));
        return Err(ApiError::unsupported(at, &why));
    }
    let text = part.string("text")?.ok_or_else(|| ApiError::of_param(part.name("text"), "a part must have a text"))?;
    // Prompts are kept for others that begin alike, whatever is said of it.
    // Log-probabilities are of an answer that is sent back.
    part.without_effect(&["cache_control", "logprobs"]);
    for name in ["annotations", "citations"] {
        part.absent(name, "only the text of a message is read", is_nothing)?;
    }
    part.finish()?;
    Ok(text)
}

/// The text and the bytes of one token.
pub(crate) fn token(model: &Model, id: u32) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    model.tokenizer().token_bytes(id, SpecialTokens::Show, &mut bytes);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// A log-probability as answers have it: as in OpenAI's API, -9999 for what is not possible.
pub(crate) fn log_prob(log_prob: f32) -> Value {
    const NEVER: f32 = -9999.0;
    // A device that is not as it should be may give anything.
    if log_prob.is_nan() { NEVER.into() } else { log_prob.clamp(NEVER, 0.0).into() }
}

/// A token with its log-probability, and with those of the most probable ones in its place.
pub(crate) fn log_prob_of(model: &Model, id: u32, own: f32, top: &[(u32, f32)]) -> Value {
    let one = |id: u32, own: f32| {
        let (text, bytes) = token(model, id);
        json!({"token": text, "logprob": log_prob(own), "bytes": bytes})
    };
    let mut whole = one(id, own);
    whole["top_logprobs"] = top.iter().map(|&(id, own)| one(id, own)).collect();
    whole
}

/// The most probable tokens that came with the token of this number, of which so many are wanted.
pub(crate) fn top(text: &Generation, number: usize, most: usize) -> &[(u32, f32)] {
    first(text.top_log_probs.get(number).map_or(&[], Vec::as_slice), most)
}

/// The first ones, if there are more.
pub(crate) fn first(top: &[(u32, f32)], most: usize) -> &[(u32, f32)] {
    top.get(..most).unwrap_or(top)
}

/// Tokens of a request that are given as numbers, all of them the model's.
pub(crate) fn ids(list: &[Value], at: &str, n_vocab: usize) -> Result<Vec<u32>> {
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_vocab);
        id.ok_or_else(|| {
            ApiError::of_param(
                format!("{at}[{i}]"),
                format!("'{at}[{i}]' must be a token from 0 to {}", n_vocab.saturating_sub(1)),
            )
        })
    };
    list.iter().enumerate().map(id).collect()
}
