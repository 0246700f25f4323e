//! `/v1/completions`.

use super::common::{
    Delivery, FINGERPRINT, Used, end_chunks, finish_reason, first, id, ids, is_of_text, log_prob, now, take_absent,
    take_delivery, token, top,
};
use crate::body;
use crate::counted_body::json_answer;
use crate::engine::UnderWay;
use crate::error::{ApiError, Result};
use crate::form::{self, Wanted};
use crate::limits::TEXTS;
use crate::params::{Params, kind};
use crate::queue::Client;
use crate::reading::Scored;
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
    echo: Echo,
    form: Option<Wanted>,
}

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// What an answer has of its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    Nothing,
    Text,
    /// Its text, and how probable its tokens are.
    Scored,
}

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, params, room) = body::read(service, request).await?;
    let Asked { prompts, mut settings, delivery, echo, form } = parse(&service, params)?;
    let asked = prompts.len() * settings.n;
    if echo == Echo::Scored {
        service.check_room(&client, service.engine().lanes(prompts.len()))?;
    } else {
        if delivery == Delivery::Whole {
            settings.check_log_probs(asked, service.context()).map_err(|e| e.about("logprobs"))?;
        }
        service.check_room(&client, asked)?;
    }
    settings.constraint = form::compile(&service, &room, form.as_ref()).await?;
    let prompts = encode(&service, &room, prompts).await?;
    drop(room);
    let model = service.model().clone();
    let mut prompts = Prompts { model, tokens: prompts, echo, scores: Vec::new(), held: None };
    // Between its prompts and its texts as well, so that a server that stops waits for it.
    let _under_way = (echo == Echo::Scored).then(|| UnderWay::new(service.engine()));
    if echo == Echo::Scored {
        score(&service, &client, &mut prompts, &settings, delivery).await?;
    }
    let answers = match echo {
        Echo::Scored => service.engine().go_on(&client, &prompts.tokens, &settings),
        Echo::Nothing | Echo::Text => service.begin(&client, &prompts.tokens, &settings)?,
    };
    let used = Used::by(answers.prompt_tokens, settings.n);
    let head = Head {
        id: id("cmpl-"),
        created: now(),
        name: service.name().to_owned(),
        // Programs that rank texts count: the token that ends one is there, too.
        lists_end: settings.ignore_eos || echo == Echo::Scored,
        n: settings.n,
        log_probs: settings.log_probs,
        prompts,
    };
    if delivery != Delivery::Whole {
        let with_usage = delivery == Delivery::StreamWithUsage;
        let (offsets, begun) = (vec![0; answers.count], 0);
        return Ok(stream::respond(answers, Chunks { head, with_usage, offsets, begun, used }));
    }
    let texts = answers.complete().await?;
    json_answer(head.whole(&texts, used).to_string(), service.rooms().enter(client))
}

/// The prompts of a request, and what is known of them.
struct Prompts {
    model: Model,
    tokens: Vec<Vec<u32>>,
    echo: Echo,
    /// How probable the tokens of each are, if that was asked.
    scores: Vec<Scores>,
    /// The room that they take.
    held: Option<Room>,
}

/// Asks how probable the tokens of prompts are, if the texts behind them could begin, and if an answer has so many numbers.
async fn score(
    service: &Service,
    client: &Client,
    prompts: &mut Prompts,
    settings: &Settings,
    delivery: Delivery,
) -> Result<()> {
    service.engine().check(&prompts.tokens, settings)?;
    let generated = if delivery == Delivery::Whole { settings.generated(service.context()) } else { 0 };
    let tokens = |prompt: &Vec<u32>| (prompt.len() + generated).saturating_mul(settings.n);
    let tokens: usize = prompts.tokens.iter().map(tokens).sum();
    let advice = "ask for fewer or shorter prompts, fewer tokens or fewer texts at once";
    settings.check_log_probs_of(tokens, advice).map_err(|e| e.about("logprobs"))?;
    let top = settings.log_probs.unwrap_or(0);
    let scored: usize = prompts.tokens.iter().map(Vec::len).sum();
    let mut held = service.rooms().enter(client.clone());
    held.grow(scored.saturating_mul(size_of::<f32>() + top * size_of::<(u32, f32)>()))?;
    let scored = Scored { tokens: prompts.tokens.clone(), top, cache_salt: settings.cache_salt.clone() };
    prompts.scores = service.read(client, scored).await?;
    prompts.held = Some(held);
    Ok(())
}

impl Prompts {
    /// What the answer behind this prompt begins with. Of each token so many others are wanted beside it.
    fn echoed(&self, number: usize, most: usize) -> Echoed {
        let Some(tokens) = self.tokens.get(number).filter(|_| self.echo != Echo::Nothing) else {
            return Echoed::default();
        };
        let text = self.model.tokenizer().decode(tokens, SpecialTokens::Skip);
        let log_probs = self.scores.get(number).map(|scores| {
            let mut all = LogProbList { most, ..LogProbList::default() };
            for (at, &id) in tokens.iter().enumerate() {
                // Of the first one nothing is known.
                let own = at.checked_sub(1).and_then(|at| Some((at, *scores.log_probs.get(at)?)));
                match own {
                    None => all.push_token(&self.model, id, Value::Null, Value::Null),
                    Some((at, own)) => {
                        all.push(&self.model, id, own, scores.top(at));
                    }
                }
            }
            all
        });
        Echoed { text, log_probs }
    }
}

/// What an answer begins with: nothing, or its prompt.
#[derive(Default)]
struct Echoed {
    text: String,
    /// Those of the prompt's tokens, if they were asked for.
    log_probs: Option<LogProbList>,
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
    let echo = match (params.boolean("echo")?.unwrap_or(false), settings.log_probs) {
        (false, _) => Echo::Nothing,
        (true, None) => Echo::Text,
        (true, Some(_)) => Echo::Scored,
    };
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

/// What all parts of an answer have in common.
struct Head {
    id: String,
    created: u64,
    name: String,
    /// Whether the token that ends a text is among those with log-probabilities.
    lists_end: bool,
    /// Texts behind each prompt.
    n: usize,
    /// How many of the most probable tokens are wanted beside each, if log-probabilities are.
    log_probs: Option<usize>,
    prompts: Prompts,
}

impl Head {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.name,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }

    fn model(&self) -> &Model {
        &self.prompts.model
    }

    /// Whether a token is listed with its log-probability.
    fn lists(&self, id: u32) -> bool {
        is_of_text(self.model().tokenizer(), id, self.lists_end)
    }

    /// What the text of this number begins with.
    fn echoed(&self, number: usize) -> Echoed {
        self.prompts.echoed(number / self.n.max(1), self.log_probs.unwrap_or(0))
    }

    /// The answer, when all texts are there.
    fn whole(&self, texts: &[Generation], mut used: Used) -> Value {
        let choices: Vec<Value> = texts.iter().enumerate().map(|(number, text)| self.choice(number, text)).collect();
        texts.iter().enumerate().for_each(|(number, text)| used.add(number, text));
        let mut body = self.object(choices.into());
        body["usage"] = self.used(used).openai();
        body
    }

    fn choice(&self, number: usize, text: &Generation) -> Value {
        let Echoed { text: before, log_probs } = self.echoed(number);
        let log_probs = self.log_probs.map(|most| {
            let mut all = LogProbList { most, offset: before.chars().count(), ..log_probs.unwrap_or_default() };
            for (i, (&id, &own)) in text.tokens.iter().zip(&text.log_probs).enumerate() {
                if self.lists(id) {
                    all.push(self.model(), id, own, top(text, i, most));
                }
            }
            all.json()
        });
        let (whole, finish) = (format!("{before}{}", text.text), finish_reason(text.finish));
        json!({"index": number, "text": whole, "logprobs": log_probs, "finish_reason": finish})
    }

    /// What was used: a prompt whose tokens were asked about was read as a whole.
    fn used(&self, mut used: Used) -> Used {
        if self.prompts.echo == Echo::Scored {
            used.cached = 0;
        }
        used
    }
}

/// Log-probabilities of tokens that follow one another.
#[derive(Default)]
struct LogProbList {
    /// How many of the most probable tokens are wanted beside each.
    most: usize,
    /// Characters before the next token.
    offset: usize,
    tokens: Vec<String>,
    own: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

impl LogProbList {
    fn push(&mut self, model: &Model, id: u32, own: f32, top: &[(u32, f32)]) {
        let mut by_text = Map::new();
        // Some tokens have the same text; the most probable one comes first. The one that was chosen is always there.
        for &(id, log_prob_of) in top.iter().chain((self.most > 0).then_some(&(id, own))) {
            by_text.entry(token(model, id).0).or_insert_with(|| log_prob(log_prob_of));
        }
        self.push_token(model, id, log_prob(own), by_text.into());
    }

    fn push_token(&mut self, model: &Model, id: u32, own: Value, top: Value) {
        self.tokens.push(token(model, id).0);
        self.own.push(own);
        self.top.push(top);
        self.offsets.push(self.offset);
        let mut shown = Vec::new();
        model.tokenizer().token_bytes(id, SpecialTokens::Skip, &mut shown);
        // Some tokens have a part of a character, which has one byte that is not like these.
        self.offset += shown.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
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
    /// Characters of each text so far.
    offsets: Vec<usize>,
    /// Texts whose beginning is under way.
    begun: usize,
    used: Used,
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
        let (Some(offset), Some(most)) = (self.offsets.get_mut(number), self.head.log_probs) else {
            return Value::Null;
        };
        let mut one = LogProbList { most, offset: *offset, ..LogProbList::default() };
        one.push(self.head.model(), id, own, first(top, most));
        *offset = one.offset;
        one.json()
    }
}

impl Writer for Chunks {
    /// The prompts, one after another.
    fn go_on_beginning(&mut self, out: &mut Out) {
        while out.is_empty() && self.begun < self.offsets.len() {
            let number = self.begun;
            self.begun += 1;
            let Echoed { text, log_probs } = self.head.echoed(number);
            self.offsets[number] = text.chars().count();
            if !text.is_empty() || log_probs.is_some() {
                let log_probs = log_probs.map_or(Value::Null, LogProbList::json);
                out.push_back(self.part(number, &text, &log_probs, None));
            }
        }
    }

    fn piece(&mut self, number: usize, piece: Piece, out: &mut Out) {
        let log_probs = match (piece.token, piece.log_prob) {
            (Some(id), Some(log_prob)) if self.head.lists(id) => {
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
        let used = self.head.used(self.used);
        end_chunks(self.with_usage.then(|| self.chunk(json!([]))), used, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Out) {
        out.push_back(data(&error.openai()));
    }
}
