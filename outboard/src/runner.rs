//! A thread that generates texts, and reads them for embeddings and probabilities, side by side on one placed model.

use crate::cluster::{Cluster, Monitor, Told};
use crate::embed::{EmbedRequest, PendingEmbedding};
use crate::error::{Error, Result};
use crate::failover::{OnRecovery, Reconnect};
use crate::model::Model;
use crate::pending::{PendingResult, Recipient};
use crate::place::{Placed, Plan};
use crate::request::Request;
use crate::score::{PendingScores, ScoreRequest};
use crate::text::{Piece, Pieces, Text};
use outboard_core::Device;
use outboard_llm::tokenizer::Tokenizer;
use outboard_llm::{
    Capacity, Embedding, Failover, PlacedModel, Recovery, Scores, Stall, TextEvent, TextRequest, Texts, Wanted, Watch,
};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

/// How texts go on when something does not go as it should.
pub struct RunOptions {
    on_loss: OnLoss,
    patience: Duration,
    on_stall: Option<Arc<Watch>>,
}

/// What happens when a server is lost.
enum OnLoss {
    End,
    GoOn(Box<OnRecovery>),
}

impl Default for RunOptions {
    /// Goes on without a word.
    fn default() -> RunOptions {
        RunOptions { on_loss: OnLoss::GoOn(Box::new(|_| {})), patience: Duration::ZERO, on_stall: None }
    }
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goes_on = matches!(self.on_loss, OnLoss::GoOn(_));
        f.debug_struct("RunOptions")
            .field("goes_on", &goes_on)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl RunOptions {
    /// Ends all texts with [`Error::Peer`] when a server is lost, in place of going on with what is left. Later ones fail as well, unless it was only the
    /// connection that was lost.
    #[must_use]
    pub fn without_failover(mut self) -> RunOptions {
        self.on_loss = OnLoss::End;
        self
    }

    /// Is told how texts go on after a server was lost.
    #[must_use]
    pub fn on_recovery(mut self, told: impl FnMut(&Recovery) + Send + 'static) -> RunOptions {
        self.on_loss = OnLoss::GoOn(Box::new(told));
        self
    }

    /// Waits so long for a lost server to be restarted where the devices that are left have no room for the model. Without this, nobody waits, and texts
    /// end with the error.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> RunOptions {
        self.patience = patience;
        self
    }

    /// Is told of waits for devices that take long, every few seconds while they last.
    #[must_use]
    pub fn on_stall(mut self, watch: Arc<Watch>) -> RunOptions {
        self.on_stall = Some(watch);
        self
    }
}

/// Generates texts, as many side by side as the model was placed for; further ones wait for their turn.
///
/// An error of a device that cannot be recovered from ends the texts that are under way. The next text tries the devices once more, with what they are
/// then; meanwhile they have nothing to do, and hold nothing of a model that has no place on them.
///
/// Clones are the same runner. Its thread, and what the model has on devices, stay until the last clone and the last [`Text`] are dropped; whoever drops
/// that waits until devices are free.
#[derive(Clone)]
pub struct Runner(Arc<Shared>);

/// What keeps the thread alive.
pub(crate) struct Shared {
    model: Model,
    plan: Plan,
    capacity: Capacity,
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    cancel: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    monitor: Monitor,
}

/// What is wanted, and where it goes.
struct Job {
    wanted: Wanted,
    to: Destination,
}

/// Where goes what comes of a text.
enum Destination {
    Pieces(Pieces),
    Embedding(Recipient<Embedding>),
    Scores(Recipient<Scores>),
}

impl Destination {
    /// Whether nobody wants it any more.
    fn is_closed(&self) -> bool {
        match self {
            Destination::Pieces(pieces) => pieces.is_closed(),
            Destination::Embedding(recipient) => recipient.is_closed(),
            Destination::Scores(recipient) => recipient.is_closed(),
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("model", &self.0.model).field("plan", &self.0.plan).finish_non_exhaustive()
    }
}

impl Placed {
    /// Starts the thread that generates texts. If a server is lost, texts go on with what is left.
    pub fn run(self) -> Result<Runner> {
        self.run_with(RunOptions::default())
    }

    /// The same, and says what happens when something goes wrong.
    pub fn run_with(self, options: RunOptions) -> Result<Runner> {
        let plan = self.plan();
        let Placed { model, inner: mut placed, devices } = self;
        let monitor = Monitor::new(&devices, placed.loads());
        if let OnLoss::GoOn(told) = options.on_loss {
            let reconnect = Reconnect::new(devices.servers(), told).with_patience(options.patience);
            placed.set_failover(Box::new(Monitored { reconnect, monitor: monitor.told() }));
        }
        // The runner alone has the devices.
        drop(devices);
        placed.set_watch(watch(monitor.told(), options.on_stall));
        let (jobs, received) = channel();
        let (cancel, capacity) = (placed.cancel_token(), placed.capacity());
        let tokenizer = model.tokenizer().clone();
        let thread = std::thread::Builder::new().name("outboard-runner".into());
        let told = monitor.told();
        let thread = thread.spawn(move || work(placed, &tokenizer, &received, &told));
        let thread = thread.map_err(|e| Error::Request(format!("cannot start a thread: {e}")))?;
        Ok(Runner(Arc::new(Shared { model, plan, capacity, jobs: Some(jobs), cancel, thread: Some(thread), monitor })))
    }
}

impl Runner {
    /// Has a text generated, after those that were asked for before if there is no room now. Nothing is waited for here. Dropping the [`Text`] ends it.
    ///
    /// Fails at once with [`Error::ContextFull`] and [`Error::CacheFull`] if the text would not fit if it were alone, and if the prompt cannot be encoded.
    pub fn generate(&self, request: impl Into<Request>) -> Result<Text> {
        let request = self.checked(request.into())?;
        let (pieces, received) = unbounded_channel();
        self.ask(Job { wanted: request.into(), to: Destination::Pieces(pieces) })?;
        Ok(Text::new(received, self.0.clone()))
    }

    /// Has a text embedded, in turn with texts, which go on beside it. Nothing is waited for here. Dropping what is given ends it.
    ///
    /// Fails at once with [`Error::ContextFull`] and [`Error::CacheFull`] if the text would not fit if it were alone, and if it cannot be encoded or is
    /// empty.
    pub fn embed(&self, request: impl Into<EmbedRequest>) -> Result<PendingEmbedding> {
        let request = request.into().encode(&self.0.model)?;
        self.0.capacity.check_embedding(&request)?;
        self.read(request.into(), Destination::Embedding)
    }

    /// Asks how probable the tokens of a text are, in turn with texts, which go on beside it. Nothing is waited for here. Dropping what is given ends it.
    ///
    /// Fails at once with [`Error::ContextFull`] and [`Error::CacheFull`] if the text would not fit if it were alone, and if it cannot be encoded, is
    /// empty, or the model writes no texts. It is read [`PlaceOptions::scores`](crate::PlaceOptions::scores) tokens at a time: say how many before the model
    /// is placed.
    pub fn score(&self, request: impl Into<ScoreRequest>) -> Result<PendingScores> {
        let request = self.checked_scores(request.into())?;
        self.read(request.into(), Destination::Scores)
    }

    fn read<T>(&self, wanted: Wanted, to: impl FnOnce(Recipient<T>) -> Destination) -> Result<PendingResult<T>> {
        let (recipient, received) = unbounded_channel();
        self.ask(Job { wanted, to: to(recipient) })?;
        Ok(PendingResult::new(received, self.0.clone()))
    }

    fn ask(&self, job: Job) -> Result<()> {
        let gone = || Error::Bug("the thread that generates texts has ended".into());
        let jobs = self.0.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())
    }

    fn checked(&self, request: Request) -> Result<TextRequest> {
        self.check_writes_text()?;
        let request = request.encode(&self.0.model)?;
        self.0.capacity.check(&request)?;
        Ok(request)
    }

    fn checked_scores(&self, request: ScoreRequest) -> Result<outboard_llm::ScoreRequest> {
        self.check_writes_text()?;
        let request = request.encode(&self.0.model)?;
        self.0.capacity.check_scores(&request)?;
        Ok(request)
    }

    fn check_writes_text(&self) -> Result<()> {
        if self.0.model.writes_text() {
            return Ok(());
        }
        let why = "the model gives embeddings, and no text: ask for those (Runner::embed, /v1/embeddings), or take another model";
        Err(Error::Request(why.into()))
    }

    /// Whether a text would fit if it were alone, without having it generated: fails as [`Runner::generate`] does at once.
    pub fn check(&self, request: impl Into<Request>) -> Result<()> {
        self.checked(request.into()).map(drop)
    }

    /// The same for a text to be embedded, as [`Runner::embed`] does.
    pub fn check_embedding(&self, request: impl Into<EmbedRequest>) -> Result<()> {
        Ok(self.0.capacity.check_embedding(&request.into().encode(&self.0.model)?)?)
    }

    /// The same for a text whose tokens are asked about, as [`Runner::score`] does.
    pub fn check_scores(&self, request: impl Into<ScoreRequest>) -> Result<()> {
        self.checked_scores(request.into()).map(drop)
    }

    /// Whether its thread runs. One that has ended has met a bug, and every text fails.
    pub fn is_running(&self) -> bool {
        self.0.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// What lay where when the model was placed.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// What its devices hold and do now. Devices are asked once a second, and times recorded, for as long as somebody looks: the first look knows
    /// nothing that is measured, and ten seconds after the last one nobody asks any more. Nothing is waited for here.
    ///
    /// Of runners on the same [`Devices`](crate::Devices), the first one alone knows where tokens spend their time on devices of this process: open them
    /// for each.
    pub fn cluster(&self) -> Cluster {
        self.0.monitor.look()
    }
}

/// What helps after a loss, and tells the monitor.
struct Monitored {
    reconnect: Reconnect,
    monitor: Told,
}

impl Failover for Monitored {
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>> {
        let back = self.reconnect.replace(lost);
        self.monitor.came_back(&back);
        back
    }

    fn patience(&self) -> Duration {
        self.reconnect.patience()
    }

    fn recovered(&mut self, recovery: &Recovery) {
        self.monitor.recovered(recovery);
        self.reconnect.recovered(recovery);
    }
}

/// Tells the monitor of stalls, and whoever asked for it.
fn watch(monitor: Told, on_stall: Option<Arc<Watch>>) -> Arc<Watch> {
    Arc::new(move |stall: &Stall| {
        monitor.stalls(stall);
        if let Some(told) = &on_stall {
            told(stall);
        }
    })
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody is there to read what is under way.
        self.cancel.store(true, Ordering::Relaxed);
        self.jobs = None;
        let Some(thread) = self.thread.take() else { return };
        // A callback may have had the last clone.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Generates texts until nobody can ask for one.
fn work(mut model: PlacedModel, tokenizer: &Tokenizer, jobs: &Receiver<Job>, monitor: &Told) {
    let mut texts: Texts<'_, Destination> = Texts::new(tokenizer);
    let mut tell = |to: &Destination, event: TextEvent| {
        if matches!(event, TextEvent::Token { .. }) {
            monitor.token();
        }
        tell(to, event)
    };
    loop {
        if texts.is_empty() {
            monitor.ends();
            match jobs.recv() {
                Ok(Job { wanted, to }) => texts.push(to, wanted),
                Err(_) => return,
            }
            monitor.begins();
        }
        jobs.try_iter().for_each(|Job { wanted, to }| texts.push(to, wanted));
        texts.retain(&mut model, |to| !to.is_closed(), &mut tell);
        texts.step(&mut model, &mut tell);
    }
}

/// Gives a text's owner what has become of it.
fn tell(to: &Destination, event: TextEvent) -> ControlFlow<()> {
    let pieces = match to {
        Destination::Pieces(pieces) => pieces,
        Destination::Embedding(recipient) => {
            return tell_recipient(recipient, event, |event| match event {
                TextEvent::Embedded(embedding) => Some(embedding),
                _ => None,
            });
        }
        Destination::Scores(recipient) => {
            return tell_recipient(recipient, event, |event| match event {
                TextEvent::Scored(scores) => Some(scores),
                _ => None,
            });
        }
    };
    let piece = match event {
        TextEvent::Token { id, log_prob, top_log_probs, text } => {
            Ok(Piece { text, token: Some(id), log_prob, top_log_probs, end: None })
        }
        TextEvent::Ended { rest, generation } => {
            Ok(Piece { text: rest, end: Some(Box::new(generation)), ..Piece::default() })
        }
        TextEvent::Embedded(_) | TextEvent::Scored(_) => Err(Error::Bug("a text was read and not gone on with".into())),
        TextEvent::Failed(e) => Err(e.into()),
    };
    match pieces.send(piece) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// Gives on what was read of a text.
fn tell_recipient<T>(
    recipient: &Recipient<T>,
    event: TextEvent,
    read: impl FnOnce(TextEvent) -> Option<T>,
) -> ControlFlow<()> {
    let came = match event {
        TextEvent::Failed(e) => Err(e.into()),
        event => read(event).ok_or_else(|| Error::Bug("a text that was read has become another thing".into())),
    };
    match recipient.send(came) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}
