//! Texts side by side, each in a sequence of its own, and a queue of those for which there is no room yet.

use crate::ahead::Token;
use crate::blocks::blocks_of;
use crate::constraint::masks::{Found, Masks, PATIENCE};
use crate::embed::{self, EmbedRequest, Embedding};
use crate::error::{Error, Result};
use crate::generate::{Finish, GenerateOptions, Generation, Ongoing};
use crate::placed_model::PlacedModel;
use crate::reading::Read;
use crate::score::{self, ScoreRequest, Scores};
use crate::sequence::Sequence;
use crate::tokenizer::Tokenizer;
use crate::watch::is_cancelled;
use outboard_core::op::BLOCK_ROWS;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

/// A text to be generated beside others.
#[derive(Clone, Debug)]
pub struct TextRequest {
    /// Tokens that it goes on from.
    pub prompt: Vec<u32>,
    /// How.
    pub options: GenerateOptions,
}

/// What may be asked of a placed model beside others.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A text.
    Text(TextRequest),
    /// The embedding of one.
    Embedding(EmbedRequest),
    /// How probable the tokens of one are.
    Scores(ScoreRequest),
}

impl From<TextRequest> for Wanted {
    fn from(request: TextRequest) -> Wanted {
        Wanted::Text(request)
    }
}

impl From<EmbedRequest> for Wanted {
    fn from(request: EmbedRequest) -> Wanted {
        Wanted::Embedding(request)
    }
}

impl From<ScoreRequest> for Wanted {
    fn from(request: ScoreRequest) -> Wanted {
        Wanted::Scores(request)
    }
}

/// What a placed model has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// Tokens that the cache has room for, of all sequences.
    pub cache_tokens: usize,
}

impl Capacity {
    /// Whether there would be room for a text if it were the only one. Fails with [`Error::ContextFull`] and [`Error::CacheFull`].
    pub fn check(&self, request: &TextRequest) -> Result<()> {
        if request.options.n_predict == Some(0) {
            return self.check_read(request.prompt.len());
        }
        let (tokens, n_ctx) = (request.prompt.len(), self.n_ctx);
        let Some(room) = n_ctx.checked_sub(tokens).filter(|room| *room > 0) else {
            // With one for the answer.
            return Err(Error::ContextFull { tokens: tokens + 1, used: 0, n_ctx });
        };
        // What is sampled last needs no room.
        let new = request.options.n_predict.unwrap_or(usize::MAX).min(room + 1).saturating_sub(1);
        self.check_cache(tokens + new)
    }

    /// Whether there would be room for a text to be embedded if it were the only one. Fails as [`Capacity::check`] does.
    pub fn check_embedding(&self, request: &EmbedRequest) -> Result<()> {
        embed::check_tokens(&request.tokens)?;
        self.check_read(request.tokens.len())
    }

    /// Whether there would be room for a text whose tokens are asked about if it were the only one. Fails as [`Capacity::check`] does.
    pub fn check_scores(&self, request: &ScoreRequest) -> Result<()> {
        score::check_tokens(&request.tokens)?;
        // The last one is not read.
        self.check_read(request.tokens.len() - 1)
    }

    /// Whether there would be room for a text that is read.
    fn check_read(&self, tokens: usize) -> Result<()> {
        let n_ctx = self.n_ctx;
        if tokens > n_ctx {
            return Err(Error::ContextFull { tokens, used: 0, n_ctx });
        }
        self.check_cache(tokens)
    }

    fn check_cache(&self, tokens: usize) -> Result<()> {
        let (needed, total) = (blocks_of(tokens) * BLOCK_ROWS, self.cache_tokens);
        if needed > total { Err(Error::CacheFull { needed, free: total, total }) } else { Ok(()) }
    }
}

impl PlacedModel {
    /// What there is room for.
    pub fn capacity(&self) -> Capacity {
        Capacity { n_ctx: self.n_ctx(), cache_tokens: self.cache_tokens() }
    }
}

/// What becomes of a text.
#[derive(Debug)]
pub enum TextEvent {
    /// A token has come, and perhaps text with it: a character may need several tokens, and what may be the beginning of a stop string waits.
    Token {
        /// The token.
        id: u32,
        /// Its log-probability, if that was asked for.
        log_prob: Option<f32>,
        /// The most probable tokens in its place, most probable first, with their log-probabilities, if they were asked for.
        top_log_probs: Vec<(u32, f32)>,
        /// The text that is known since the last event.
        text: String,
    },
    /// It has ended.
    Ended {
        /// What was still waiting for more.
        rest: String,
        /// All of it.
        generation: Generation,
    },
    /// Its embedding has come, which ends it.
    Embedded(Embedding),
    /// The probabilities of its tokens have come, which ends it.
    Scored(Scores),
    /// It cannot begin or go on. Where a device is why, all texts that are under way fail with it; else the others go on.
    Failed(Error),
}

/// Texts that are generated or read side by side, as many at a time as the model has room for; the others wait in the order in which they came. Each
/// has a key, by which events say whose they are.
pub struct Texts<'t, K> {
    tokenizer: &'t Tokenizer,
    waiting: VecDeque<(K, Wanted)>,
    ongoing: Vec<(K, Ongoing<'t>)>,
    /// Those that are read and not gone on with.
    reading: Vec<(K, Sequence)>,
    /// What may come next in those that have a form.
    masks: Masks,
    /// The cache had no room for the first one that waits; it has when another one has ended.
    is_full: bool,
}

/// Is told what becomes of each text, and may end it.
pub type OnEvent<'e, K> = dyn FnMut(&K, TextEvent) -> ControlFlow<()> + 'e;

impl<'t, K> Texts<'t, K> {
    /// None yet.
    pub fn new(tokenizer: &'t Tokenizer) -> Texts<'t, K> {
        Texts {
            tokenizer,
            waiting: VecDeque::new(),
            ongoing: Vec::new(),
            reading: Vec::new(),
            masks: Masks::new(),
            is_full: false,
        }
    }

    /// One more.
    pub fn push(&mut self, key: K, request: impl Into<Wanted>) {
        self.waiting.push_back((key, request.into()));
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.is_idle()
    }

    /// Whether none is under way.
    fn is_idle(&self) -> bool {
        self.ongoing.is_empty() && self.reading.is_empty()
    }

    /// The keys of those that have not ended.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        let under_way = self.ongoing.iter().map(|(key, _)| key).chain(self.reading.iter().map(|(key, _)| key));
        under_way.chain(self.waiting.iter().map(|(key, _)| key))
    }

    /// Ends those that nobody wants any more, without an event. If a device fails meanwhile, those that are under way fail with it.
    pub fn retain(&mut self, model: &mut PlacedModel, wanted: impl Fn(&K) -> bool, on_event: &mut OnEvent<'_, K>) {
        self.waiting.retain(|(key, _)| wanted(key));
        let (kept, unwanted): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ongoing).into_iter().partition(|(key, _)| wanted(key));
        self.ongoing = kept;
        let ended = self.reading.extract_if(.., |(key, _)| !wanted(key)).map(|(_, sequence)| sequence);
        let unwanted: Vec<Sequence> = unwanted.iter().map(|(_, text)| text.sequence).chain(ended).collect();
        self.is_full &= unwanted.is_empty() && !self.waiting.is_empty();
        for sequence in unwanted {
            if let Err(error) = model.close(sequence) {
                self.fail(model, &error, on_event);
            }
        }
    }

    /// Begins texts for which there is room, and takes the next token of any, or waits until a part of a prompt has been read: others may begin
    /// then. If the run is cancelled, all end.
    ///
    /// What happens to a device, and cannot be recovered from, ends all texts that are under way with [`TextEvent::Failed`]. Those that wait are then
    /// tried on the devices as they are: the first one tries for all of them.
    pub fn step(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) {
        let stepped = self.begin(model, on_event).and_then(|()| self.advance(model, on_event));
        match stepped {
            Err(error) if is_cancelled(&error) => self.cancel(model, on_event),
            Err(error) => self.fail(model, &error, on_event),
            Ok(()) => {}
        }
    }

    /// Takes the next token of any, or waits until a part of a prompt has been read.
    fn advance(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        if self.is_idle() {
            // Somebody else has all sequences, and nobody here is to end.
            if let Some((key, _)) = self.waiting.pop_front() {
                let why = Error::Request("other sequences are open, and there is no place for a text".into());
                let _ = on_event(&key, TextEvent::Failed(why));
            }
            return Ok(());
        }
        // Sequences of others keep their tokens.
        let ongoing = &self.ongoing;
        let is_ours = |token: &Token| ongoing.iter().any(|(_, text)| text.sequence == token.sequence);
        let reading = &self.reading;
        let is_read = |sequence, _: &_| reading.iter().any(|(_, ours)| *ours == sequence);
        model.return_to_devices()?;
        if let Some((sequence, came)) = model.take_read(is_read) {
            return self.take_read(model, sequence, came, on_event);
        }
        if let Some(token) = model.take_ready(is_ours) {
            return self.take(model, token, on_event);
        }
        self.take_masks(model, on_event)?;
        if model.go_on()? {
            return Ok(());
        }
        // All others have ended meanwhile, or wait for their forms as well.
        if self.is_idle() || self.wait_for_mask(model, on_event)? {
            return Ok(());
        }
        Err(Error::Internal("a text has not ended, and nothing is under way".into()))
    }

    /// Takes what may come next in texts that have a form, as long as it comes soon: within a step, so that devices do not wait.
    fn take_masks(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        let patience = model.step_time().map_or(PATIENCE, |step| step.min(PATIENCE));
        while let Some(found) = self.masks.next(self.last_asked().map(|asked| asked + patience)) {
            self.take_found(model, found, on_event)?;
        }
        self.end_late(model, on_event)
    }

    /// Waits a while until it is known what may come next in a text; `false` if none waits for that.
    fn wait_for_mask(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) -> Result<bool> {
        if self.last_asked().is_none() {
            return Ok(false);
        }
        if let Some(found) = self.masks.next(Some(Instant::now() + PATIENCE)) {
            self.take_found(model, found, on_event)?;
        }
        model.check_cancelled().map(|()| true)
    }

    /// When the last text has begun to wait for what may come next in it.
    fn last_asked(&self) -> Option<Instant> {
        self.ongoing.iter().filter_map(|(_, text)| text.asked()).max()
    }

    /// Ends texts that have waited too long for what may come next in them.
    fn end_late(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        for at in (0..self.ongoing.len()).rev() {
            if let Err(error) = self.ongoing[at].1.check_wait() {
                self.drop_text(model, at, error, on_event)?;
            }
        }
        Ok(())
    }

    /// Takes what may come next in a text, if it has not ended meanwhile.
    fn take_found(&mut self, model: &mut PlacedModel, found: Found, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        let Some(at) = self.ongoing.iter().position(|(_, text)| text.sequence == found.sequence) else { return Ok(()) };
        let finish = self.ongoing[at].1.take_allowed(model, found);
        self.finish(model, at, finish, on_event)
    }

    fn begin(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        if !self.waiting.is_empty()
            && let Err(error) = model.return_to_devices()
        {
            // Each of them would find the same.
            if !is_cancelled(&error) {
                self.fail_waiting(&error, on_event);
            }
            return Err(error);
        }
        while !self.is_full
            && model.sequences().count() < model.n_seqs()
            && let Some((key, request)) = self.waiting.pop_front()
        {
            if matches!(&request, Wanted::Text(text) if text.options.n_predict == Some(0)) {
                let _ = on_event(&key, TextEvent::Ended { rest: String::new(), generation: Generation::default() });
                continue;
            }
            let opened = match &request {
                Wanted::Text(text) => self.open(model, text).map(|text| Opened::Text(Box::new(text))),
                Wanted::Embedding(text) => {
                    open_reading(model, |model, sequence| model.begin_embedding(sequence, text)).map(Opened::Reading)
                }
                Wanted::Scores(text) => {
                    open_reading(model, |model, sequence| model.begin_scores(sequence, text)).map(Opened::Reading)
                }
            };
            match opened {
                Ok(Opened::Text(text)) => self.ongoing.push((key, *text)),
                Ok(Opened::Reading(sequence)) => self.reading.push((key, sequence)),
                // Somebody ends, or nobody is there to wait for.
                Err(Error::CacheFull { needed, total, .. }) if needed <= total && !self.is_idle() => {
                    self.waiting.push_front((key, request));
                    self.is_full = true;
                }
                Err(error) => {
                    let _ = on_event(&key, TextEvent::Failed(error.clone()));
                    if model.has_failed() {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Opens a sequence for a text, or closes it again.
    fn open(&self, model: &mut PlacedModel, request: &TextRequest) -> Result<Ongoing<'t>> {
        let sequence = model.open()?;
        let waiting = self.ongoing.iter().filter(|(_, text)| text.asked().is_some()).count();
        let masks = (&self.masks, waiting);
        let begun = Ongoing::begin(model, sequence, self.tokenizer, &request.prompt, &request.options, masks);
        if begun.is_err() {
            model.close(sequence)?;
        }
        begun
    }

    /// Ends those that are under way with an error.
    fn fail(&mut self, model: &mut PlacedModel, error: &Error, on_event: &mut OnEvent<'_, K>) {
        self.is_full = false;
        let texts = std::mem::take(&mut self.ongoing).into_iter().map(|(key, text)| (key, text.sequence));
        for (key, sequence) in texts.chain(std::mem::take(&mut self.reading)) {
            // It is closed in any case, and why that may fail is known.
            let _ = model.close(sequence);
            let _ = on_event(&key, TextEvent::Failed(error.clone()));
        }
    }

    fn fail_waiting(&mut self, error: &Error, on_event: &mut OnEvent<'_, K>) {
        for (key, _) in self.waiting.drain(..) {
            let _ = on_event(&key, TextEvent::Failed(error.clone()));
        }
    }

    fn take_read(
        &mut self,
        model: &mut PlacedModel,
        sequence: Sequence,
        came: Read,
        on_event: &mut OnEvent<'_, K>,
    ) -> Result<()> {
        let Some(at) = self.reading.iter().position(|(_, ours)| *ours == sequence) else { return Ok(()) };
        self.is_full = false;
        let (key, _) = self.reading.remove(at);
        let closed = model.close(sequence);
        let came = match came {
            Read::Embedding(embedding) => embedding.map(TextEvent::Embedded),
            Read::Scores(scores) => scores.map(TextEvent::Scored),
        };
        let event = closed.clone().and(came).unwrap_or_else(TextEvent::Failed);
        let _ = on_event(&key, event);
        closed
    }

    fn take(&mut self, model: &mut PlacedModel, token: Token, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        let Some(at) = self.ongoing.iter().position(|(_, text)| text.sequence == token.sequence) else { return Ok(()) };
        let (key, text) = &mut self.ongoing[at];
        let mut new = String::new();
        let finish = text.push(&token, &mut |text| {
            new.push_str(text);
            ControlFlow::Continue(())
        });
        let event = TextEvent::Token {
            id: token.id,
            log_prob: token.log_prob,
            top_log_probs: token.top_log_probs.clone(),
            text: new,
        };
        let finish = if on_event(key, event).is_break() { Some(Finish::Cancelled) } else { finish };
        let finish = match finish {
            Some(finish) => Ok(Some(finish)),
            None => text.go_on(&token),
        };
        self.finish(model, at, finish, on_event)
    }

    /// Ends a text if there is a reason to.
    fn finish(
        &mut self,
        model: &mut PlacedModel,
        at: usize,
        finish: Result<Option<Finish>>,
        on_event: &mut OnEvent<'_, K>,
    ) -> Result<()> {
        match finish {
            Ok(Some(finish)) => self.end(model, at, finish, on_event),
            Ok(None) => Ok(()),
            // Of its form: nobody else is to end with it.
            Err(error) => self.drop_text(model, at, error, on_event),
        }
    }

    /// Ends one with an error that is its own.
    fn drop_text(
        &mut self,
        model: &mut PlacedModel,
        at: usize,
        error: Error,
        on_event: &mut OnEvent<'_, K>,
    ) -> Result<()> {
        self.is_full = false;
        let (key, text) = self.ongoing.remove(at);
        let _ = on_event(&key, TextEvent::Failed(error));
        model.close(text.sequence)
    }

    fn end(&mut self, model: &mut PlacedModel, at: usize, finish: Finish, on_event: &mut OnEvent<'_, K>) -> Result<()> {
        self.is_full = false;
        let (key, text) = self.ongoing.remove(at);
        let (sequence, mut rest) = (text.sequence, String::new());
        let generation = text.finish(model, finish, &mut |text| {
            rest.push_str(text);
            ControlFlow::Continue(())
        });
        let closed = model.close(sequence);
        let generation = match generation.and_then(|generation| closed.map(|()| generation)) {
            Ok(generation) => generation,
            Err(e) => {
                let _ = on_event(&key, TextEvent::Failed(e.clone()));
                return Err(e);
            }
        };
        let _ = on_event(&key, TextEvent::Ended { rest, generation });
        Ok(())
    }

    fn cancel(&mut self, model: &mut PlacedModel, on_event: &mut OnEvent<'_, K>) {
        while !self.ongoing.is_empty() {
            if let Err(error) = self.end(model, 0, Finish::Cancelled, on_event) {
                self.fail(model, &error, on_event);
            }
        }
        for (key, sequence) in std::mem::take(&mut self.reading) {
            let _ = model.close(sequence);
            let _ = on_event(&key, TextEvent::Failed(outboard_core::Error::Cancelled.into()));
        }
        for (key, request) in self.waiting.drain(..) {
            if let Wanted::Embedding(_) | Wanted::Scores(_) = request {
                let _ = on_event(&key, TextEvent::Failed(outboard_core::Error::Cancelled.into()));
                continue;
            }
            let generation = Generation { finish: Finish::Cancelled, ..Generation::default() };
            let _ = on_event(&key, TextEvent::Ended { rest: String::new(), generation });
        }
    }
}

/// What has begun.
enum Opened<'t> {
    Text(Box<Ongoing<'t>>),
    Reading(Sequence),
}

/// Opens a sequence for a text that is read, or closes it again.
fn open_reading(
    model: &mut PlacedModel,
    begin: impl FnOnce(&mut PlacedModel, Sequence) -> Result<()>,
) -> Result<Sequence> {
    let sequence = model.open()?;
    let begun = begin(model, sequence);
    if begun.is_err() {
        model.close(sequence)?;
    }
    begun.map(|()| sequence)
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
    let mut texts = Texts::new(tokenizer);
    requests.iter().cloned().enumerate().for_each(|(number, request)| texts.push(number, request));
    let (mut done, mut failed) = (vec![Generation::default(); requests.len()], Ok(()));
    while !texts.is_empty() && failed.is_ok() {
        texts.step(model, &mut |&number, event| match event {
            TextEvent::Token { text, .. } if text.is_empty() => ControlFlow::Continue(()),
            TextEvent::Token { text, .. } => on_text(number, &text),
            TextEvent::Ended { rest, generation } => {
                done[number] = generation;
                if rest.is_empty() { ControlFlow::Continue(()) } else { on_text(number, &rest) }
            }
            // Nobody has asked for one.
            TextEvent::Embedded(_) | TextEvent::Scored(_) => ControlFlow::Continue(()),
            TextEvent::Failed(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        });
    }
    texts.retain(model, |_| false, &mut |_, _| ControlFlow::Break(()));
    failed.map(|()| done)
}
