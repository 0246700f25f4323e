//! Models with the rules for whom they answer.

use crate::answer_parser::{Callable, Splitter};
use crate::api;
use crate::blocking::{Length, Workers};
use crate::embed::Inputs;
use crate::engine::{Answers, Engine};
use crate::error::ApiError;
use crate::form::{self, Wanted};
use crate::form_process::FormProcesses;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::models::{Named, ServedModel, named};
use crate::page::Page;
use crate::queue::Client;
use crate::room::{Room, Rooms};
use crate::settings::Settings;
use crate::style::Style;
use crate::tools::Offer;
use axum::Router;
use http::{HeaderValue, Uri};
use outboard::{Embedding, Error, Message, Model, Result, Runner, Variables};
use outboard_net::Tokens;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What programs may be told about the host that they have asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// A request says an address or `localhost`. For servers on loopback that ask for no key: a page of somebody else, whose name has been made to
    /// mean this host, is not answered.
    #[default]
    Local,
    /// The same, a name of a private network (one without a dot, or in `.local`, `.lan`, `.internal`, `.home.arpa`), or one of these. For servers that
    /// ask for no key on other addresses: nobody outside can make such a name mean the server.
    Private(Vec<String>),
    /// Any name.
    Any,
}

/// Whom a service answers, and what they may take.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// What clients may take.
    pub limits: Limits,
    /// Keys that clients must show; nobody needs one without this.
    pub keys: Option<Arc<Tokens>>,
    /// Names of the model, the first of which is what clients are told. None: the name of its file, without `.gguf`. Of several models each has its own
    /// ([`ServedModel`]), and there are none here.
    pub names: Vec<String>,
    /// Names of this host that requests may say. With keys, any.
    pub hosts: Hosts,
    /// Origins whose pages may use it from a browser, such as `https://chat.lan`, or `*` for any. None: only pages that it serves itself.
    pub origins: Vec<String>,
    /// Whether there is a page for browsers.
    pub page: Page,
    /// Whose texts share beginnings.
    pub beginnings: Beginnings,
    /// Where forms of texts are compiled and followed. None: in this process, and what is known to cost too much is refused alone.
    pub form_processes: Option<FormProcesses>,
}

impl ServeOptions {
    /// Whether all of them can be used: a service with others cannot be made.
    pub fn check(&self) -> Result<()> {
        self.origins().map(drop)
    }

    fn origins(&self) -> Result<Vec<HeaderValue>> {
        let origin = |text: &String| {
            let wrong =
                || Error::Request(format!("\"{text}\" is no origin of pages: https://chat.lan is one, * is all"));
            origin_of(text).and_then(|origin| HeaderValue::from_str(&origin).ok()).ok_or_else(wrong)
        };
        self.origins.iter().map(origin).collect()
    }
}

/// An origin as browsers write it: scheme, host and port, or `*`.
fn origin_of(text: &str) -> Option<String> {
    if text == "*" {
        return Some(text.to_owned());
    }
    let uri: Uri = text.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.authority()?.as_str());
    let is_one = matches!(uri.path(), "" | "/") && uri.query().is_none() && !host.contains(['@', '*']);
    is_one.then(|| format!("{scheme}://{host}").to_ascii_lowercase())
}

/// Whose texts use what the cache has of others that begin alike. A client can tell by its own how another one's begin: by what `cached_tokens` says, and by
/// the time to the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginnings {
    /// Those of all clients: what many have in common is read once.
    #[default]
    OfAll,
    /// Those of one client: of a key, or of an address where there are no keys.
    OfEachClient,
}

impl Beginnings {
    /// What texts have in common that share beginnings, where a request has said something for this itself (`cache_salt`); `None` is one of its own.
    pub(crate) fn salt(self, client: &Client, said: Option<&str>) -> Option<Arc<str>> {
        let client = match self {
            Beginnings::OfAll => None,
            Beginnings::OfEachClient => Some(client),
        };
        (client.is_some() || said.is_some()).then(|| format!("{client:?} {said:?}").into())
    }
}

/// Models that programs may ask. Clones are the same ones. What is not asked of all is asked of one of them, the first where nothing is said.
#[derive(Clone)]
pub struct Service(Arc<Inner>, Arc<Named>);

struct Inner {
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
        f.debug_struct("Service").field("models", &self.0.models).finish_non_exhaustive()
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
        let inner = Inner { models, metrics, options, origins, rooms, workers, draining, since };
        Ok(Service(Arc::new(inner), first))
    }

    /// What answers requests. It needs a tokio runtime with timers. Clients without keys are told apart by `ConnectInfo<SocketAddr>`, if there is one.
    pub fn router(&self) -> Router {
        api::router(self)
    }

    /// From now on requests for texts are refused; those that are under way go on.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// Ends texts that are under way, with an error that says why.
    pub fn end(&self) {
        self.drain();
        self.0.models.iter().for_each(|model| model.engine.end());
    }

    /// Texts that are under way, or wait for their turn.
    pub fn texts(&self) -> usize {
        self.0.models.iter().map(|model| model.engine.under_way()).sum()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Fails if the server is about to stop.
    pub(crate) fn check_not_draining(&self) -> crate::error::Result<()> {
        if self.is_draining() { Err(ApiError::stopping()) } else { Ok(()) }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.1.engine
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn options(&self) -> &ServeOptions {
        &self.0.options
    }

    pub(crate) fn origins(&self) -> &[HeaderValue] {
        &self.0.origins
    }

    pub(crate) fn rooms(&self) -> &Arc<Rooms> {
        &self.0.rooms
    }

    /// When it began, in seconds since 1970.
    pub(crate) fn since(&self) -> u64 {
        self.0.since
    }

    pub(crate) fn model(&self) -> &Model {
        self.1.engine.runner.model()
    }

    /// Tokens that a text has with its prompt, at most.
    pub(crate) fn context(&self) -> usize {
        self.engine().runner.plan().context
    }

    /// What clients are told the model is called.
    pub(crate) fn name(&self) -> &str {
        self.1.name()
    }

    /// All that it is called.
    pub(crate) fn names(&self) -> &[String] {
        &self.1.names
    }

    /// All models.
    pub(crate) fn models(&self) -> &[Arc<Named>] {
        &self.0.models
    }

    /// The same service, of which this model is meant.
    pub(crate) fn with(&self, model: Arc<Named>) -> Service {
        Service(self.0.clone(), model)
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
        self.0.workers.run(length, room, move || work(&model)).await
    }

    /// The tokens of a chat, and what takes the answer to it apart. `form` is the form that the answer is to have.
    pub(crate) async fn encode_chat(
        &self,
        room: &Arc<Room>,
        chat: Chat,
        form: Option<&Wanted>,
    ) -> crate::error::Result<(Vec<u32>, Splitter)> {
        let (style, form) = (self.style().clone(), form.map(|form| form.param().to_owned()));
        self.work(room, move |model| {
            let Chat { messages, variables, offer: Offer { tools, calls, .. }, opening } = chat;
            let prompt = model.chat_with(&messages, &tools, &variables).map_err(|e| of_messages(e.into()))?;
            let is_reasoning = style.is_reasoning(&prompt);
            if let Some(param) = form.filter(|_| is_reasoning) {
                return Err(ApiError::unsupported(param, &format!("{IS_REASONING}, or without the form")));
            }
            if is_reasoning && !opening.is_empty() {
                return Err(ApiError::unsupported("messages", &format!("{IS_REASONING}, or for a new answer")));
            }
            let splitter = Splitter::new(&style, Callable::of(&tools), calls, is_reasoning);
            Ok((model.encode(&(prompt + &opening))?, splitter))
        })
        .await
    }

    /// Begins the texts of a chat. What has no room is refused before work is done for it; then the form is compiled, which `settings` has from here on, and
    /// the prompt encoded.
    pub(crate) async fn begin_chat(
        &self,
        client: &Client,
        room: Arc<Room>,
        chat: Chat,
        form: Option<Wanted>,
        settings: &mut Settings,
    ) -> crate::error::Result<(Answers, Splitter)> {
        let form = chat.offer.form_or(form, self.style())?;
        self.check_room(client, settings.n)?;
        settings.constraint = form::compile(self, &room, form.as_ref()).await?;
        let (prompt, splitter) = self.encode_chat(&room, chat, form.as_ref()).await?;
        drop(room);
        Ok((self.begin(client, &[prompt], settings)?, splitter))
    }

    /// Embeds texts, unless the server is about to stop.
    pub(crate) async fn embed(&self, client: &Client, inputs: Inputs) -> crate::error::Result<Vec<Embedding>> {
        self.check_not_draining()?;
        self.engine().embed(client, inputs).await
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

const IS_REASONING: &str = "the template of this model begins its reasoning, and what is asked for would begin before that ends; ask for none \
                            (chat_template_kwargs, reasoning_effort), where the template lets you";

/// A chat that is to be answered.
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    pub(crate) variables: Variables,
    pub(crate) offer: Offer,
    /// What the answer begins with: the model goes on from it.
    pub(crate) opening: String,
}

/// An error about what the template makes of messages.
fn of_messages(error: ApiError) -> ApiError {
    error.about("messages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_do() {
        for (said, origin) in [
            ("*", Some("*")),
            ("https://chat.lan", Some("https://chat.lan")),
            ("https://Chat.LAN:8443/", Some("https://chat.lan:8443")),
            ("chrome-extension://abc", Some("chrome-extension://abc")),
            ("https://chat.lan/page", None),
            ("https://chat.lan/?a", None),
            ("https://*.lan", None),
            ("https://me@chat.lan", None),
            ("chat.lan", None),
            ("://", None),
            ("", None),
        ] {
            assert_eq!(origin_of(said).as_deref(), origin, "{said}");
        }
    }
}
