//! Texts under way: a task for each, which waits for its turn, takes what the engine gives, and ends the text when nobody reads it any more.

use crate::error::{ApiError, Result, read_error};
use crate::form_process::Pool;
use crate::limits::Limits;
use crate::metrics::ModelMetrics;
use crate::options::{Beginnings, ServeOptions};
use crate::queue::{Client, Full, Most, Place, Queue, Turn};
use crate::settings::Settings;
use crate::style::Style;
use futures_core::Stream;
use http::StatusCode;
use outboard::{Generation, Piece, Request, Runner, TextStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// Retry-After says this at least, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// What a text takes before one has ended here.
const FIRST_GUESS: Duration = Duration::from_secs(2);

/// Where texts are generated, and who has which place.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) runner: Runner,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: ModelMetrics,
    /// How the model writes.
    pub(crate) style: Style,
    /// Whose texts share beginnings.
    pub(crate) beginnings: Beginnings,
    /// Where forms are compiled and followed.
    pub(crate) forms: Option<Arc<Pool>>,
    /// Says that texts end now, whatever they have.
    ended: watch::Sender<bool>,
    /// What texts take, a moving mean in microseconds; 0 before the first has ended.
    mean: AtomicU64,
    slots: Vec<Mutex<Option<Arc<Slot>>>>,
    under_way: AtomicUsize,
}

/// What is told of a text under way.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) prompt: usize,
    pub(crate) tokens: AtomicUsize,
    pub(crate) since: Instant,
}

/// Texts of one request: a stream of their pieces, each with the number of its text. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Answers {
    pieces: UnboundedReceiver<(usize, Result<Piece>)>,
    /// Tokens of the prompts.
    pub(crate) prompt_tokens: usize,
    /// How many have not ended.
    left: usize,
    pub(crate) count: usize,
}

/// Counts texts that have not ended.
pub(crate) struct UnderWay(Arc<Engine>);

impl UnderWay {
    pub(crate) fn new(engine: &Arc<Engine>) -> UnderWay {
        engine.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(engine.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    pub(crate) fn new(runner: Runner, options: &ServeOptions, metrics: ModelMetrics) -> Engine {
        let places = runner.plan().sequences;
        let slots = (0..places).map(|_| Mutex::new(None)).collect();
        let Limits { waiting, waiting_each, .. } = options.limits;
        let queue = Queue::new(Most { places, places_each: places, waiting, waiting_each });
        let beginnings = options.beginnings;
        let forms = options.form_processes.clone().map(|how| Arc::new(Pool::new(how, runner.model(), places)));
        let (ended, _) = watch::channel(false);
        let style = Style::of(runner.model());
        Engine {
            runner,
            queue,
            metrics,
            style,
            beginnings,
            forms,
            ended,
            mean: AtomicU64::new(0),
            slots,
            under_way: AtomicUsize::new(0),
        }
    }

    /// Begins the texts behind some prompts, `settings.n` behind each, when it is their turn. Fails if one cannot fit, and if too many wait.
    pub(crate) fn begin(
        self: &Arc<Engine>,
        client: &Client,
        prompts: &[Vec<u32>],
        settings: &Settings,
    ) -> Result<Answers> {
        // Before there are copies, of which a long prompt may ask for many.
        self.check(prompts, settings)?;
        let count = prompts.len() * settings.n;
        if settings.most == Some(0) {
            return Ok(Answers::without_text(prompts, count));
        }
        let turns = self.queue.enter(client, count).map_err(|full| self.refuse(full, count))?;
        let (sender, pieces) = unbounded_channel();
        let texts = self.texts_behind(client, prompts, settings);
        for (number, turn) in turns.into_iter().enumerate() {
            let task = Task::new(self, client, &sender, number);
            let Some((prompt, request)) = texts.of(number) else { continue };
            let counted = UnderWay::new(self);
            tokio::spawn(async move {
                let _counted = counted;
                task.run(turn, prompt, request).await;
            });
        }
        Ok(Answers { pieces, prompt_tokens: texts.prompt_tokens(), left: count, count })
    }

    /// The same of prompts that were let in, and read, before: no more of their texts wait at a time than prompts did, so that there is room for others, and
    /// none is refused.
    pub(crate) fn go_on(self: &Arc<Engine>, client: &Client, prompts: &[Vec<u32>], settings: &Settings) -> Answers {
        let count = prompts.len() * settings.n;
        if settings.most == Some(0) {
            return Answers::without_text(prompts, count);
        }
        let (sender, pieces) = unbounded_channel();
        let texts = Arc::new(self.texts_behind(client, prompts, settings));
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..self.lanes(prompts.len()) {
            let (engine, client, sender) = (self.clone(), client.clone(), sender.clone());
            let (texts, next, counted) = (texts.clone(), next.clone(), UnderWay::new(self));
            tokio::spawn(async move {
                let _counted = counted;
                while let Some((number, (prompt, request))) = texts.next(&next).filter(|_| !sender.is_closed()) {
                    let turn = engine.queue.enter_again(&client);
                    Task::new(&engine, &client, &sender, number).run(turn, prompt, request).await;
                }
            });
        }
        Answers { pieces, prompt_tokens: texts.prompt_tokens(), left: count, count }
    }

    /// How many of so many texts that are read for a request are worked on at a time.
    pub(crate) fn lanes(&self, texts: usize) -> usize {
        texts.min(self.slots.len())
    }

    fn texts_behind(&self, client: &Client, prompts: &[Vec<u32>], settings: &Settings) -> TextsBehind {
        let salt = self.beginnings.salt(client, settings.cache_salt.as_deref());
        TextsBehind { prompts: prompts.to_vec(), settings: settings.clone(), salt }
    }

    /// Fails if the texts behind some prompts could not begin if they were alone.
    pub(crate) fn check(&self, prompts: &[Vec<u32>], settings: &Settings) -> Result<()> {
        let of_text = |error: outboard::Error| match settings.most {
            Some(0) => read_error(error),
            _ => error.into(),
        };
        prompts.iter().try_for_each(|prompt| self.runner.check(settings.request(prompt.clone(), 0)).map_err(of_text))
    }

    /// Fails if so many texts of a client could not even wait: before work is done for them.
    pub(crate) fn check_room(&self, client: &Client, count: usize) -> Result<()> {
        self.queue.check(client, count).map_err(|full| self.refuse(full, count))
    }

    pub(crate) fn refuse(&self, full: Full, count: usize) -> ApiError {
        let (places, waiting) = (self.slots.len(), self.queue.waiting());
        let message = match full {
            // Asking again would not help.
            Full::Never => {
                let message = format!(
                    "{count} texts at once are more than this server takes of a client, with nobody else here: {places} have places, and few may wait; ask for \
                     fewer in each request"
                );
                return ApiError::new(StatusCode::BAD_REQUEST, message);
            }
            Full::Server => {
                format!(
                    "all {places} places are taken, and {waiting} texts wait, which is all that there is room for; ask again later"
                )
            }
            Full::Client => "too many texts of this client wait already; ask again when some have ended".to_owned(),
        };
        self.metrics.refused("waiting");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
            .with_code("rate_limit_exceeded")
            .retry_after(self.wait_for(waiting))
    }

    /// How long until so many texts have had their turn, as things are.
    fn wait_for(&self, waiting: usize) -> Duration {
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => FIRST_GUESS,
            micros => Duration::from_micros(micros),
        };
        let rounds = waiting.div_ceil(self.slots.len().max(1));
        mean.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX)).clamp(RETRY.0, RETRY.1)
    }

    pub(crate) fn took(&self, time: Duration) {
        let new = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let old = self.mean.load(Ordering::Relaxed);
        // Another task may have stored meanwhile: it is a guess.
        self.mean.store(if old == 0 { new } else { old - old / 8 + new / 8 }, Ordering::Relaxed);
    }

    /// Says when texts end whatever they have.
    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Ends all texts with an error.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Texts that are under way or wait.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// What is in each place.
    pub(crate) fn slots(&self) -> Vec<Option<Arc<Slot>>> {
        self.slots.iter().map(|slot| locked(slot).clone()).collect()
    }
}

fn locked(slot: &Mutex<Option<Arc<Slot>>>) -> MutexGuard<'_, Option<Arc<Slot>>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The texts behind some prompts, `settings.n` behind each.
struct TextsBehind {
    prompts: Vec<Vec<u32>>,
    settings: Settings,
    salt: Option<Arc<str>>,
}

impl TextsBehind {
    /// The tokens of the prompt of the text with this number, and what is asked for behind it.
    fn of(&self, number: usize) -> Option<(usize, Request)> {
        let n = self.settings.n.max(1);
        let prompt = self.prompts.get(number / n)?;
        let request = self.settings.request(prompt.clone(), number % n).cache_salt(self.salt.clone());
        Some((prompt.len(), request))
    }

    /// The next one, with its number.
    fn next(&self, next: &AtomicUsize) -> Option<(usize, (usize, Request))> {
        let number = next.fetch_add(1, Ordering::Relaxed);
        Some((number, self.of(number)?))
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }
}

/// A text from its turn to its end.
struct Task {
    engine: Arc<Engine>,
    client: Client,
    sender: UnboundedSender<(usize, Result<Piece>)>,
    number: usize,
    since: Instant,
}

impl Task {
    fn new(
        engine: &Arc<Engine>,
        client: &Client,
        sender: &UnboundedSender<(usize, Result<Piece>)>,
        number: usize,
    ) -> Task {
        let (engine, client, sender) = (engine.clone(), client.clone(), sender.clone());
        Task { engine, client, sender, number, since: Instant::now() }
    }

    async fn run(self, turn: Turn, prompt: usize, request: Request) {
        let mut ended = self.engine.ended.subscribe();
        let place = tokio::select! {
            place = turn => place,
            () = self.sender.closed() => return self.cancelled(),
            _ = ended.wait_for(|&ended| ended) => return self.fail(ApiError::stopping()),
        };
        self.engine.metrics.waited(self.since.elapsed());
        let text = match self.engine.runner.generate(request) {
            Ok(text) => text.stream(),
            Err(error) => return self.fail(error.into()),
        };
        let slot = Arc::new(Slot { prompt, tokens: AtomicUsize::new(0), since: Instant::now() });
        let occupied = Occupied::new(self.engine.clone(), place, slot);
        tokio::select! {
            () = self.forward(text, &occupied) => {}
            // The text is dropped, which ends it at the engine's next step.
            () = self.sender.closed() => self.cancelled(),
            _ = ended.wait_for(|&ended| ended) => self.fail(ApiError::stopping()),
        }
    }

    /// Gives pieces on. Who reads slowly holds up nobody: what is not read is kept, and is no more than a context of tokens.
    async fn forward(&self, mut text: TextStream, occupied: &Occupied) {
        while let Some(piece) = std::future::poll_fn(|cx| Pin::new(&mut text).poll_next(cx)).await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => return self.fail(error.into()),
            };
            if piece.token.is_some() {
                if occupied.slot.tokens.fetch_add(1, Ordering::Relaxed) == 0 {
                    self.engine.metrics.read(occupied.slot.prompt);
                    self.engine.metrics.first_token(self.since.elapsed());
                }
                self.engine.metrics.token();
            }
            if let Some(end) = &piece.end {
                self.done(end, occupied);
            }
            let _ = self.sender.send((self.number, Ok(piece)));
        }
    }

    fn done(&self, end: &Generation, occupied: &Occupied) {
        let slot = &occupied.slot;
        self.engine.took(slot.since.elapsed());
        self.engine.metrics.cached(end.cached);
        self.engine.metrics.done(end.tokens.len(), end.decode_time);
        let (cached, generated, finish) = (end.cached, end.tokens.len(), end.finish);
        let [first, all] = [end.prompt_time, end.prompt_time + end.decode_time].map(|time| time.as_millis());
        let (model, prompt) = (self.engine.runner.model().name(), slot.prompt);
        tracing::info!(
            "a text of {model}: {prompt} tokens read, {cached} of them in the cache, {generated} written; {first} ms to the first, {all} ms in all; {finish:?}, {}",
            self.client
        );
    }

    /// Its client has left.
    fn cancelled(&self) {
        self.engine.metrics.ended("cancelled");
        let model = self.engine.runner.model().name();
        tracing::info!(
            "a text of {model} is given up after {} ms: its client has left, {}",
            self.since.elapsed().as_millis(),
            self.client
        );
    }

    fn fail(&self, error: ApiError) {
        self.engine.metrics.ended("failed");
        let (model, client) = (self.engine.runner.model().name(), &self.client);
        error.log(format_args!("a text of {model}, {client}"));
        let _ = self.sender.send((self.number, Err(error)));
    }
}

/// A place with a text in it.
pub(crate) struct Occupied {
    engine: Arc<Engine>,
    pub(crate) slot: Arc<Slot>,
    /// `None` only when it was taken away.
    place: Option<Place>,
}

impl Occupied {
    pub(crate) fn new(engine: Arc<Engine>, place: Place, slot: Arc<Slot>) -> Occupied {
        if let Some(shown) = engine.slots.get(place.number) {
            *locked(shown) = Some(slot.clone());
        }
        Occupied { engine, slot, place: Some(place) }
    }

    /// The place, with nothing in it.
    pub(crate) fn vacate(mut self) -> Option<Place> {
        self.clear();
        self.place.take()
    }

    fn clear(&self) {
        if let Some(shown) = self.place.as_ref().and_then(|place| self.engine.slots.get(place.number)) {
            *locked(shown) = None;
        }
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Answers {
    /// Of texts that are to have no tokens: they need no place.
    fn without_text(prompts: &[Vec<u32>], count: usize) -> Answers {
        let (sender, pieces) = unbounded_channel();
        for number in 0..count {
            let end = Piece { end: Some(Box::default()), ..Piece::default() };
            let _ = sender.send((number, Ok(end)));
        }
        Answers { pieces, prompt_tokens: prompts.iter().map(Vec::len).sum(), left: count, count }
    }

    /// The next piece, with the number of its text.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<Piece>)> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// All texts, when they have ended.
    pub(crate) async fn complete(mut self) -> Result<Vec<Generation>> {
        let mut done: Vec<Generation> = (0..self.count).map(|_| Generation::default()).collect();
        while let Some((number, piece)) = self.next().await {
            if let (Some(end), Some(place)) = (piece?.end, done.get_mut(number)) {
                *place = *end;
            }
        }
        Ok(done)
    }
}

impl Stream for Answers {
    type Item = (usize, Result<Piece>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let next = self.pieces.poll_recv(cx);
        match &next {
            Poll::Ready(Some((_, Ok(piece)))) if piece.end.is_some() => self.left -= 1,
            // One that fails ends all: what its request asked for is not to be had.
            Poll::Ready(None | Some((_, Err(_)))) => self.left = 0,
            _ => {}
        }
        if let Poll::Ready(None) = next {
            let gone = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "a text has ended without an end");
            return Poll::Ready(Some((0, Err(gone))));
        }
        next
    }
}
