//! Models with the rules for whom they answer.

use crate::api;
use crate::blocking::{Length, Workers};
use crate::engine::{Answers, Engine};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::models::{Named, ServedModel, named};
use crate::options::ServeOptions;
use crate::queue::Client;
use crate::reading::Inputs;
use crate::room::{Room, Rooms};
use crate::settings::Settings;
use crate::style::Style;
use axum::Router;
use http::HeaderValue;
use outboard::{Error, Model, Result, Runner};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Models that programs may ask. Clones are the same ones. What is not asked of all is asked of one of them, the first where nothing is said.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    /// The model that is meant.
    model: Arc<Named>,
}

/// What all models have in common.
struct Shared {
    models: Vec<Arc<Named>>,
    metrics: Metrics,
    options: ServeOptions,
    origins: Vec<HeaderValue>,
    rooms: Arc<Rooms>,
    workers: Workers,
    draining: AtomicBool,
    since: u64,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("models", &self.shared.models).finish_non_exhaustive()
    }
}

impl Service {
    /// Over a runner, which should have no other users: the places for texts are given away here. Fails with [`Error::Request`] for an origin that
    /// is none.
    pub fn new(runner: Runner, mut options: ServeOptions) -> Result<Service> {
        let names = std::mem::take(&mut options.names);
        Service::of_models(vec![ServedModel { runner, names }], options)
    }

    /// Over several models, each with places and a queue of its own. Requests choose by name; those that name none get the first. Fails as
    /// [`Service::new`] does, and if two have the same name or there are none.
    pub fn of_models(models: Vec<ServedModel>, options: ServeOptions) -> Result<Service> {
        if !options.names.is_empty() {
            return Err(Error::Request("names are given with each model".into()));
        }
        let origins = options.origins()?;
        let Limits { bodies, bodies_each, .. } = options.limits;
        let (models, metrics) = named(models, &options)?;
        let first = models.first().cloned().ok_or_else(|| Error::Bug("there is no model".into()))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let (rooms, workers) = (Rooms::new(bodies, bodies_each), Workers::new());
        let draining = AtomicBool::new(false);
        let shared = Shared { models, metrics, options, origins, rooms, workers, draining, since };
        Ok(Service { shared: Arc::new(shared), model: first })
    }

    /// What answers requests. It needs a tokio runtime with timers. Clients without keys are told apart by `ConnectInfo<SocketAddr>`, if there is one.
    pub fn router(&self) -> Router {
        api::router(self)
    }

    /// From now on requests for texts are refused; those that are under way go on.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    /// Ends texts that are under way, with an error that says why.
    pub fn end(&self) {
        self.drain();
        self.shared.models.iter().for_each(|model| model.engine.end());
    }

    /// Texts that are under way, or wait for their turn.
    pub fn texts(&self) -> usize {
        self.shared.models.iter().map(|model| model.engine.under_way()).sum()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// Fails if the server is about to stop.
    pub(crate) fn check_not_draining(&self) -> crate::error::Result<()> {
        if self.is_draining() { Err(ApiError::stopping()) } else { Ok(()) }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.model.engine
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub(crate) fn options(&self) -> &ServeOptions {
        &self.shared.options
    }

    pub(crate) fn origins(&self) -> &[HeaderValue] {
        &self.shared.origins
    }

    pub(crate) fn rooms(&self) -> &Arc<Rooms> {
        &self.shared.rooms
    }

    /// When it began, in seconds since 1970.
    pub(crate) fn since(&self) -> u64 {
        self.shared.since
    }

    pub(crate) fn model(&self) -> &Model {
        self.model.engine.runner.model()
    }

    /// Tokens that a text has with its prompt, at most.
    pub(crate) fn context(&self) -> usize {
        self.engine().runner.plan().context
    }

    /// What clients are told the model is called.
    pub(crate) fn name(&self) -> &str {
        self.model.name()
    }

    /// All that it is called.
    pub(crate) fn names(&self) -> &[String] {
        &self.model.names
    }

    /// All models.
    pub(crate) fn models(&self) -> &[Arc<Named>] {
        &self.shared.models
    }

    /// The same service, of which this model is meant.
    pub(crate) fn with(&self, model: Arc<Named>) -> Service {
        Service { shared: self.shared.clone(), model }
    }

    /// Does something that may take long, such as finding the tokens of a long text, where no connection waits for it. Clients take turns.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        room: &Arc<Room>,
        work: impl FnOnce(&Model) -> crate::error::Result<T> + Send + 'static,
    ) -> crate::error::Result<T> {
        self.work_of(Length::of(room), room, work).await
    }

    /// The same of work whose length the size of the request does not tell.
    pub(crate) async fn work_of<T: Send + 'static>(
        &self,
        length: Length,
        room: &Arc<Room>,
        work: impl FnOnce(&Model) -> crate::error::Result<T> + Send + 'static,
    ) -> crate::error::Result<T> {
        let model = self.model().clone();
        self.shared.workers.run(length, room, move || work(&model)).await
    }

    /// Has texts read, unless the server is about to stop.
    pub(crate) async fn read<I: Inputs>(&self, client: &Client, inputs: I) -> crate::error::Result<Vec<I::Read>> {
        self.check_not_draining()?;
        self.engine().read(client, inputs).await
    }

    /// How the model writes.
    pub(crate) fn style(&self) -> &Style {
        &self.engine().style
    }

    /// Fails where [`begin`](Service::begin) would now, for so many texts: said before work is done for them.
    pub(crate) fn check_room(&self, client: &Client, count: usize) -> crate::error::Result<()> {
        self.check_not_draining()?;
        self.engine().check_room(client, count)
    }

    /// Begins texts, unless the server is about to stop.
    pub(crate) fn begin(
        &self,
        client: &Client,
        prompts: &[Vec<u32>],
        settings: &Settings,
    ) -> crate::error::Result<Answers> {
        self.check_not_draining()?;
        self.engine().begin(client, prompts, settings)
    }
}
