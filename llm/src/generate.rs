//! From a prompt to a text.

use crate::ahead::Token;
use crate::arch::net::{LogProbs, Sampling};
use crate::constraint::Constraint;
use crate::constraint::masks::{Formed, Found, Masks};
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::sequence::Sequence;
use crate::stop::StopFilter;
use crate::tokenizer::{SpecialTokens, TextStream, Tokenizer};
use crate::watch::{TICK, is_cancelled};
use outboard_core::op::{Penalties, Sampler};
use std::ops::ControlFlow;
use std::sync::Arc;
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
    /// Which log-probabilities are given as well.
    pub log_probs: LogProbs,
    /// Added to the logits of each token, one number for each of the vocabulary; minus infinity excludes one. They go to the device with the logits
    /// at every token.
    pub bias: Option<Arc<[f32]>>,
    /// Control tokens that are part of the text, as the vocabulary writes them: those by which a model says what it writes, such as a call of a tool.
    /// Others stand for nothing.
    pub shown: Arc<[u32]>,
    /// The form that the text has. It waits for this process after each token, which other texts do not.
    pub constraint: Option<Constraint>,
    /// What others have in the cache that it may begin with.
    pub reuse: Reuse,
    /// Others share its beginnings only if theirs is the same. For a sequence without tokens.
    pub cache_salt: Option<Arc<str>>,
}

/// What a text may use of what others with the same beginning have in the cache, where beginnings are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Nothing.
    Nothing,
    /// What they have read as a prompt: the text does not depend on whether somebody has.
    #[default]
    Prompts,
    /// What they have generated as well, so that the next turn of a conversation reads nothing but what is new. A token that was generated is rounded otherwise than
    /// one that is read, so that the text may be another one than without.
    All,
}

impl Default for GenerateOptions {
    /// The most probable token each time, until the model ends the text or the context is full.
    fn default() -> GenerateOptions {
        GenerateOptions {
            n_predict: None,
            sampler: Sampler::GREEDY,
            penalties: None,
            ignore_eos: false,
            stop: Vec::new(),
            log_probs: LogProbs::None,
            bias: None,
            shown: Arc::default(),
            constraint: None,
            reuse: Reuse::Prompts,
            cache_salt: None,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or it is complete: nothing can follow in its form.
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
    /// In the place of each token the most probable ones, most probable first, with their log-probabilities, if they were asked for.
    pub top_log_probs: Vec<Vec<(u32, f32)>>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that the cache had from others, and that were not read again.
    pub cached: usize,
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
    if options.n_predict == Some(0) {
        return Ok(Generation::default());
    }
    let masks = Masks::new();
    let mut text = Ongoing::begin(model, sequence, tokenizer, prompt, options, (&masks, 0))?;
    let finish = loop {
        match model.next_token_of(sequence) {
            Ok(Some(token)) => {
                if let Some(finish) = text.push(&token, on_text) {
                    break finish;
                }
                if let Some(finish) = text.go_on(&token)? {
                    break finish;
                }
                match text.wait_for_form(model, &masks) {
                    Ok(None) => {}
                    Ok(Some(finish)) => break finish,
                    Err(error) if is_cancelled(&error) => break Finish::Cancelled,
                    Err(error) => return Err(error),
                }
            }
            Ok(None) => return Err(Error::Internal("a text has not ended, and nothing is under way".into())),
            Err(error) if is_cancelled(&error) => break Finish::Cancelled,
            Err(error) => return Err(error),
        }
    };
    text.finish(model, finish, on_text)
}

/// A text that is being generated.
pub(crate) struct Ongoing<'t> {
    pub(crate) sequence: Sequence,
    /// Tokens of the sequence, the prompt included.
    before: usize,
    /// Most tokens, and why it ends with them.
    most: (usize, Finish),
    /// How far it has come in its form.
    form: Option<Formed>,
    writer: Writer<'t>,
    out: Generation,
    start: Instant,
    decode_start: Instant,
}

impl<'t> Ongoing<'t> {
    /// `masks` finds what may come next, and so many other texts wait for it.
    pub(crate) fn begin(
        model: &mut PlacedModel,
        sequence: Sequence,
        tokenizer: &'t Tokenizer,
        prompt: &[u32],
        options: &GenerateOptions,
        (masks, waiting): (&Masks, usize),
    ) -> Result<Ongoing<'t>> {
        let limit = options.n_predict.unwrap_or(usize::MAX);
        if let Some(form) = &options.constraint
            && form.n_vocab() != tokenizer.n_vocab()
        {
            return Err(Error::Request("the form was compiled for another model".into()));
        }
        let before = check_prompt(model, sequence, prompt)? + prompt.len();
        let start = Instant::now();
        let sampling =
            Sampling { sampler: options.sampler, penalties: options.penalties, log_probs: options.log_probs };
        if options.bias.is_some() {
            model.set_bias(sequence, options.bias.clone())?;
        }
        model.set_reuse(sequence, options.reuse)?;
        if options.cache_salt.is_some() {
            model.set_cache_salt(sequence, options.cache_salt.as_deref())?;
        }
        let most = model.begin(sequence, prompt, sampling, limit)?;
        let most = (most, if most < limit { Finish::Context } else { Finish::Length });
        let begin = |constraint: &Constraint| masks.begin(constraint, sequence, waiting);
        let form = options.constraint.as_ref().map(begin).transpose()?;
        if let Some(form) = &form {
            model.allow(sequence, &form.first)?;
        }
        let (writer, out) = (Writer::new(tokenizer, options), Generation::default());
        Ok(Ongoing { sequence, before, most, form, writer, out, start, decode_start: start })
    }

    /// Takes a token; gives the reason if the text ends with it.
    pub(crate) fn push(&mut self, token: &Token, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Option<Finish> {
        let out = &mut self.out;
        if out.tokens.is_empty() {
            out.prompt_time = self.start.elapsed();
            self.decode_start = Instant::now();
        }
        out.tokens.push(token.id);
        out.log_probs.extend(token.log_prob);
        if !token.top_log_probs.is_empty() {
            out.top_log_probs.push(token.top_log_probs.clone());
        }
        let finish = self.writer.push(token.id, on_text);
        let (most, end) = self.most;
        finish.or((self.out.tokens.len() >= most).then_some(end))
    }

    /// Has the next token come behind one that did not end it; gives the reason if its form ends with it. What may follow in its form comes from `masks`,
    /// and goes to [`take_allowed`](Self::take_allowed).
    pub(crate) fn go_on(&mut self, token: &Token) -> Result<Option<Finish>> {
        let Some(form) = &mut self.form else { return Ok(None) };
        // It ends here even where the caller wants to go on behind it.
        if self.writer.tokenizer.is_eog(token.id) {
            return Ok(Some(Finish::Eos));
        }
        form.push(token.id).map(|()| None)
    }

    /// Takes what may come next in its form; gives the reason if nothing can. An error is one of the form.
    pub(crate) fn take_allowed(&mut self, model: &mut PlacedModel, found: Found) -> Result<Option<Finish>> {
        if let Some(form) = &mut self.form {
            form.answered();
        }
        match found.allowed? {
            Some(allowed) => model.allow(self.sequence, &allowed).map(|()| None),
            None => Ok(Some(Finish::Eos)),
        }
    }

    /// Since when it waits for what may come next in its form.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.form.as_ref().and_then(Formed::asked)
    }

    /// Fails if it has waited too long for that.
    pub(crate) fn check_wait(&self) -> Result<()> {
        self.form.as_ref().map_or(Ok(()), Formed::check_wait)
    }

    /// Waits for what may come next in its form, if it has one; gives the reason if nothing can.
    fn wait_for_form(&mut self, model: &mut PlacedModel, masks: &Masks) -> Result<Option<Finish>> {
        while self.asked().is_some() {
            if let Some(found) = masks.next(Some(Instant::now() + TICK)) {
                return self.take_allowed(model, found);
            }
            self.check_wait()?;
            model.check_cancelled()?;
        }
        Ok(None)
    }

    /// The text. Its sequence is as if it had never run too far: the last token has not gone through the model, those behind it never were.
    pub(crate) fn finish(
        self,
        model: &mut PlacedModel,
        finish: Finish,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let Ongoing { sequence, before, writer, mut out, decode_start, .. } = self;
        out.decode_time = decode_start.elapsed();
        out.cached = model.shared(sequence)?;
        let len = before + out.tokens.len().saturating_sub(1);
        model.truncate(sequence, len)?;
        (out.text, out.finish) = writer.finish(finish, on_text);
        Ok(out)
    }
}

/// Whether the context has room for the prompt and a token behind it, and the model has its tokens; gives how many tokens there are before it.
fn check_prompt(model: &PlacedModel, sequence: Sequence, prompt: &[u32]) -> Result<usize> {
    let before = model.len(sequence)?;
    model.check_writes_text()?;
    // With one for the answer.
    model.check_room(sequence, prompt.len() + 1)?;
    model.check_vocabulary(prompt)?;
    Ok(before)
}

/// Turns tokens into text as they come: a character may need several of them, and what may be the beginning of a stop string waits.
struct Writer<'t> {
    tokenizer: &'t Tokenizer,
    ignore_eos: bool,
    shown: Arc<[u32]>,
    stream: TextStream,
    filter: StopFilter,
    text: String,
}

impl<'t> Writer<'t> {
    fn new(tokenizer: &'t Tokenizer, options: &GenerateOptions) -> Writer<'t> {
        let (stream, filter) = (TextStream::new(), StopFilter::new(&options.stop));
        let (ignore_eos, shown) = (options.ignore_eos, options.shown.clone());
        Writer { tokenizer, ignore_eos, shown, stream, filter, text: String::new() }
    }

    /// Takes a token; gives the reason if the text ends with it.
    fn push(&mut self, id: u32, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Option<Finish> {
        if self.tokenizer.is_eog(id) && !self.ignore_eos {
            return Some(Finish::Eos);
        }
        let special = if self.shown.contains(&id) { SpecialTokens::Show } else { SpecialTokens::Skip };
        let text = self.filter.push(&self.stream.push(self.tokenizer, id, special));
        if self.emit(&text, on_text).is_break() {
            return Some(Finish::Cancelled);
        }
        self.filter.found().then_some(Finish::Stop)
    }

    fn emit(&mut self, text: &str, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(text);
        on_text(text)
    }

    /// The whole text, with what has waited for more, and why it ended.
    fn finish(mut self, finish: Finish, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> (String, Finish) {
        let rest = self.filter.push(&self.stream.finish()) + &self.filter.finish();
        let ended = finish != Finish::Cancelled && self.emit(&rest, on_text).is_break();
        (self.text, if ended { Finish::Cancelled } else { finish })
    }
}
