//! Texts that are read and not gone on with, for embeddings and for the probabilities of their tokens: those of a request take places one after another, as
//! texts do that are written, and let others have theirs in between.

use crate::engine::{Engine, Occupied, Slot, UnderWay};
use crate::error::{ApiError, Result, read_error};
use crate::queue::{Client, Place, Turn};
use outboard::{EmbedRequest, Embedding, PendingResult, Pooling, Runner, Scale, ScoreRequest, Scores};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// What is to be read for a request.
pub(crate) trait Inputs: Send + Sync + 'static {
    /// What becomes of a text.
    type Read: Clone + Send;

    /// What that is called, for people.
    const NAME: &'static str;
    /// The parameter that has the texts.
    const PARAMETER: &'static str;

    /// The tokens of each text.
    fn tokens(&self) -> &[Vec<u32>];

    /// What they have in common with those that they share beginnings with, if the request says so.
    fn salt(&self) -> Option<&str>;

    /// Fails if a text of these tokens would not fit if it were alone.
    fn check(&self, runner: &Runner, tokens: &[u32]) -> outboard::Result<()>;

    /// Has a text of these tokens read.
    fn read(
        &self,
        runner: &Runner,
        tokens: &[u32],
        salt: Option<Arc<str>>,
    ) -> outboard::Result<PendingResult<Self::Read>>;
}

/// Texts to be embedded.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) pooling: Pooling,
    pub(crate) scale: Scale,
    pub(crate) cache_salt: Option<String>,
}

impl Embedded {
    fn request(&self, tokens: &[u32]) -> EmbedRequest {
        EmbedRequest::tokens(tokens).pooling(self.pooling).scale(self.scale)
    }
}

impl Inputs for Embedded {
    type Read = Embedding;

    const NAME: &'static str = "an embedding";
    const PARAMETER: &'static str = "input";

    fn tokens(&self) -> &[Vec<u32>] {
        &self.tokens
    }

    fn salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }

    fn check(&self, runner: &Runner, tokens: &[u32]) -> outboard::Result<()> {
        runner.check_embedding(self.request(tokens))
    }

    fn read(
        &self,
        runner: &Runner,
        tokens: &[u32],
        salt: Option<Arc<str>>,
    ) -> outboard::Result<PendingResult<Embedding>> {
        runner.embed(self.request(tokens).cache_salt(salt))
    }
}

/// Texts of whose tokens it is asked how probable they are.
#[derive(Debug)]
pub(crate) struct Scored {
    pub(crate) tokens: Vec<Vec<u32>>,
    /// How many of the most probable tokens are wanted beside each.
    pub(crate) top: usize,
    pub(crate) cache_salt: Option<String>,
}

impl Scored {
    fn request(&self, tokens: &[u32]) -> ScoreRequest {
        ScoreRequest::tokens(tokens).top(self.top)
    }
}

impl Inputs for Scored {
    type Read = Scores;

    const NAME: &'static str = "probabilities of a text's tokens";
    const PARAMETER: &'static str = "prompt";

    fn tokens(&self) -> &[Vec<u32>] {
        &self.tokens
    }

    fn salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }

    fn check(&self, runner: &Runner, tokens: &[u32]) -> outboard::Result<()> {
        runner.check_scores(self.request(tokens))
    }

    fn read(&self, runner: &Runner, tokens: &[u32], salt: Option<Arc<str>>) -> outboard::Result<PendingResult<Scores>> {
        runner.score(self.request(tokens).cache_salt(salt))
    }
}

/// Takes the texts of a request, one at a time.
struct Lane<I> {
    engine: Arc<Engine>,
    client: Client,
    salt: Option<Arc<str>>,
    inputs: Arc<I>,
    next: Arc<AtomicUsize>,
    since: Instant,
}

impl Engine {
    /// Has texts read; what becomes of them is in the order in which they are given. They end when this is dropped. Fails if one cannot fit, if too many
    /// wait, and with the first that fails.
    pub(crate) async fn read<I: Inputs>(self: &Arc<Engine>, client: &Client, inputs: I) -> Result<Vec<I::Read>> {
        for tokens in inputs.tokens() {
            inputs.check(&self.runner, tokens).map_err(|e| read_error(e).about(I::PARAMETER))?;
        }
        let count = inputs.tokens().len();
        let lanes = self.lanes(count);
        let turns = self.queue.enter(client, lanes).map_err(|full| self.refuse(full, lanes))?;
        let salt = self.beginnings.salt(client, inputs.salt());
        let (inputs, next) = (Arc::new(inputs), Arc::new(AtomicUsize::new(0)));
        // What is under way ends with this.
        let mut tasks = JoinSet::new();
        for turn in turns {
            let (engine, client, salt, since) = (self.clone(), client.clone(), salt.clone(), Instant::now());
            tasks.spawn(Lane { engine, client, salt, inputs: inputs.clone(), next: next.clone(), since }.run(turn));
        }
        let mut done: Vec<Option<I::Read>> = vec![None; count];
        while let Some(ended) = tasks.join_next().await {
            for (number, read) in ended.map_err(|_| lost::<I>())?? {
                if let Some(place) = done.get_mut(number) {
                    *place = Some(read);
                }
            }
            // Lanes that still wait for a place have nothing left to do.
            if done.iter().all(Option::is_some) {
                break;
            }
        }
        done.into_iter().collect::<Option<_>>().ok_or_else(lost::<I>)
    }
}

fn lost<I: Inputs>() -> ApiError {
    ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, format!("{}: it has ended without an end", I::NAME))
}

impl<I: Inputs> Lane<I> {
    async fn run(self, turn: Turn) -> Result<Vec<(usize, I::Read)>> {
        let _counted = UnderWay::new(&self.engine);
        let mut ended = self.engine.ended();
        let done = tokio::select! {
            done = self.all(turn) => done,
            _ = ended.wait_for(|&ended| ended) => Err(ApiError::stopping()),
        };
        done.inspect_err(|_| self.engine.metrics.ended("failed"))
    }

    async fn all(&self, turn: Turn) -> Result<Vec<(usize, I::Read)>> {
        let mut place = turn.await;
        self.engine.metrics.waited(self.since.elapsed());
        let mut done = Vec::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(tokens) = self.inputs.tokens().get(number) else { return Ok(done) };
            if !done.is_empty() {
                place = self.renew(place).await;
            }
            let prompt = tokens.len();
            let slot = Slot { prompt, tokens: AtomicUsize::new(0), since: Instant::now() };
            let occupied = Occupied::new(self.engine.clone(), place, Arc::new(slot));
            done.push((number, self.inputs.read(&self.engine.runner, tokens, self.salt.clone())?.await?));
            self.engine.took(occupied.slot.since.elapsed());
            self.engine.metrics.read(prompt);
            self.engine.metrics.ended("done");
            let (model, took) = (self.engine.runner.model().name(), occupied.slot.since.elapsed().as_millis());
            tracing::info!("{} by {model}: {prompt} tokens read, {took} ms, {}", I::NAME, self.client);
            let Some(vacated) = occupied.vacate() else { return Err(lost::<I>()) };
            place = vacated;
        }
    }

    /// Lets others have the place whose turn it is. Where there is no room to wait, it is kept for one more.
    async fn renew(&self, place: Place) -> Place {
        if self.engine.queue.waiting() == 0 {
            return place;
        }
        match self.engine.queue.enter(&self.client, 1).map(|mut turns| turns.pop()) {
            Ok(Some(turn)) => {
                drop(place);
                turn.await
            }
            _ => place,
        }
    }
}
