//! From a prompt to a text.

use crate::arch::net::Sampling;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::stop::StopFilter;
use crate::tokenizer::{TextStream, Tokenizer};
use crate::watch::is_cancelled;
use outboard_core::op::{Penalty, Sample};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens; `None` until the context is full.
    pub n_predict: Option<usize>,
    /// How tokens are chosen.
    pub sample: Sample,
    /// What makes tokens less probable that were used a short while ago.
    pub penalty: Option<Penalty>,
    /// Goes on behind tokens that end a text.
    pub ignore_eos: bool,
    /// Strings that end it; they are not part of the text.
    pub stop: Vec<String>,
    /// Log-probabilities as well.
    pub log_probs: bool,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    Eos,
    /// A stop string came.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller ended it.
    Cancelled,
}

/// What came of it.
#[derive(Clone, Debug)]
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
    let mut out = Generation {
        text: String::new(),
        tokens: Vec::new(),
        log_probs: Vec::new(),
        finish: Finish::Length,
        prompt_time: Duration::ZERO,
        decode_time: Duration::ZERO,
    };
    let limit = options.n_predict.unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(out);
    }
    let room = engine.n_ctx().saturating_sub(engine.n_past());
    if prompt.len() >= room {
        return Err(Error::Request(format!(
            "the prompt has {} tokens, but the context has room for {room} and one has to be left for the answer: make it \
             larger with -c, or the prompt shorter",
            prompt.len()
        )));
    }
    engine.check_vocabulary(prompt)?;
    let mut stream = TextStream::new();
    let mut filter = StopFilter::new(&options.stop);
    let mut emit = |text: String, out: &mut String| {
        if text.is_empty() {
            ControlFlow::Continue(())
        } else {
            out.push_str(&text);
            on_text(&text)
        }
    };
    let start = Instant::now();
    let before = engine.n_past();
    let sampling = Sampling { sample: options.sample, penalty: options.penalty, log_prob: options.log_probs };
    let mut result = engine.prompt(prompt, sampling);
    // Tokens that were enqueued; those that the end of the text leaves unread are forgotten below.
    let mut enqueued = 1;
    let mut decode_start = Instant::now();
    loop {
        while result.is_ok() && enqueued < limit && engine.has_time() && engine.n_past() < engine.n_ctx() {
            result = engine.step(sampling).inspect(|()| enqueued += 1);
        }
        let (id, log_prob) = match std::mem::replace(&mut result, Ok(())).and_then(|()| engine.next_id()) {
            Ok(next) => next,
            Err(e) if is_cancelled(&e) => {
                out.finish = Finish::Cancelled;
                break;
            }
            Err(e) => {
                match engine.recover(e, sampling) {
                    Err(e) if !is_cancelled(&e) => return Err(e),
                    recovered => result = recovered,
                }
                // The next token is under way again, nothing behind it.
                enqueued = out.tokens.len() + 1;
                continue;
            }
        };
        if out.tokens.is_empty() {
            out.prompt_time = start.elapsed();
            decode_start = Instant::now();
        }
        out.tokens.push(id);
        out.log_probs.extend(log_prob);
        if tokenizer.is_eog(id) && !options.ignore_eos {
            out.finish = Finish::Eos;
            break;
        }
        let text = filter.push(&stream.push(tokenizer, id, false));
        if emit(text, &mut out.text).is_break() {
            out.finish = Finish::Cancelled;
            break;
        }
        if filter.found() {
            out.finish = Finish::Stop;
            break;
        }
        if out.tokens.len() >= limit {
            break;
        }
        if engine.under_way() == 0 && engine.n_past() >= engine.n_ctx() {
            out.finish = Finish::Context;
            break;
        }
    }
    out.decode_time = decode_start.elapsed();
    // As if it had never run too far: the last token has not gone through the model, those behind it never were.
    engine.truncate(before + prompt.len() + out.tokens.len().saturating_sub(1));
    let rest = filter.push(&stream.finish()) + &filter.finish();
    if out.finish != Finish::Cancelled && emit(rest, &mut out.text).is_break() {
        out.finish = Finish::Cancelled;
    }
    Ok(out)
}
