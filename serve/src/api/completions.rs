//! `/v1/completions`.

use super::common::{
    Delivery, FINGERPRINT, Used, end_chunks, finish_reason, first, id, ids, is_of_text, log_prob, now, take_absent,
    take_delivery, token, top,
};
use crate::body;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::form::{self, Wanted};
use crate::limits::TEXTS;
use crate::params::{Params, kind};
use crate::queue::Client;
use crate::reading::{Beside, Scored};
use crate::room::Room;
use crate::service::Service;
use crate::settings::{Settings, take_bias, take_n};
use crate::stream::{self, Out, Writer, data};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use outboard::llm::N_TOP;
use outboard::llm::tokenizer::SpecialTokens;
use outboard::{Generation, Model, Piece, Scores};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What is asked for.
struct Asked {
    prompts: Vec<Prompt>,
    settings: Settings,
    delivery: Delivery,
    echo: bool,
    form: Option<Wanted>,
}

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, params, room) = body::read(service, request).await?;
    let Asked { prompts, mut settings, delivery, echo, form } = parse(&service, params)?;
    let asked = prompts.len() * settings.n;
    if delivery == Delivery::Whole {
        settings.check_log_probs(asked, service.context()).map_err(|e| e.about("logprobs"))?;
    }
    let scores_prompts = echo && settings.log_probs.is_some();
    service.check_room(&client, asked)?;
    settings.constraint = form::compile(&service, &room, form.as_ref()).await?;
    let prompts = encode(&service, &room, prompts).await?;
    drop(room);
    let PromptScores { scores, held } = match scores_prompts {
        true => score(&service, &client, &prompts, &settings, delivery).await?,
        false => PromptScores::default(),
    };
    let answers = service.begin(&client, &prompts, &settings)?;
    let (prompt_tokens, count) = (answers.prompt_tokens, answers.count);
    let model = service.model().clone();
    let echo = |(number, prompt): (usize, &Vec<u32>)| {
        if echo { Echoed::of(&model, prompt, scores.get(number).zip(settings.log_probs)) } else { Echoed::default() }
    };
    // What each begins with.
    let echoed = prompts.iter().enumerate().map(echo);
    let before: Vec<Echoed> = echoed.flat_map(|e| std::iter::repeat_n(e, settings.n)).take(count).collect();
    let name = service.name().to_owned();
    // Programs that rank texts count: the token that ends one is there, too.
    let lists_end = settings.ignore_eos || scores_prompts;
    let head = Head { id: id("cmpl-"), created: now(), name, lists_end, model: model.clone() };
    if delivery != Delivery::Whole {
        let with_usage = delivery == Delivery::StreamWithUsage;
        let offsets = before.iter().map(|echoed| echoed.text.chars().count()).collect();
        let used = Used::by(prompt_tokens, settings.n);
        let log_probs = settings.log_probs;
        let writer = Chunks { head, with_usage, log_probs, before, offsets, used, _held: held };
        return Ok(stream::respond(answers, writer));
    }
    let texts = answers.complete().await?;
    let mut used = Used::by(prompt_tokens, settings.n);
    texts.iter().enumerate().for_each(|(number, text)| used.add(number, text));
    let choice = |(index, (before, text)): (usize, (Echoed, &Generation))| {
        let (whole, finish) = (format!("{}{}", before.text, text.text), finish_reason(text.finish));
        let log_probs = settings.log_probs.map(|most| head.log_probs(before, text, most));
        json!({"index": index, "text": whole, "logprobs": log_probs, "finish_reason": finish})
    };
    let choices: Vec<Value> = before.into_iter().zip(&texts).enumerate().map(choice).collect();
    let mut body = head.object(choices.into());
    body["usage"] = used.openai();
    json_answer(body.to_string(), service.rooms().enter(client))
}

/// How probable the tokens of prompts are.
#[derive(Default)]
struct PromptScores {
    /// Of each prompt; none if nobody has asked.
    scores: Vec<Scores>,
    /// The room that they take until they are sent.
    held: Option<Room>,
}

/// Asks how probable the tokens of prompts are, if the texts behind them could begin, and if an answer has so many numbers.
async fn score(
    service: &Service,
    client: &Client,
    prompts: &[Vec<u32>],
    settings: &Settings,
    delivery: Delivery,
) -> Result<PromptScores> {
    service.engine().check(prompts, settings)?;
    let generated = if delivery == Delivery::Whole { settings.generated(service.context()) } else { 0 };
    let tokens: usize = prompts.iter().map(|prompt| (prompt.len() + generated).saturating_mul(settings.n)).sum();
    let advice = "ask for fewer or shorter prompts at once";
    settings.check_log_probs_of(tokens, advice).map_err(|e| e.about("logprobs"))?;
    let (beside, top) = if settings.log_probs > Some(0) { (Beside::MostProbable, N_TOP) } else { (Beside::Nothing, 0) };
    let each = size_of::<f32>() + size_of::<Vec<(u32, f32)>>() + top * size_of::<(u32, f32)>();
    let mut held = service.rooms().enter(client.clone());
    held.grow(tokens.saturating_mul(each))?;
    let (tokens, cache_salt) = (prompts.to_vec(), settings.cache_salt.clone());
    let scores = service.read(client, Scored { tokens, beside, cache_salt }).await?;
    Ok(PromptScores { scores, held: Some(held) })
}

fn parse(service: &Service, mut params: Params) -> Result<Asked> {
    const MOST: [&str; 2] = ["max_tokens", "n_predict"];
    let says_most = MOST.iter().any(|name| params.seen(name).is_some());
    let mut settings = Settings::take(&mut params, &MOST, "stop", 0)?;
    if !says_most {
        // As OpenAI's API has it; programs that want more say so.
        settings.most = Some(16);
    }
    settings.n = take_n(&mut params)?;
    settings.bias = take_bias(&mut params, service.model().tokenizer().n_vocab())?;
    let best_of = params.count("best_of", 1..=TEXTS as i64)?;
    if best_of.is_some_and(|best_of| best_of != settings.n) {
        return Err(ApiError::unsupported("best_of", "all texts are given; the only value is that of 'n'"));
    }
    settings.log_probs = take_log_probs(&mut params)?;
    let echo = params.boolean("echo")?.unwrap_or(false);
    params.absent("suffix", "texts are written from their beginning", |value| value == "")?;
    let delivery = take_delivery(&mut params)?;
    let form = form::take(&mut params)?;
    take_absent(&mut params)?;
    let prompts = prompts(params.required("prompt")?, service.model().tokenizer().n_vocab())?;
    params.finish()?;
    if prompts.len() * settings.n > TEXTS {
        let message = format!("{} prompts times 'n' {} is more than {TEXTS} texts", prompts.len(), settings.n);
        return Err(ApiError::of_param(if settings.n > 1 { "n" } else { "prompt" }, message));
    }
    Ok(Asked { prompts, settings, delivery, echo, form })
}

/// How many of the most probable tokens are wanted beside each, if log-probabilities are. `true` is understood as well.
fn take_log_probs(params: &mut Params) -> Result<Option<usize>> {
    match params.take("logprobs") {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(0)),
        Some(value) => {
            let most = value.as_u64().and_then(|most| usize::try_from(most).ok()).filter(|most| *most <= N_TOP);
            let wrong = || format!("'logprobs' must be a whole number from 0 to {N_TOP}");
            most.map(Some).ok_or_else(|| ApiError::of_param("logprobs", wrong()))
        }
    }
}

/// A text, several, the tokens of one, or of several.
fn prompts(value: Value, n_vocab: usize) -> Result<Vec<Prompt>> {
    let list = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(list) if !list.is_empty() => list,
        other => {
            let found = if other.is_array() { "an empty list" } else { kind(&other) };
            return Err(ApiError::of_param(
                "prompt",
                format!("'prompt' must be a string, tokens, or a list of them, not {found}"),
            ));
        }
    };
    if list.iter().all(Value::is_number) {
        return Ok(vec![Prompt::Tokens(ids(&list, "prompt", n_vocab)?)]);
    }
    if list.len() > TEXTS {
        return Err(ApiError::of_param(
            "prompt",
            format!("'prompt' has {} texts, and at most {TEXTS} are taken", list.len()),
        ));
    }
    let one = |(i, value): (usize, Value)| match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(list) if !list.is_empty() => Ok(Prompt::Tokens(ids(&list, &format!("prompt[{i}]"), n_vocab)?)),
        _ => Err(ApiError::of_param(format!("prompt[{i}]"), format!("'prompt[{i}]' must be a string or tokens"))),
    };
    list.into_iter().enumerate().map(one).collect()
}

async fn encode(service: &Service, room: &Arc<Room>, prompts: Vec<Prompt>) -> Result<Vec<Vec<u32>>> {
    let encode = |model: &Model, prompt| match prompt {
        Prompt::Text(text) => model.encode(&text).map_err(|e| ApiError::from(e).about("prompt")),
        Prompt::Tokens(tokens) => Ok(tokens),
    };
    service.work(room, move |model| prompts.into_iter().map(|prompt| encode(model, prompt)).collect()).await
}

/// What all parts of an answer begin with.
struct Head {
    id: String,
    created: u64,
    name: String,
    /// Whether the token that ends a text is among those with log-probabilities.
    lists_end: bool,
    model: Model,
}

impl Head {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.name,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }

    fn log_probs(&self, before: Echoed, text: &Generation, most: usize) -> Value {
        let offset = before.text.chars().count();
        let mut all = LogProbs { most, offset, ..before.log_probs.unwrap_or_default() };
        for (i, (&id, &own)) in text.tokens.iter().zip(&text.log_probs).enumerate() {
            if is_of_text(self.model.tokenizer(), id, self.lists_end) {
                all.push(&self.model, id, own, top(text, i, most));
            }
        }
        all.json()
    }
}

/// What an answer begins with: nothing, or the prompt.
#[derive(Clone, Default)]
struct Echoed {
    text: String,
    /// Those of the prompt's tokens, if they were asked for.
    log_probs: Option<LogProbs>,
}

impl Echoed {
    /// A prompt. Of its tokens so many others are wanted beside each.
    fn of(model: &Model, prompt: &[u32], scores: Option<(&Scores, usize)>) -> Echoed {
        let text = model.tokenizer().decode(prompt, SpecialTokens::Skip);
        let log_probs = scores.map(|(scores, most)| {
            let mut all = LogProbs { most, ..LogProbs::default() };
            for (at, &id) in prompt.iter().enumerate() {
                match at.checked_sub(1).and_then(|behind| Some((behind, *scores.log_probs.get(behind)?))) {
                    Some((behind, own)) => {
                        let top = scores.top_log_probs.get(behind).map_or(&[][..], Vec::as_slice);
                        all.push(model, id, own, first(top, most));
                    }
                    None => all.push_first(model, id),
                }
            }
            all.offsets = offsets(model, prompt, text.chars().count());
            all
        });
        Echoed { text, log_probs }
    }
}

/// Where the tokens of a prompt begin in its text, which has so many characters: tokens that are not shown have none, and some share one.
fn offsets(model: &Model, prompt: &[u32], length: usize) -> Vec<usize> {
    let (mut offsets, mut at, mut bytes) = (Vec::with_capacity(prompt.len()), 0, Vec::new());
    for &id in prompt {
        offsets.push(at);
        bytes.clear();
        model.tokenizer().token_bytes(id, SpecialTokens::Skip, &mut bytes);
        // In UTF-8 a character has one byte that is not like these.
        at += bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    }
    // Some texts are shown without the blank that they begin with.
    let hidden = at.saturating_sub(length);
    offsets.iter_mut().for_each(|offset| *offset = offset.saturating_sub(hidden));
    offsets
}

/// Log-probabilities of tokens that follow one another.
#[derive(Clone, Default)]
struct LogProbs {
    /// How many of the most probable tokens are wanted beside each.
    most: usize,
    /// Characters before the next token.
    offset: usize,
    tokens: Vec<String>,
    own: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

impl LogProbs {
    fn push(&mut self, model: &Model, id: u32, own: f32, top: &[(u32, f32)]) {
        let mut by_text = Map::new();
        // Some tokens have the same text; the most probable one comes first. The one that was chosen is always there.
        for &(id, log_prob_of) in top.iter().chain((self.most > 0).then_some(&(id, own))) {
            by_text.entry(token(model, id).0).or_insert_with(|| log_prob(log_prob_of));
        }
        self.push_token(model, id, log_prob(own), by_text.into());
    }

    /// A token before which there is nothing: of it nothing is known.
    fn push_first(&mut self, model: &Model, id: u32) {
        self.push_token(model, id, Value::Null, Value::Null);
    }

    fn push_token(&mut self, model: &Model, id: u32, own: Value, top: Value) {
        let (token, _) = token(model, id);
        self.offsets.push(self.offset);
        self.offset += token.chars().count();
        self.tokens.push(token);
        self.own.push(own);
        self.top.push(top);
    }

    fn json(self) -> Value {
        let top = (self.most > 0).then_some(self.top);
        json!({"tokens": self.tokens, "token_logprobs": self.own, "top_logprobs": top, "text_offset": self.offsets})
    }
}

/// An answer as it comes.
struct Chunks {
    head: Head,
    with_usage: bool,
    log_probs: Option<usize>,
    before: Vec<Echoed>,
    /// Characters of each text so far.
    offsets: Vec<usize>,
    used: Used,
    /// What the beginnings take.
    _held: Option<Room>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object(choices);
        if self.with_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn part(&self, index: usize, text: &str, log_probs: &Value, finish: Option<&str>) -> Event {
        data(&self.chunk(json!([{"index": index, "text": text, "logprobs": log_probs, "finish_reason": finish}])))
    }

    fn log_prob(&mut self, number: usize, id: u32, own: f32, top: &[(u32, f32)]) -> Value {
        let (Some(offset), Some(most)) = (self.offsets.get_mut(number), self.log_probs) else { return Value::Null };
        let mut one = LogProbs { most, offset: *offset, ..LogProbs::default() };
        one.push(&self.head.model, id, own, first(top, most));
        *offset = one.offset;
        one.json()
    }
}

impl Writer for Chunks {
    fn begin(&mut self, out: &mut Out) {
        for (index, Echoed { text, log_probs }) in std::mem::take(&mut self.before).into_iter().enumerate() {
            if !text.is_empty() || log_probs.is_some() {
                let log_probs = log_probs.map_or(Value::Null, LogProbs::json);
                out.push_back(self.part(index, &text, &log_probs, None));
            }
        }
    }

    fn piece(&mut self, number: usize, piece: Piece, out: &mut Out) {
        let log_probs = match (piece.token, piece.log_prob) {
            (Some(id), Some(log_prob)) if is_of_text(self.head.model.tokenizer(), id, self.head.lists_end) => {
                self.log_prob(number, id, log_prob, &piece.top_log_probs)
            }
            _ => Value::Null,
        };
        if !piece.text.is_empty() || !log_probs.is_null() {
            out.push_back(self.part(number, &piece.text, &log_probs, None));
        }
        if let Some(end) = piece.end {
            self.used.add(number, &end);
            out.push_back(self.part(number, "", &Value::Null, Some(finish_reason(end.finish))));
        }
    }

    fn end(&mut self, out: &mut Out) {
        end_chunks(self.with_usage.then(|| self.chunk(json!([]))), self.used, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        out.push_back(data(&error.openai()));
    }
}
