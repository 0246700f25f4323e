//! From a prompt to a text.

use crate::ahead::Token;
use crate::arch::net::Sampling;
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::sequence::Sequence;
use crate::stop::StopFilter;
use crate::tokenizer::{SpecialTokens, TextStream, Tokenizer};
use crate::watch::is_cancelled;
use outboard_core::op::{Penalties, Sampler};
use std::collections::VecDeque;
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
    if options.n_predict == Some(0) {
        return Ok(Generation::default());
    }
    let mut text = Ongoing::begin(model, sequence, tokenizer, prompt, options)?;
    let mut others = Vec::new();
    let finish = loop {
        match next_token(model)? {
            Next::Token(token) if token.sequence == sequence => {
                if let Some(finish) = text.push(token, on_text) {
                    break finish;
                }
            }
            Next::Token(other) => others.push(other),
            Next::Nothing => return Err(Error::Plan("a text has not ended, and nothing is under way".into())),
            Next::Cancelled => break Finish::Cancelled,
        }
    };
    model.put_back(others);
    text.finish(model, finish, on_text)
}

/// A text to be generated beside others.
#[derive(Clone, Debug)]
pub struct TextRequest {
    /// Tokens that it goes on from.
    pub prompt: Vec<u32>,
    /// How.
    pub options: GenerateOptions,
}

/// Generates texts side by side, as many at a time as the model has room for, each in a sequence of its own. `on_text` gets pieces of text with
/// the number of the request, and may end that text. Gives them in the order of the requests; those that a cancelled run has not begun are empty.
///
/// Fails as [`PlacedModel::begin`] does, for a text that would not fit if it were the only one, too. The sequences are closed in any case.
pub fn generate_many(
    model: &mut PlacedModel,
    tokenizer: &Tokenizer,
    requests: &[TextRequest],
    on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
) -> Result<Vec<Generation>> {
    let mut ongoing = Vec::new();
    let done = run_many(model, tokenizer, requests, &mut ongoing, on_text);
    for (_, text) in ongoing {
        model.close(text.sequence)?;
    }
    done
}

fn run_many<'t>(
    model: &mut PlacedModel,
    tokenizer: &'t Tokenizer,
    requests: &[TextRequest],
    ongoing: &mut Vec<(usize, Ongoing<'t>)>,
    on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
) -> Result<Vec<Generation>> {
    let mut done = vec![Generation { finish: Finish::Cancelled, ..Generation::default() }; requests.len()];
    let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
    loop {
        while let Some(&number) = waiting.front()
            && model.sequences().count() < model.n_seqs()
        {
            if requests[number].options.n_predict == Some(0) {
                (done[number], _) = (Generation::default(), waiting.pop_front());
                continue;
            }
            match begin_beside(model, tokenizer, &requests[number]) {
                Ok(text) => ongoing.push((number, text)),
                // Somebody ends, or nobody is there to wait for.
                Err(Error::CacheFull { needed, total, .. }) if needed <= total && !ongoing.is_empty() => break,
                Err(e) => return Err(e),
            }
            waiting.pop_front();
        }
        let (at, finish) = match next_token(model)? {
            Next::Token(token) => {
                let Some(at) = ongoing.iter().position(|(_, text)| text.sequence == token.sequence) else { continue };
                let (number, text) = &mut ongoing[at];
                match text.push(token, &mut |text| on_text(*number, text)) {
                    Some(finish) => (at, finish),
                    None => continue,
                }
            }
            Next::Nothing | Next::Cancelled if ongoing.is_empty() => return Ok(done),
            Next::Nothing => return Err(Error::Plan("a text has not ended, and nothing is under way".into())),
            Next::Cancelled => {
                waiting.clear();
                (0, Finish::Cancelled)
            }
        };
        let (number, text) = ongoing.remove(at);
        let sequence = text.sequence;
        done[number] = text.finish(model, finish, &mut |text| on_text(number, text))?;
        model.close(sequence)?;
    }
}

/// Opens a sequence for a text, or closes it again.
fn begin_beside<'t>(model: &mut PlacedModel, tokenizer: &'t Tokenizer, request: &TextRequest) -> Result<Ongoing<'t>> {
    let sequence = model.open()?;
    let begun = Ongoing::begin(model, sequence, tokenizer, &request.prompt, &request.options);
    if begun.is_err() {
        model.close(sequence)?;
    }
    begun
}

/// What comes next.
enum Next {
    Token(Token),
    Nothing,
    Cancelled,
}

fn next_token(model: &mut PlacedModel) -> Result<Next> {
    match model.next_token() {
        Ok(Some(token)) => Ok(Next::Token(token)),
        Ok(None) => Ok(Next::Nothing),
        Err(e) if is_cancelled(&e) => Ok(Next::Cancelled),
        Err(e) => Err(e),
    }
}

/// A text that is being generated.
struct Ongoing<'t> {
    sequence: Sequence,
    /// Tokens of the sequence, the prompt included.
    before: usize,
    /// Most tokens, and why it ends with them.
    most: (usize, Finish),
    writer: Writer<'t>,
    out: Generation,
    start: Instant,
    decode_start: Instant,
}

impl<'t> Ongoing<'t> {
    fn begin(
        model: &mut PlacedModel,
        sequence: Sequence,
        tokenizer: &'t Tokenizer,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Ongoing<'t>> {
        let limit = options.n_predict.unwrap_or(usize::MAX);
        let before = check_prompt(model, sequence, prompt)? + prompt.len();
        let start = Instant::now();
        let sampling = Sampling { sampler: options.sampler, penalties: options.penalties, log_prob: options.log_probs };
        let most = model.begin(sequence, prompt, sampling, limit)?;
        let most = (most, if most < limit { Finish::Context } else { Finish::Length });
        let (writer, out) = (Writer::new(tokenizer, options), Generation::default());
        Ok(Ongoing { sequence, before, most, writer, out, start, decode_start: start })
    }

    /// Takes a token; gives the reason if the text ends with it.
    fn push(&mut self, token: Token, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Option<Finish> {
        let out = &mut self.out;
        if out.tokens.is_empty() {
            out.prompt_time = self.start.elapsed();
            self.decode_start = Instant::now();
        }
        out.tokens.push(token.id);
        out.log_probs.extend(token.log_prob);
        let finish = self.writer.push(token.id, on_text);
        let (most, end) = self.most;
        finish.or((self.out.tokens.len() >= most).then_some(end))
    }

    /// The text. Its sequence is as if it had never run too far: the last token has not gone through the model, those behind it never were.
    fn finish(
        self,
        model: &mut PlacedModel,
        finish: Finish,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let Ongoing { sequence, before, writer, mut out, decode_start, .. } = self;
        out.decode_time = decode_start.elapsed();
        model.truncate(sequence, before + out.tokens.len().saturating_sub(1))?;
        (out.text, out.finish) = writer.finish(finish, on_text);
        Ok(out)
    }
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
struct Writer<'t> {
    tokenizer: &'t Tokenizer,
    ignore_eos: bool,
    stream: TextStream,
    filter: StopFilter,
    text: String,
}

impl<'t> Writer<'t> {
    fn new(tokenizer: &'t Tokenizer, options: &GenerateOptions) -> Writer<'t> {
        let (stream, filter) = (TextStream::new(), StopFilter::new(&options.stop));
        Writer { tokenizer, ignore_eos: options.ignore_eos, stream, filter, text: String::new() }
    }

    /// Takes a token; gives the reason if the text ends with it.
    fn push(&mut self, id: u32, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Option<Finish> {
        if self.tokenizer.is_eog(id) && !self.ignore_eos {
            return Some(Finish::Eos);
        }
        let text = self.filter.push(&self.stream.push(self.tokenizer, id, SpecialTokens::Skip));
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
