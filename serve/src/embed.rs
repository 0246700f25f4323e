//! Embeddings under way: those of a request take places one after another, as texts do, and let others have theirs in between.

use crate::engine::{Engine, Occupied, Slot, UnderWay};
use crate::error::{ApiError, Result, of_embedding};
use crate::queue::{Client, Place, Turn};
use outboard::{EmbedRequest, Embedding, Pooling, Scale};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// What is to be embedded for a request.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// The tokens of each text.
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) pooling: Pooling,
    pub(crate) scale: Scale,
    /// Whose texts they share beginnings with: those of the same.
    pub(crate) cache_salt: Option<String>,
}

impl Inputs {
    fn request(&self, number: usize) -> Option<EmbedRequest> {
        let tokens = self.tokens.get(number)?;
        Some(EmbedRequest::tokens(tokens.clone()).pooling(self.pooling).scale(self.scale))
    }
}

/// Takes the inputs of a request, one at a time.
struct Lane {
    engine: Arc<Engine>,
    client: Client,
    salt: Option<Arc<str>>,
    inputs: Arc<Inputs>,
    next: Arc<AtomicUsize>,
    since: Instant,
}

impl Engine {
    /// Embeds texts, in the order in which they are given. They end when this is dropped. Fails if one cannot fit, if too many wait, and with the first
    /// that fails.
    pub(crate) async fn embed(self: &Arc<Engine>, client: &Client, inputs: Inputs) -> Result<Vec<Embedding>> {
        for number in 0..inputs.tokens.len() {
            if let Some(request) = inputs.request(number) {
                self.runner.check_embedding(request).map_err(|e| of_embedding(e).about("input"))?;
            }
        }
        let count = inputs.tokens.len();
        let lanes = count.min(self.runner.plan().sequences);
        let turns = self.queue.enter(client, lanes).map_err(|full| self.refuse(full, lanes))?;
        let salt = self.beginnings.salt(client, inputs.cache_salt.as_deref());
        let (inputs, next) = (Arc::new(inputs), Arc::new(AtomicUsize::new(0)));
        // What is under way ends with this.
        let mut tasks = JoinSet::new();
        for turn in turns {
            let (engine, client, salt, since) = (self.clone(), client.clone(), salt.clone(), Instant::now());
            tasks.spawn(Lane { engine, client, salt, inputs: inputs.clone(), next: next.clone(), since }.run(turn));
        }
        let mut done: Vec<Option<Embedding>> = vec![None; count];
        while let Some(ended) = tasks.join_next().await {
            for (number, embedding) in ended.map_err(|_| lost())?? {
                if let Some(place) = done.get_mut(number) {
                    *place = Some(embedding);
                }
            }
            // Lanes that still wait for a place have nothing left to do.
            if done.iter().all(Option::is_some) {
                break;
            }
        }
        done.into_iter().collect::<Option<_>>().ok_or_else(lost)
    }
}

fn lost() -> ApiError {
    ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "an embedding has ended without an end")
}

impl Lane {
    async fn run(self, turn: Turn) -> Result<Vec<(usize, Embedding)>> {
        let _counted = UnderWay::new(&self.engine);
        let mut ended = self.engine.ended();
        let done = tokio::select! {
            done = self.all(turn) => done,
            _ = ended.wait_for(|&ended| ended) => Err(ApiError::stopping()),
        };
        done.inspect_err(|_| self.engine.metrics.ended("failed"))
    }

    async fn all(&self, turn: Turn) -> Result<Vec<(usize, Embedding)>> {
        let mut place = turn.await;
        self.engine.metrics.waited(self.since.elapsed());
        let mut done = Vec::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = self.inputs.request(number) else { return Ok(done) };
            if !done.is_empty() {
                place = self.renew(place).await;
            }
            let prompt = self.inputs.tokens.get(number).map_or(0, Vec::len);
            let slot = Slot { prompt, tokens: AtomicUsize::new(0), since: Instant::now() };
            let occupied = Occupied::new(self.engine.clone(), place, Arc::new(slot));
            done.push((number, self.engine.runner.embed(request.cache_salt(self.salt.clone()))?.await?));
            self.engine.took(occupied.slot.since.elapsed());
            self.engine.metrics.read(prompt);
            self.engine.metrics.ended("done");
            let (model, took) = (self.engine.runner.model().name(), occupied.slot.since.elapsed().as_millis());
            tracing::info!("an embedding of {model}: {prompt} tokens read, {took} ms, {}", self.client);
            let Some(vacated) = occupied.vacate() else { return Err(lost()) };
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
