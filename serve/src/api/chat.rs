//! `/v1/chat/completions`.

use super::common::{
    Delivery, FINGERPRINT, Used, call_id, end_chunks, finish_reason_with, first, id, is_of_text, log_prob_of, now,
    take_absent, take_delivery, text_of, top,
};
use crate::answer_parser::{Call, Part, Splitter, Whole};
use crate::body;
use crate::chat::Chat;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::form::{self, Wanted};
use crate::limits::MESSAGES;
use crate::params::{Params, is_nothing};
use crate::queue::Client;
use crate::service::Service;
use crate::settings::{Settings, take_bias, take_n};
use crate::stream::{self, Out, Writer, data};
use crate::style::Style;
use crate::template::TemplateVariables;
use crate::tools::{History, Offer, take_calls};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use outboard::llm::N_TOP;
use outboard::{Message, Model, Piece};
use serde_json::{Value, json};

/// What is asked for.
struct Asked {
    chat: Chat,
    settings: Settings,
    delivery: Delivery,
    form: Option<Wanted>,
}

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, params, room) = body::read(service, request).await?;
    let Asked { chat, mut settings, delivery, form } = parse(&service, params)?;
    if delivery == Delivery::Whole {
        settings.check_log_probs(settings.n, service.context())?;
    }
    let (answers, splitter) = chat.begin(&service, &client, room, form, &mut settings).await?;
    let (id, created, prompt_tokens) = (id("chatcmpl-"), now(), answers.prompt_tokens);
    let (model, style) = (service.model().clone(), service.style().clone());
    let head = Head { id, created, model, style, name: service.name().to_owned() };
    if delivery != Delivery::Whole {
        let writer = Chunks {
            head,
            with_usage: delivery == Delivery::StreamWithUsage,
            log_probs: settings.log_probs,
            ends_at_eog: !settings.ignore_eos,
            texts: vec![(splitter, 0); settings.n],
            used: Used::by(prompt_tokens, settings.n),
        };
        return Ok(stream::respond(answers, writer));
    }
    let texts = Whole::all(answers, &splitter).await?;
    let mut used = Used::by(prompt_tokens, settings.n);
    for (number, whole) in texts.iter().enumerate() {
        used.add(number, &whole.text);
        used.add_reasoning(whole.reasoning_tokens, &head.style);
    }
    let choices: Vec<Value> = texts.iter().enumerate().map(|(i, text)| choice(&head, &settings, i, text)).collect();
    let mut body = head.object("chat.completion", choices.into());
    body["usage"] = used.openai();
    json_answer(body.to_string(), service.rooms().enter(client))
}

fn parse(service: &Service, mut params: Params) -> Result<Asked> {
    let mut settings = Settings::take(&mut params, &["max_tokens", "max_completion_tokens", "n_predict"], "stop", 1)?;
    settings.n = take_n(&mut params)?;
    settings.bias = take_bias(&mut params, service.model().tokenizer().n_vocab())?;
    settings.log_probs = take_log_probs(&mut params)?;
    let delivery = take_delivery(&mut params)?;
    let offer = Offer::of_chat(&mut params, service.style())?;
    let form = form::take(&mut params)?;
    let mut template = TemplateVariables::take(service.model(), service.style(), &mut params)?;
    template.take_effort(&mut params, "reasoning_effort")?;
    let variables = template.variables;
    params.absent("best_of", "all texts are given", |value| value == 1)?;
    let apart = |value: &Value| value == "auto" || value == "deepseek";
    params.absent("reasoning_format", "reasoning is 'reasoning_content', apart from the answer", apart)?;
    params.absent("include_reasoning", "an answer has the reasoning of its model", |value| value == true)?;
    take_absent(&mut params)?;
    let goes_on = takes_opening(&mut params)?;
    let list = params.required_list("messages", MESSAGES)?;
    params.finish()?;
    let mut history = messages(list, service.style())?;
    let opening = if goes_on { history.take_opening()?.ok_or_else(no_opening)? } else { String::new() };
    Ok(Asked { chat: Chat { messages: history.messages, variables, offer, opening }, settings, delivery, form })
}

/// Whether the answer goes on from the last message, in vLLM's words.
fn takes_opening(params: &mut Params) -> Result<bool> {
    let goes_on = params.boolean("continue_final_message")?.unwrap_or(false);
    let begins = params.boolean("add_generation_prompt")?.unwrap_or(!goes_on);
    if begins == goes_on {
        let why = "an answer is a new one, or goes on from the last message: 'add_generation_prompt' is false where 'continue_final_message' is true";
        return Err(ApiError::of_param("add_generation_prompt", why));
    }
    Ok(goes_on)
}

fn no_opening() -> ApiError {
    ApiError::of_param("messages", "with 'continue_final_message' the last message must be the assistant's")
}

/// Whether log-probabilities are wanted, and how many of the most probable tokens beside each.
fn take_log_probs(params: &mut Params) -> Result<Option<usize>> {
    let wanted = params.boolean("logprobs")?.unwrap_or(false);
    let top = params.count("top_logprobs", 0..=N_TOP as i64)?.unwrap_or(0);
    if top > 0 && !wanted {
        return Err(ApiError::of_param("top_logprobs", "'top_logprobs' needs 'logprobs' to be true"));
    }
    Ok(wanted.then_some(top))
}

/// The messages of a chat.
fn messages(list: Vec<Value>, style: &Style) -> Result<History<'_>> {
    if list.is_empty() {
        return Err(ApiError::of_param("messages", "'messages' must have one message at least"));
    }
    let mut history = History::new(style);
    for (i, value) in list.into_iter().enumerate() {
        message(Params::of(value, &format!("messages[{i}]"))?, &mut history)?;
    }
    Ok(history)
}

fn message(mut params: Params, history: &mut History<'_>) -> Result<()> {
    let role = params.string("role")?.unwrap_or_default();
    let role = match role.as_str() {
        "system" | "user" => role,
        // What it is called for models that templates do not know of.
        "developer" => "system".to_owned(),
        "assistant" => return of_assistant(params, history),
        "tool" => return result(params, history),
        "function" => {
            return Err(ApiError::unsupported(params.name("role"), "it is of an earlier form of the API; use 'tool'"));
        }
        _ => {
            let name = params.name("role");
            return Err(ApiError::of_param(
                name.clone(),
                format!("'{name}' must be system, developer, user, assistant or tool"),
            ));
        }
    };
    only_text(&mut params, &["tool_calls", "tool_call_id"])?;
    // Templates have no names of speakers, and prompts are kept for others that begin alike whatever is said of it.
    params.without_effect(&["name", "cache_control"]);
    let (at, content) = (params.name("content"), params.required("content")?);
    params.finish()?;
    history.push(Message::new(role, text_of(content, &at, &["text"])?), &at)
}

/// What templates do not get.
fn only_text(params: &mut Params, names: &[&str]) -> Result<()> {
    for name in names.iter().chain(&["function_call", "audio", "images", "refusal", "annotations"]) {
        params.absent(
            name,
            "templates get the role and the text of a message, and calls of the assistant's",
            is_nothing,
        )?;
    }
    Ok(())
}

/// A message of the assistant's, which may have calls in place of a text. Programs send back what some server has given them: what else is in it was not for the model.
fn of_assistant(mut params: Params, history: &mut History<'_>) -> Result<()> {
    params.absent("function_call", "it is of an earlier form of the API; use 'tool_calls'", is_nothing)?;
    let (at, at_calls) = (params.name("content"), params.name("tool_calls"));
    // Whether they mean something to the model comes before what is wrong in them.
    let calls = take_calls(&mut params, history).or_else(|e| history.check(&at_calls).and(Err(e)))?;
    let content = if calls.is_empty() { Some(params.required("content")?) } else { params.take("content") };
    let content = content.map(|content| text_of(content, &at, &["text"])).transpose()?.unwrap_or_default();
    // vLLM and OpenRouter have the other name.
    let reasoning = params.string("reasoning_content")?.or(params.string("reasoning")?).unwrap_or_default();
    history.push(Message { calls, reasoning, ..Message::new("assistant", content) }, &at_calls)
}

/// What a tool has answered.
fn result(mut params: Params, history: &mut History<'_>) -> Result<()> {
    history.check(&params.name("role"))?;
    only_text(&mut params, &["tool_calls"])?;
    // The name is that of the call.
    params.without_effect(&["name", "cache_control"]);
    let (at, at_id) = (params.name("content"), params.name("tool_call_id"));
    let (id, content) = (params.required_string("tool_call_id")?, params.required("content")?);
    params.finish()?;
    history.push_result(&id, text_of(content, &at, &["text"])?, &at_id)
}

/// What all parts of an answer begin with.
struct Head {
    id: String,
    created: u64,
    model: Model,
    style: Style,
    name: String,
}

impl Head {
    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.name,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }

    fn call(&self, call: &Call) -> Value {
        let function = json!({"name": call.name, "arguments": call.json()});
        json!({"id": call_id("call_", &self.style), "type": "function", "function": function})
    }
}

fn choice(head: &Head, settings: &Settings, index: usize, whole: &Whole) -> Value {
    let text = &whole.text;
    let log_probs = settings.log_probs.map(|most| {
        let all = text.tokens.iter().zip(&text.log_probs).enumerate();
        let of_text = all.filter(|(_, (id, _))| is_of_text(head.model.tokenizer(), **id, settings.ignore_eos));
        let content: Vec<Value> =
            of_text.map(|(i, (&id, &own))| log_prob_of(&head.model, id, own, top(text, i, most))).collect();
        json!({"content": content, "refusal": null})
    });
    let calls: Vec<Value> = whole.calls().map(|call| head.call(call)).collect();
    let finish = finish_reason_with(text.finish, !calls.is_empty());
    let mut message = json!({"role": "assistant", "content": whole.said(), "refusal": null});
    let reasoning = whole.reasoning();
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = calls.into();
    }
    json!({"index": index, "message": message, "logprobs": log_probs, "finish_reason": finish})
}

/// An answer as it comes.
struct Chunks {
    head: Head,
    with_usage: bool,
    log_probs: Option<usize>,
    ends_at_eog: bool,
    /// What takes each text apart, and how many calls there were.
    texts: Vec<(Splitter, usize)>,
    used: Used,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.with_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: &Value, log_probs: &Value, finish: Option<&str>) -> Event {
        data(&self.chunk(json!([{"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": finish}])))
    }

    /// What a part adds to a message. A call, with this number, comes with its id and name first, and then its arguments.
    fn deltas(&self, part: Part, number: usize) -> Vec<Value> {
        match part {
            Part::Text(text) => vec![json!({"content": text})],
            Part::Reasoning(text) => vec![json!({"reasoning_content": text})],
            Part::Call(call) => {
                let mut first = self.head.call(&call);
                first["index"] = number.into();
                let arguments = std::mem::replace(&mut first["function"]["arguments"], "".into());
                let rest = json!({"index": number, "function": {"arguments": arguments}});
                vec![json!({"tool_calls": [first]}), json!({"tool_calls": [rest]})]
            }
        }
    }
}

impl Writer for Chunks {
    fn begin(&mut self, out: &mut Out) {
        let first = json!({"role": "assistant", "content": ""});
        out.extend((0..self.texts.len()).map(|index| self.delta(index, &first, &Value::Null, None)));
    }

    fn piece(&mut self, number: usize, piece: Piece, out: &mut Out) {
        let log_prob = match (piece.token, piece.log_prob) {
            (Some(id), Some(log_prob)) if is_of_text(self.head.model.tokenizer(), id, !self.ends_at_eog) => {
                let most = self.log_probs.unwrap_or(0);
                Some(log_prob_of(&self.head.model, id, log_prob, first(&piece.top_log_probs, most)))
            }
            _ => None,
        };
        let Some((splitter, calls)) = self.texts.get_mut(number) else { return };
        let parts = splitter.piece(&piece);
        let (reasoning, first) = (splitter.reasoning_tokens, *calls);
        *calls += parts.iter().filter(|part| matches!(part, Part::Call(_))).count();
        let (mut next, called) = (first, *calls > 0);
        let mut deltas = Vec::new();
        for part in parts {
            let is_call = matches!(part, Part::Call(_));
            deltas.extend(self.deltas(part, next));
            next += usize::from(is_call);
        }
        // A token that gives nothing now has a probability all the same.
        if deltas.is_empty() && self.log_probs.is_some() && log_prob.is_some() {
            deltas.push(json!({"content": ""}));
        }
        let mut log_probs = log_prob.map_or(Value::Null, |one| json!({"content": [one], "refusal": null}));
        for delta in deltas {
            out.push_back(self.delta(number, &delta, &log_probs, None));
            log_probs = Value::Null;
        }
        if let Some(end) = piece.end {
            self.used.add(number, &end);
            self.used.add_reasoning(reasoning, &self.head.style);
            let finish = finish_reason_with(end.finish, called);
            out.push_back(self.delta(number, &json!({}), &Value::Null, Some(finish)));
        }
    }

    fn end(&mut self, out: &mut Out) {
        end_chunks(self.with_usage.then(|| self.chunk(json!([]))), self.used, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        out.push_back(data(&error.openai()));
    }
}
