//! From a prompt to a text.

use crate::arch::net::Sampling;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::stop::StopFilter;
use crate::tokenizer::{SpecialTokens, TextStream, Tokenizer};
use crate::watch::is_cancelled;
use outboard_core::op::{Penalties, Sampler};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens; `None` until the context is full.
    pub n_predict: Option<usize>,
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// What makes tokens less probable that were used a short while ago.
    pub penalties: Option<Penalties>,
    /// Goes on behind tokens that end a text.
    pub ignore_eos: bool,
    /// Strings that end it; they are not part of the text.
    pub stop: Vec<String>,
    /// Log-probabilities as well.
    pub log_probs: bool,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    Eos,
    /// A stop string came.
    Stop,
    /// As many tokens as asked for.
    #[default]
    Length,
    /// The context is full.
    Context,
    /// The caller ended it.
    Cancelled,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Generation {
    /// The text, without the prompt.
    pub text: String,
    /// Ids of the tokens, an end token included.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, if they were asked for.
    pub log_probs: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
    /// Time for the prompt, the first token included.
    pub prompt_time: Duration,
    /// Time for the tokens behind the first.
    pub decode_time: Duration,
}

/// Runs `prompt` and generates behind it. `on_text` gets the text as it comes and may end it.
pub fn generate(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    let mut out = Generation::default();
    let limit = options.n_predict.unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(out);
    }
    check_prompt(engine, prompt)?;
    let (start, before) = (Instant::now(), engine.n_past());
    let mut writer = Writer::new(tokenizer, options, on_text);
    let mut steps = Steps::begin(engine, prompt, options, limit);
    let mut decode_start = Instant::now();
    out.finish = loop {
        let Some((id, log_prob)) = steps.next(out.tokens.len())? else { break Finish::Cancelled };
        if out.tokens.is_empty() {
            out.prompt_time = start.elapsed();
            decode_start = Instant::now();
        }
        out.tokens.push(id);
        out.log_probs.extend(log_prob);
        if let Some(finish) = writer.push(id) {
            break finish;
        }
        if out.tokens.len() >= limit {
            break Finish::Length;
        }
        if steps.is_context_full() {
            break Finish::Context;
        }
    };
    out.decode_time = decode_start.elapsed();
    // As if it had never run too far: the last token has not gone through the model, those behind it never were.
    engine.truncate(before + prompt.len() + out.tokens.len().saturating_sub(1));
    (out.text, out.finish) = writer.finish(out.finish);
    Ok(out)
}

/// Whether the context has room for the prompt and a token behind it, and the model has its tokens.
fn check_prompt(engine: &Engine, prompt: &[u32]) -> Result<()> {
    let room = engine.n_ctx().saturating_sub(engine.n_past());
    if prompt.len() >= room {
        return Err(Error::Request(format!(
            "the prompt has {} tokens, but the context has room for {room} and one has to be left for the answer: make it \
             larger with -c, or the prompt shorter",
            prompt.len()
        )));
    }
    engine.check_vocabulary(prompt)
}

/// Steps of a generation, enqueued ahead, and taken up again after a fault.
struct Steps<'e> {
    engine: &'e mut Engine,
    sampling: Sampling,
    /// Most tokens.
    limit: usize,
    /// Tokens that were enqueued; the caller forgets those that the end of the text leaves unread.
    enqueued: usize,
    /// What became of the last step that was enqueued.
    last: Result<()>,
}

impl Steps<'_> {
    /// Enqueues the prompt, with the first token behind it.
    fn begin<'e>(engine: &'e mut Engine, prompt: &[u32], options: &GenerateOptions, limit: usize) -> Steps<'e> {
        let sampling = Sampling { sampler: options.sampler, penalties: options.penalties, log_prob: options.log_probs };
        let last = engine.prompt(prompt, sampling);
        Steps { engine, sampling, limit, enqueued: 1, last }
    }

    /// The next token, behind `came` others, and its log-probability; `None` if the run was cancelled.
    fn next(&mut self, came: usize) -> Result<Option<(u32, Option<f32>)>> {
        loop {
            self.enqueue_ahead();
            match std::mem::replace(&mut self.last, Ok(())).and_then(|()| self.engine.next_id()) {
                Ok(next) => return Ok(Some(next)),
                Err(e) if is_cancelled(&e) => return Ok(None),
                Err(e) => match self.engine.recover(e, self.sampling) {
                    Err(e) if !is_cancelled(&e) => return Err(e),
                    recovered => self.last = recovered,
                },
            }
            // The next token is under way again, nothing behind it.
            self.enqueued = came + 1;
        }
    }

    fn enqueue_ahead(&mut self) {
        while self.last.is_ok() && self.enqueued < self.limit && self.engine.has_time() && !self.is_at_end() {
            self.last = self.engine.step(self.sampling);
            self.enqueued += usize::from(self.last.is_ok());
        }
    }

    fn is_at_end(&self) -> bool {
        self.engine.n_past() >= self.engine.n_ctx()
    }

    /// Whether there is no room for a further token, and none under way.
    fn is_context_full(&self) -> bool {
        self.engine.under_way() == 0 && self.is_at_end()
    }
}

/// Turns tokens into text as they come: a character may need several of them, and what may be the beginning of a stop string waits.
struct Writer<'w> {
    tokenizer: &'w Tokenizer,
    ignore_eos: bool,
    stream: TextStream,
    filter: StopFilter,
    text: String,
    on_text: &'w mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl<'w> Writer<'w> {
    fn new(
        tokenizer: &'w Tokenizer,
        options: &GenerateOptions,
        on_text: &'w mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Writer<'w> {
        let (stream, filter) = (TextStream::new(), StopFilter::new(&options.stop));
        Writer { tokenizer, ignore_eos: options.ignore_eos, stream, filter, text: String::new(), on_text }
    }

    /// Takes a token; gives the reason if the text ends with it.
    fn push(&mut self, id: u32) -> Option<Finish> {
        if self.tokenizer.is_eog(id) && !self.ignore_eos {
            return Some(Finish::Eos);
        }
        let text = self.filter.push(&self.stream.push(self.tokenizer, id, SpecialTokens::Skip));
        if self.emit(&text).is_break() {
            return Some(Finish::Cancelled);
        }
        self.filter.found().then_some(Finish::Stop)
    }

    fn emit(&mut self, text: &str) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(text);
        (self.on_text)(text)
    }

    /// The whole text, with what has waited for more, and why it ended.
    fn finish(mut self, finish: Finish) -> (String, Finish) {
        let rest = self.filter.push(&self.stream.finish()) + &self.filter.finish();
        let ended = finish != Finish::Cancelled && self.emit(&rest).is_break();
        (self.text, if ended { Finish::Cancelled } else { finish })
    }
}
