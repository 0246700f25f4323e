//! From a prompt to a text.

use crate::arch::net::Sampling;
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::sequence::Sequence;
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

/// Runs `prompt` behind what a sequence has, and generates behind it. `on_text` gets the text as it comes and may end it. Tokens of other
/// sequences that come meanwhile are given out behind it.
pub fn generate(
    model: &mut PlacedModel,
    sequence: Sequence,
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
    let before = check_prompt(model, sequence, prompt)?;
    let start = Instant::now();
    let mut writer = Writer::new(tokenizer, options, on_text);
    let sampling = Sampling { sampler: options.sampler, penalties: options.penalties, log_prob: options.log_probs };
    model.begin(sequence, prompt, sampling, limit)?;
    let mut decode_start = Instant::now();
    let mut others = Vec::new();
    out.finish = loop {
        let token = match model.next_token() {
            Ok(Some(token)) if token.sequence == sequence => token,
            Ok(Some(other)) => {
                others.push(other);
                continue;
            }
            Ok(None) if out.tokens.len() < limit => break Finish::Context,
            Ok(None) => break Finish::Length,
            Err(e) if is_cancelled(&e) => break Finish::Cancelled,
            Err(e) => return Err(e),
        };
        if out.tokens.is_empty() {
            out.prompt_time = start.elapsed();
            decode_start = Instant::now();
        }
        out.tokens.push(token.id);
        out.log_probs.extend(token.log_prob);
        if let Some(finish) = writer.push(token.id) {
            break finish;
        }
        if out.tokens.len() >= limit {
            break Finish::Length;
        }
    };
    out.decode_time = decode_start.elapsed();
    model.put_back(others);
    // As if it had never run too far: the last token has not gone through the model, those behind it never were.
    model.truncate(sequence, before + prompt.len() + out.tokens.len().saturating_sub(1))?;
    (out.text, out.finish) = writer.finish(out.finish);
    Ok(out)
}

/// Whether the context has room for the prompt and a token behind it, and the model has its tokens; gives how many tokens there are before it.
fn check_prompt(model: &PlacedModel, sequence: Sequence, prompt: &[u32]) -> Result<usize> {
    let before = model.len(sequence)?;
    let room = model.n_ctx().saturating_sub(before);
    if prompt.len() >= room {
        return Err(Error::Request(format!(
            "the prompt has {} tokens, but the context has room for {room} and one has to be left for the answer: make it \
             larger with -c, or the prompt shorter",
            prompt.len()
        )));
    }
    model.check_vocabulary(prompt)?;
    Ok(before)
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
