//! A placed model with one sequence in its cache: programs, and running tokens through them.

use crate::allocate::Bound;
use crate::arch::net::{self, Feed, GraphShape, Sampling};
use crate::decode::StepsAhead;
use crate::error::{Error, Result};
use crate::failover::{DeviceSlot, Failover};
use crate::model::Model;
use crate::pipeline::micro_batches;
use crate::placement::{DeviceLoad, LoadOptions, Placed, default_ubatch};
use crate::route::Route;
use crate::runs::{Inputs, Request, Run, Runs};
use crate::text::Text;
use crate::watch::Watch;
use bytes::Bytes;
use outboard_core::op::{Penalties, Sampler};
use outboard_core::{Device, LeafKind, Pending};
use outboard_scheduler::{Program, Scheduler};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Compiled graphs that are kept: prompts end in micro-batches of every length, of which the last ones may come again.
const MAX_PROGRAMS: usize = 32;

/// A model on devices, with one sequence in its cache.
pub struct Engine {
    pub(crate) model: Arc<Model>,
    pub(crate) placed: Placed,
    pub(crate) programs: Vec<(GraphShape, Arc<Program>)>,
    n_ctx: usize,
    n_ubatch: usize,
    pub(crate) n_past: usize,
    pub(crate) ahead: StepsAhead,
    /// What is in the cache.
    pub(crate) text: Text,
    /// Tokens that came since the last prompt.
    pub(crate) answered: usize,
    /// How and where it was loaded.
    pub(crate) options: LoadOptions,
    pub(crate) slots: Vec<DeviceSlot>,
    /// Whether everything has its place on a device.
    pub(crate) complete: bool,
    /// Recoveries since the last token.
    pub(crate) recoveries: usize,
    pub(crate) failover: Option<Box<dyn Failover>>,
    pub(crate) watch: Option<Arc<Watch>>,
}

impl Engine {
    /// Places the model, checks that it fits, allocates, uploads. `progress` is called with bytes done and bytes in all, from
    /// several threads.
    pub fn load(
        model: Arc<Model>,
        devices: Vec<Arc<dyn Device>>,
        options: &LoadOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Engine> {
        let trained = model.hparams().n_ctx_train;
        let n_ctx = if options.n_ctx == 0 { trained } else { options.n_ctx };
        let n_ubatch = if options.n_ubatch == 0 { default_ubatch(&devices) } else { options.n_ubatch };
        let n_ubatch = n_ubatch.clamp(1, n_ctx);
        let options = LoadOptions { n_ctx, n_ubatch, ..options.clone() };
        let slots = DeviceSlot::all(&devices);
        let placed = Placed::new(&model, devices, &options, &Bound::new(), progress)?;
        let ahead = StepsAhead::new(placed.round_trip);
        Ok(Engine {
            model,
            placed,
            programs: Vec::new(),
            n_ctx,
            n_ubatch,
            n_past: 0,
            ahead,
            text: Text::default(),
            answered: 0,
            options,
            slots,
            complete: true,
            recoveries: 0,
            failover: None,
            watch: None,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What each device holds.
    pub fn loads(&self) -> &[DeviceLoad] {
        &self.placed.loads
    }

    /// Tokens of context.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Layers that are on several devices, and the ids of those, in order.
    pub fn divided_layers(&self) -> Vec<(usize, Vec<&str>)> {
        let id = |d: usize| self.loads().get(d).map(|load| load.id.as_str());
        let ids = |devices: Vec<usize>| devices.into_iter().filter_map(id).collect();
        self.route().divided_layers(&self.placed.parts).into_iter().map(|(layer, d)| (layer, ids(d))).collect()
    }

    /// The way of a token through the devices.
    pub fn route(&self) -> &Route {
        &self.placed.homes.route
    }

    /// The device of each of the model's sections.
    pub fn homes(&self) -> &[usize] {
        self.route().homes()
    }

    /// Tokens in the cache.
    pub fn n_past(&self) -> usize {
        self.n_past
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        self.placed.scheduler.devices()
    }

    /// Set to stop at the next step of the scheduler.
    pub fn cancel_token(&self) -> Arc<AtomicBool> {
        self.placed.scheduler.cancel_token()
    }

    /// Forgets tokens behind the first `n`, and steps that are under way: later ones overwrite them.
    pub fn truncate(&mut self, n: usize) {
        self.text.truncate(n);
        self.n_past = self.n_past.min(n);
        self.ahead.clear();
    }

    /// Runs tokens through the model behind those that are in the cache, and samples the next one from the last. Gives its id and
    /// its log-probability.
    pub fn eval(&mut self, tokens: &[u32], sampler: Sampler) -> Result<(u32, f32)> {
        self.ahead.clear();
        self.prompt(tokens, Sampling { sampler, penalties: None, log_prob: true })?;
        let (id, log_prob) = self.next_id()?;
        Ok((id, log_prob.unwrap_or(f32::NAN)))
    }

    /// Runs tokens as [`Engine::eval`] does, and gives the logits of each, `n_vocab` apart.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_room(tokens.len())?;
        let mut all = Vec::new();
        for batch in tokens.chunks(self.n_ubatch) {
            self.text.read(self.n_past, batch);
            let run = self.enqueue(batch, Feed::Input, Request::Logits(batch.len()))?;
            let logits = self.wait(self.read(&run.program, net::LOGITS)?)?;
            all.extend(logits.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
        }
        Ok(all)
    }

    pub(crate) fn check_room(&self, n: usize) -> Result<()> {
        match self.n_past.checked_add(n) {
            Some(end) if end <= self.n_ctx => Ok(()),
            _ => Err(Error::Request(format!(
                "{n} tokens do not fit into the context of {} ({} are in it): make it larger with -c",
                self.n_ctx, self.n_past
            ))),
        }
    }

    /// Whether the model has all of these tokens.
    pub(crate) fn check_vocabulary(&self, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        match tokens.iter().find(|&&id| id as usize >= n_vocab) {
            Some(id) => Err(Error::Request(format!("token {id} is outside the model's vocabulary of {n_vocab}"))),
            None => Ok(()),
        }
    }

    /// Tokens from which all are rounded alike ([`outboard_core::Costs::uniform_rows`]).
    pub(crate) fn uniform_rows(&self) -> usize {
        self.placed.pipeline.uniform_rows()
    }

    /// Micro-batches that are to be enqueued in order.
    pub(crate) fn runs<T>(&self) -> Runs<T> {
        let hidden = 4 * self.n_ubatch as u64 * self.model.hparams().n_embd as u64;
        Runs::new(self.placed.pipeline.lead(hidden))
    }

    /// Tokens behind those in the cache as micro-batches. The text has them from now on: all of it is known before any of it may fail.
    pub(crate) fn micro_batches<'t>(&mut self, tokens: &'t [u32]) -> Result<Vec<&'t [u32]>> {
        self.check_room(tokens.len())?;
        let mut rest = tokens;
        let batch = |size: usize| {
            let (batch, behind) = rest.split_at(size.min(rest.len()));
            rest = behind;
            batch
        };
        let Placed { pipeline, parts, .. } = &self.placed;
        let sizes = micro_batches(self.n_past, tokens.len(), self.n_ubatch, pipeline, parts.work());
        let batches: Vec<&[u32]> = sizes.into_iter().map(batch).collect();
        self.text.truncate(self.n_past);
        batches.iter().for_each(|batch| self.text.read(self.text.len(), batch));
        Ok(batches)
    }

    /// Enqueues a prompt in micro-batches. The last one samples a token if that is wanted.
    pub(crate) fn enqueue_prompt(&mut self, tokens: &[u32], last: Request<'_>) -> Result<Run> {
        let batches = self.micro_batches(tokens)?;
        let run = self.enqueue_batches(&batches, last)?;
        run.ok_or_else(|| Error::Request("the prompt is empty".into()))
    }

    /// Enqueues micro-batches, of which the last one has outputs, and gives its run.
    pub(crate) fn enqueue_batches(&mut self, batches: &[&[u32]], last: Request<'_>) -> Result<Option<Run>> {
        let part = Request::Part { history: last.history() };
        let mut runs = self.runs();
        let mut enqueue = || -> Result<Option<Run>> {
            let mut run = None;
            for (i, batch) in batches.iter().enumerate() {
                let request = if i + 1 == batches.len() { last } else { part };
                run = runs.push(self, batch, request, ())?;
            }
            while let Some(next) = runs.next(self)? {
                run = Some(next);
            }
            Ok(run.map(|(run, ())| run))
        };
        let run = enqueue();
        runs.abandon(self);
        run
    }

    /// Enqueues one micro-batch. With [`Feed::Sampled`] only the length of the batch counts.
    pub(crate) fn enqueue(&mut self, batch: &[u32], feed: Feed, request: Request<'_>) -> Result<Run> {
        let (program, inputs) = self.next_run(batch, feed, request)?;
        let number = self.placed.scheduler.run(&program, &inputs)?;
        self.n_past += batch.len();
        Ok(Run { program, number })
    }

    /// The program and the inputs of a batch behind what is in the cache.
    pub(crate) fn next_run(
        &mut self,
        batch: &[u32],
        feed: Feed,
        request: Request<'_>,
    ) -> Result<(Arc<Program>, Inputs)> {
        let (outputs, history) = (request.outputs(), request.history());
        let program = self.program(GraphShape { n_tokens: batch.len(), n_ctx: self.n_ctx, feed, history, outputs })?;
        let graph = program.graph();
        let (first, n) = (self.n_past as i32, batch.len() as i32);
        let mut inputs: Inputs = Vec::with_capacity(6);
        let mut input = |name: &str, values: &mut dyn Iterator<Item = [u8; 4]>| {
            if let Some(id) = graph.find(name) {
                inputs.push((id, values.flatten().collect::<Vec<u8>>().into()));
            }
        };
        input(net::TOKENS, &mut batch.iter().map(|&t| t.to_le_bytes()));
        input(net::POSITIONS, &mut (first..first + n).map(i32::to_le_bytes));
        input(net::OUTPUT_ROWS, &mut (n - outputs.rows() as i32..n).map(i32::to_le_bytes));
        if let Request::Scores(targets) = request {
            input(net::TARGETS, &mut targets.iter().map(|&t| t.to_le_bytes()));
        }
        if let Request::Sample(Sampling { sampler, penalties, .. }) = request {
            let last = first + n - 1;
            let penalties = penalties.unwrap_or(Penalties::NONE);
            input(net::SAMPLE_PARAMS, &mut sampler.params().into_iter().map(f32::to_le_bytes));
            input(net::SAMPLE_DRAWS, &mut sampler.draw_of(last).into_iter().map(i32::to_le_bytes));
            input(net::PENALTY_PARAMS, &mut penalties.params().into_iter().map(f32::to_le_bytes));
            input(net::PENALTY_STEPS, &mut std::iter::once(last.to_le_bytes()));
        }
        Ok((program, inputs))
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.placed.scheduler
    }

    /// The compiled graph of a shape.
    pub(crate) fn program(&mut self, shape: GraphShape) -> Result<Arc<Program>> {
        if let Some((_, program)) = self.programs.iter().find(|(s, _)| *s == shape) {
            return Ok(program.clone());
        }
        let model_graph = self.model.graph(shape)?;
        let graph = model_graph.graph.clone();
        let plan = self.placed.scheduler.plan(graph.clone(), &self.placed.homes.hints(&model_graph))?;
        let mut bound = HashMap::new();
        for (id, kind) in graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input) {
            let name = graph.tensor(id).name();
            let slice =
                self.placed.bound.get(name).ok_or_else(|| Error::Plan(format!("{kind:?} {name} was not loaded")))?;
            bound.insert(id, slice.clone());
        }
        let program = Arc::new(self.placed.scheduler.prepare(plan, &bound)?);
        if self.programs.len() >= MAX_PROGRAMS {
            // The oldest goes, but not the one for single tokens, which is needed for every step.
            let oldest = self.programs.iter().position(|(s, _)| s.feed == Feed::Input).unwrap_or(0);
            self.programs.remove(oldest);
        }
        self.programs.push((shape, program.clone()));
        Ok(program)
    }

    /// An output of the run that was enqueued last.
    pub(crate) fn read(&self, program: &Program, output: &str) -> Result<Pending<Bytes>> {
        let id = program.graph().outputs().find(|&id| program.graph().tensor(id).name() == output);
        let id = id.ok_or_else(|| Error::Plan(format!("the graph has no output {output}")))?;
        Ok(self.placed.scheduler.read(program, id)?)
    }
}
