//! A model on its devices: placement, upload, the cache, running tokens through it.

use crate::allocate::{Bound, Item, Mapped, allocate, import, kept};
use crate::arch::net::{self, Feed, GraphShape, ModelGraph, Outputs, Place, Sampling};
use crate::batches::{Route, micro_batches};
use crate::decode::Ahead;
use crate::division::{Member, divide};
use crate::error::{Error, Result};
use crate::failover::{Failover, Seat};
use crate::model::Model;
use crate::parts::Parts;
use crate::runs::{Inputs, Run, Runs};
use crate::split::{Share, split};
use crate::text::Text;
use crate::upload::{fill, upload};
use crate::watch::Watch;
use bytes::Bytes;
use outboard_core::error::Bytes as Size;
use outboard_core::op::{Penalty, Sample};
use outboard_core::{Costs, Device, LeafKind, Pending, Slice, TensorId, try_at_once};
use outboard_scheduler::{Hints, Plan, Program, Scheduler, SchedulerOptions};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Compiled graphs that are kept: prompts end in micro-batches of every length, of which the last ones may come again.
const MAX_PROGRAMS: usize = 32;
/// Longest wait for devices while none of them gets any further. This is for those of this process: a node of a graph may take minutes
/// on a slow one. Servers are given up sooner, by their client.
const DEADLINE: Duration = Duration::from_secs(600);

/// Most tokens of a micro-batch when nothing is said: what the device asks for that wants the most. Several devices in a row get smaller ones
/// ([`micro_batches`]).
pub fn default_ubatch(devices: &[Arc<dyn Device>]) -> usize {
    devices.iter().map(|d| d.info().costs.batch_rows as usize).max().unwrap_or(1)
}

/// What attention costs on these devices, in the mean ([`outboard_core::Costs::attention`]).
pub fn attention_cost(devices: &[Arc<dyn Device>]) -> f32 {
    devices.iter().map(|d| d.info().costs.attention).sum::<f32>() / devices.len().max(1) as f32
}

/// Whether devices use the mapped file in place. Memory of their own has larger pages than a mapped file: decoding takes up to a fifth less time,
/// loading a copy more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mmap {
    /// Where there is not enough memory for the weights beside the file's own pages.
    #[default]
    Auto,
    /// Wherever a device can.
    Always,
    /// Nowhere.
    Never,
}

/// How a model is put on devices.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Tokens of context; 0 for what the model was trained with.
    pub n_ctx: usize,
    /// Most tokens in one run of the graph; 0 for what the devices ask for ([`default_ubatch`]).
    pub n_ubatch: usize,
    /// Most tokens of a run whose logits are needed, beside the last one: what they take is part of what has to fit.
    pub scores: usize,
    /// Each device's part of the model; empty for the parts that [`divide`] gives.
    pub split: Vec<f64>,
    /// Devices for weights by name, before the split: the first function that gives a device decides.
    pub overrides: Overrides,
    /// Allocates weights without their values, for measurements: nothing is uploaded, kernels take as long. Devices that use the
    /// mapped file in place have the real ones.
    pub blank: bool,
    /// Whether devices that can use weights where the file is mapped do so.
    pub mmap: Mmap,
}

type DeviceByName = dyn Fn(&str) -> Option<usize> + Send + Sync;

/// Where weights go that the user has placed: a function from a tensor's name to a device's index.
#[derive(Clone, Default)]
pub struct Overrides(Option<Arc<DeviceByName>>);

impl Overrides {
    /// Places weights by a function of their name.
    pub fn new(f: impl Fn(&str) -> Option<usize> + Send + Sync + 'static) -> Overrides {
        Overrides(Some(Arc::new(f)))
    }

    pub(crate) fn device(&self, name: &str) -> Option<usize> {
        self.0.as_ref().and_then(|f| f(name))
    }
}

impl std::fmt::Debug for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Overrides(..)" } else { "Overrides(none)" })
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        let (split, overrides) = (Vec::new(), Overrides::default());
        LoadOptions { n_ctx: 0, n_ubatch: 0, scores: 0, split, overrides, blank: false, mmap: Mmap::Auto }
    }
}

/// What one device holds.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceLoad {
    /// The device's id.
    pub id: String,
    /// What the time of its graphs depends on.
    pub costs: Costs,
    /// First and last layer of those that follow one another: none, or two such ranges on the device with both ends of the model. A layer
    /// that is on two devices counts to the one with its part of the cache: one that has nothing but the rest of a layer has none.
    pub layers: Vec<(usize, usize)>,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of the KV cache.
    pub cache_bytes: u64,
    /// Bytes of intermediate results.
    pub compute_bytes: u64,
}

impl DeviceLoad {
    /// Whether it has a part of the model.
    pub fn is_used(&self) -> bool {
        !self.layers.is_empty() || self.weight_bytes > 0
    }
}

/// A model on devices, with one sequence in its cache.
pub struct Engine {
    pub(crate) model: Arc<Model>,
    pub(crate) scheduler: Scheduler,
    pub(crate) bound: Bound,
    pub(crate) homes: Homes,
    pub(crate) loads: Vec<DeviceLoad>,
    pub(crate) programs: Vec<(GraphShape, Arc<Program>)>,
    parts: Parts,
    n_ctx: usize,
    n_ubatch: usize,
    pub(crate) n_past: usize,
    pub(crate) ahead: Ahead,
    /// What is in the cache.
    pub(crate) text: Text,
    /// Tokens that came since the last prompt.
    pub(crate) answered: usize,
    /// How and where it was loaded.
    pub(crate) options: LoadOptions,
    pub(crate) seats: Vec<Seat>,
    /// Whether everything has its place on a device.
    pub(crate) whole: bool,
    /// Recoveries since the last token.
    pub(crate) recoveries: usize,
    pub(crate) failover: Option<Box<dyn Failover>>,
    pub(crate) watch: Option<Arc<Watch>>,
}

/// A model on its devices.
pub(crate) struct Placed {
    pub(crate) scheduler: Scheduler,
    pub(crate) bound: Bound,
    pub(crate) homes: Homes,
    pub(crate) loads: Vec<DeviceLoad>,
    pub(crate) ahead: Ahead,
    pub(crate) parts: Parts,
}

/// Which device each leaf belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    /// The device of each section.
    sections: Vec<usize>,
    overrides: Overrides,
}

impl Homes {
    fn of_place(&self, place: Place) -> usize {
        let home = match place {
            Place::Embedding => self.sections.first(),
            Place::Section(i) => self.sections.get(i).or(self.sections.last()),
            Place::Head => self.sections.last(),
        };
        home.copied().unwrap_or(0)
    }

    fn of_leaf(&self, model: &ModelGraph, id: TensorId, kind: LeafKind) -> usize {
        let by_place = self.of_place(model.place(id));
        match kind {
            LeafKind::Weight => self.overrides.device(model.graph.tensor(id).name()).unwrap_or(by_place),
            _ => by_place,
        }
    }

    fn hints(&self, model: &ModelGraph) -> Hints {
        let graph = &model.graph;
        let leaves = graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input);
        let leaves = leaves.map(|(id, kind)| (id, self.of_leaf(model, id, kind))).collect();
        let prefer = graph.nodes().map(|id| (id, self.of_place(model.place(id)))).collect();
        Hints { leaves, pins: HashMap::new(), prefer }
    }
}

impl Placed {
    /// Places the model, checks that it fits, allocates, uploads. Weights that are kept are not uploaded again.
    pub(crate) fn new(
        model: &Model,
        devices: Vec<Arc<dyn Device>>,
        options: &LoadOptions,
        kept_weights: &Bound,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Placed> {
        let &LoadOptions { n_ctx, n_ubatch, .. } = options;
        let mut scheduler = Scheduler::new(devices, SchedulerOptions { deadline: DEADLINE })?;
        let outputs = Outputs::Sample(Sampling { sample: GREEDY, penalty: Some(NO_PENALTY), log_prob: true });
        let prompt = GraphShape { n_tokens: n_ubatch, n_ctx, feed: Feed::Input, history: true, outputs };
        let step = model.graph(GraphShape { n_tokens: 1, feed: Feed::Sampled, ..prompt })?;
        let scores = match options.scores.min(n_ubatch) {
            0 => None,
            rows => Some(model.graph(GraphShape { history: false, outputs: Outputs::Scores(rows), ..prompt })?),
        };
        let prompt = model.graph(prompt)?;
        let graphs: Vec<&ModelGraph> = [&prompt, &step].into_iter().chain(&scores).collect();
        let parts = Parts::new(model, n_ctx, attention_cost(scheduler.devices()))?;
        // How far away the devices are is found out while they say what they can do.
        let placing = || -> Result<_> {
            let free = try_at_once(scheduler.devices(), |d| d.memory().map(|memory| memory.free))?;
            let (homes, plans) = place(&parts, &scheduler, &free, options, kept_weights, &graphs)?;
            Ok((free, homes, plans))
        };
        let (placed, ahead) = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| Ahead::measure(&scheduler));
            let panicked = |_| Err(Error::Plan("measuring round trips panicked".into()));
            (placing(), measuring.join().unwrap_or_else(panicked))
        });
        let ((free, homes, plans), ahead) = (placed?, ahead?);
        let leaves = prompt.graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input);
        let items: Vec<Item> = leaves
            .map(|(id, kind)| {
                let t = prompt.graph.tensor(id);
                let device = homes.of_leaf(&prompt, id, kind);
                Item { leaf: t.name().to_owned(), device, kind, size: t.layout().span() as u64 }
            })
            .collect();
        let mut loads = Vec::new();
        for (d, device) in scheduler.devices().iter().enumerate() {
            let bytes = |weight: bool| {
                bytes_of(items.iter().filter(|i| i.device == d && (i.kind == LeafKind::Weight) == weight))
            };
            loads.push(DeviceLoad {
                id: device.info().id.clone(),
                costs: device.info().costs,
                layers: parts.layers_on(&homes.sections, d),
                weight_bytes: bytes(true),
                cache_bytes: bytes(false),
                compute_bytes: results(&plans, d),
            });
        }
        let kept_bytes = |d: usize, device: &dyn Device| {
            let there = |i: &&Item| i.device == d && kept(kept_weights, &i.leaf, device).is_some();
            bytes_of(items.iter().filter(there))
        };
        let copies = has_room_for_copies(scheduler.devices(), &free, &loads);
        let in_place = |(device, copies): (&Arc<dyn Device>, bool)| match options.mmap {
            Mmap::Always => import(device.as_ref(), model.gguf().files()),
            Mmap::Auto if !copies => import(device.as_ref(), model.gguf().files()),
            Mmap::Auto | Mmap::Never => Ok(None),
        };
        let each = scheduler.devices().iter().zip(copies);
        let mapped: Vec<Mapped> = each.map(in_place).collect::<outboard_core::Result<_>>()?;
        check_allocations(&items, scheduler.devices())?;
        check_fits(&scheduler, &free, &loads, &mapped, &kept_bytes)?;
        // Memory for results is asked for while that for leaves is.
        let devices = scheduler.devices().to_vec();
        let (reserved, allocated) = std::thread::scope(|scope| {
            let reserving = scope.spawn(|| scheduler.reserve(&plans.iter().collect::<Vec<_>>()));
            let allocated = allocate(model, &devices, &items, &mapped, kept_weights);
            (reserving.join(), allocated)
        });
        reserved.map_err(|_| Error::Plan("asking for memory panicked".into()))??;
        let (bound, uploads) = allocated?;
        if options.blank {
            fill(&scheduler, &uploads)?
        } else {
            upload(model, &scheduler, uploads, progress)?
        }
        Ok(Placed { scheduler, bound, homes, loads, ahead, parts })
    }
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
        let seats = Seat::all(&devices);
        let placed = Placed::new(&model, devices, &options, &Bound::new(), progress)?;
        let Placed { scheduler, bound, homes, loads, ahead, parts } = placed;
        Ok(Engine {
            model,
            scheduler,
            bound,
            homes,
            loads,
            programs: Vec::new(),
            parts,
            n_ctx,
            n_ubatch,
            n_past: 0,
            ahead,
            text: Text::default(),
            answered: 0,
            options,
            seats,
            whole: true,
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
        &self.loads
    }

    /// Tokens of context.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Layers that are on several devices, and the ids of those, in order.
    pub fn divided_layers(&self) -> Vec<(usize, Vec<&str>)> {
        let mut divided: Vec<(usize, Vec<&str>)> = Vec::new();
        for (section, &home) in self.parts.sections.iter().zip(self.homes()) {
            let Some(load) = self.loads.get(home) else { continue };
            match divided.last_mut() {
                Some((same, devices)) if *same == section.layer => devices.push(&load.id),
                _ => divided.push((section.layer, vec![&load.id])),
            }
        }
        divided.iter_mut().for_each(|(_, devices)| devices.dedup());
        divided.retain(|(_, devices)| devices.len() > 1);
        divided
    }

    /// The device of each of the model's sections.
    pub fn homes(&self) -> &[usize] {
        &self.homes.sections
    }

    /// Tokens in the cache.
    pub fn n_past(&self) -> usize {
        self.n_past
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        self.scheduler.devices()
    }

    /// Set to stop at the next step of the scheduler.
    pub fn cancel_token(&self) -> Arc<AtomicBool> {
        self.scheduler.cancel_token()
    }

    /// Forgets tokens behind the first `n`, and steps that are under way: later ones overwrite them.
    pub fn truncate(&mut self, n: usize) {
        self.text.truncate(n);
        self.n_past = self.n_past.min(n);
        self.ahead.clear();
    }

    /// Runs tokens through the model behind those that are in the cache, and samples the next one from the last. Gives its id and
    /// its log-probability.
    pub fn eval(&mut self, tokens: &[u32], sample: Sample) -> Result<(u32, f32)> {
        self.ahead.clear();
        self.prompt(tokens, Sampling { sample, penalty: None, log_prob: true })?;
        let (id, log_prob) = self.next_id()?;
        Ok((id, log_prob.unwrap_or(f32::NAN)))
    }

    /// Runs tokens as [`Engine::eval`] does, and gives the logits of each, `n_vocab` apart.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_room(tokens.len())?;
        let mut all = Vec::new();
        for batch in tokens.chunks(self.n_ubatch) {
            self.text.read(self.n_past, batch);
            let run = self.enqueue(batch, Feed::Input, false, Outputs::Logits(batch.len()))?;
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

    /// What `f` says of the way of a prompt.
    fn with_route<T>(&self, f: impl FnOnce(Route<'_>) -> T) -> T {
        let (devices, round) = self.parts.way(self.homes());
        let devices: Vec<Costs> = devices.iter().filter_map(|&d| Some(self.loads.get(d)?.costs)).collect();
        f(Route { devices: &devices, round })
    }

    /// Tokens from which all are rounded alike ([`Costs::uniform_rows`]).
    pub(crate) fn uniform_rows(&self) -> usize {
        self.with_route(|route| route.uniform_rows())
    }

    /// Micro-batches that are to be enqueued in order.
    pub(crate) fn runs<T>(&self) -> Runs<T> {
        let hidden = 4 * self.n_ubatch as u64 * self.model.hparams().n_embd as u64;
        Runs::new(self.with_route(|route| route.lead(hidden)))
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
        let (past, n, full, work) = (self.n_past, tokens.len(), self.n_ubatch, self.parts.work());
        let sizes = self.with_route(|route| micro_batches(past, n, full, route, work));
        let batches: Vec<&[u32]> = sizes.into_iter().map(batch).collect();
        self.text.truncate(self.n_past);
        batches.iter().for_each(|batch| self.text.read(self.text.len(), batch));
        Ok(batches)
    }

    /// Enqueues a prompt in micro-batches. The last one samples a token if that is wanted.
    pub(crate) fn enqueue_prompt(&mut self, tokens: &[u32], history: bool, last: Outputs) -> Result<Run> {
        let batches = self.micro_batches(tokens)?;
        let run = self.enqueue_batches(&batches, history, last)?;
        run.ok_or_else(|| Error::Request("the prompt is empty".into()))
    }

    /// Enqueues micro-batches, of which the last one has outputs, and gives its run.
    pub(crate) fn enqueue_batches(&mut self, batches: &[&[u32]], history: bool, last: Outputs) -> Result<Option<Run>> {
        let mut runs = self.runs();
        let mut enqueue = || -> Result<Option<Run>> {
            let mut run = None;
            for (i, batch) in batches.iter().enumerate() {
                let outputs = if i + 1 == batches.len() { last } else { Outputs::None };
                let shape =
                    GraphShape { n_tokens: batch.len(), n_ctx: self.n_ctx, feed: Feed::Input, history, outputs };
                run = runs.push(self, shape, batch, &[], ())?;
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
    pub(crate) fn enqueue(&mut self, batch: &[u32], feed: Feed, history: bool, outputs: Outputs) -> Result<Run> {
        let shape = GraphShape { n_tokens: batch.len(), n_ctx: self.n_ctx, feed, history, outputs };
        let (program, inputs) = self.next_run(shape, batch, &[])?;
        let number = self.scheduler.run(&program, &inputs)?;
        self.n_past += batch.len();
        Ok(Run { program, number })
    }

    /// The program and the inputs of a batch behind what is in the cache.
    pub(crate) fn next_run(
        &mut self,
        shape: GraphShape,
        batch: &[u32],
        targets: &[u32],
    ) -> Result<(Arc<Program>, Inputs)> {
        let program = self.program(shape)?;
        let graph = program.graph();
        let first = self.n_past as i32;
        let n = batch.len() as i32;
        let mut inputs: Inputs = Vec::with_capacity(4);
        let mut input = |name: &str, values: &mut dyn Iterator<Item = i32>| {
            if let Some(id) = graph.find(name) {
                inputs.push((id, values.flat_map(i32::to_le_bytes).collect::<Vec<u8>>().into()));
            }
        };
        input(net::TOKENS, &mut batch.iter().map(|&t| t as i32));
        input(net::POSITIONS, &mut (first..first + n));
        input(net::OUTPUT_ROWS, &mut (n - shape.outputs.rows() as i32..n));
        input(net::TARGETS, &mut targets.iter().map(|&t| t as i32));
        input(net::SAMPLE_STEPS, &mut std::iter::once(first + n - 1));
        Ok((program, inputs))
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The compiled graph of a shape.
    pub(crate) fn program(&mut self, shape: GraphShape) -> Result<Arc<Program>> {
        if let Some((_, program)) = self.programs.iter().find(|(s, _)| *s == shape) {
            return Ok(program.clone());
        }
        let model_graph = self.model.graph(shape)?;
        let graph = model_graph.graph.clone();
        let plan = self.scheduler.plan(graph.clone(), &self.homes.hints(&model_graph))?;
        let mut bound = HashMap::new();
        for (id, kind) in graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input) {
            let name = graph.tensor(id).name();
            let slice = self.bound.get(name).ok_or_else(|| Error::Plan(format!("{kind:?} {name} was not loaded")))?;
            bound.insert(id, slice.clone());
        }
        let program = Arc::new(self.scheduler.prepare(plan, &bound)?);
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
        Ok(self.scheduler.read(program, id)?)
    }
}

/// Changes nothing; for planning.
const NO_PENALTY: Penalty = Penalty { last_n: 0, repeat: 1.0, frequency: 0.0, presence: 0.0 };

/// Takes the most probable token.
pub const GREEDY: Sample = Sample { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

/// Divides the model and plans the graphs; `free` has the bytes that are free on each device. Memory for results is known only with a plan,
/// so that a second one is needed where it changes how the model is divided.
fn place(
    parts: &Parts,
    scheduler: &Scheduler,
    free: &[u64],
    options: &LoadOptions,
    kept_weights: &Bound,
    graphs: &[&ModelGraph],
) -> Result<(Homes, Vec<Plan>)> {
    let devices = scheduler.devices();
    if !options.split.is_empty() && options.split.len() != devices.len() {
        return Err(Error::Request(format!("-ts has {} parts for {} devices", options.split.len(), devices.len())));
    }
    let sharing = sharing(devices);
    let here = |&d: &usize| {
        kept_weights.values().filter(|s| s.buffer().device() == devices[d].uid()).map(Slice::len).sum::<u64>()
    };
    let kept = |d: usize| sharing[d].iter().map(here).sum::<u64>();
    let free: Vec<u64> = free.iter().enumerate().map(|(d, free)| free.saturating_add(kept(d))).collect();
    let sizes = parts.sizes();
    let shares = match options.split.as_slice() {
        [] => divide(sizes.bytes(), &Member::of(devices)?).parts,
        given => given.to_vec(),
    };
    let divided = |reserve: &[u64]| -> Result<Homes> {
        let share = |(d, device): (usize, &Arc<dyn Device>)| Share {
            id: device.info().id.clone(),
            pool: device.info().pool(),
            capacity: free[d].saturating_sub(sharing[d].iter().map(|&other| reserve[other]).sum()),
            weight: shares.get(d).copied().unwrap_or(0.0),
        };
        let shares: Vec<Share> = devices.iter().enumerate().map(share).collect();
        Ok(Homes { sections: split(&sizes, &shares)?, overrides: options.overrides.clone() })
    };
    let plan = |homes: &Homes| try_at_once(graphs, |g| scheduler.plan(g.graph.clone(), &homes.hints(g)));
    let homes = divided(&vec![0; devices.len()])?;
    let plans = plan(&homes)?;
    let needed: Vec<u64> = (0..devices.len()).map(|d| results(&plans, d)).collect();
    let with_results = divided(&needed)?;
    if with_results.sections == homes.sections {
        return Ok((homes, plans));
    }
    let plans = plan(&with_results)?;
    Ok((with_results, plans))
}

/// Bytes of leaves on one device, where those of one tensor share its memory.
fn bytes_of<'i>(items: impl Iterator<Item = &'i Item>) -> u64 {
    let mut seen = HashSet::new();
    items.filter(|i| seen.insert(net::file_name(&i.leaf))).map(|i| i.size).sum()
}

/// Bytes that the graphs need on a device beside weights and cache: memory for results is shared among them, copies of weights from
/// other devices are not.
fn results(plans: &[Plan], device: usize) -> u64 {
    let compute = plans.iter().map(|p| p.compute_bytes()[device]).max().unwrap_or(0);
    compute + plans.iter().map(|p| p.weight_copy_bytes()[device]).sum::<u64>()
}

/// For each device those that share its memory, itself among them, in their order.
fn sharing(devices: &[Arc<dyn Device>]) -> Vec<Vec<usize>> {
    let pools: Vec<String> = devices.iter().map(|d| d.info().pool()).collect();
    let same = |pool: &String| (0..pools.len()).filter(|&other| pools[other] == *pool).collect();
    pools.iter().map(same).collect()
}

/// Whether each device has memory for its weights beside the pages of the file that they are read from, with all that shares this memory.
fn has_room_for_copies(devices: &[Arc<dyn Device>], free: &[u64], loads: &[DeviceLoad]) -> Vec<bool> {
    let needed = |&d: &usize| 2 * loads[d].weight_bytes + loads[d].cache_bytes + loads[d].compute_bytes;
    let each = sharing(devices).into_iter().zip(free);
    each.map(|(sharing, &free)| free >= sharing.iter().map(needed).sum()).collect()
}

/// Says before anything is allocated which leaf no buffer of its device can hold.
fn check_allocations(items: &[Item], devices: &[Arc<dyn Device>]) -> Result<()> {
    for item in items {
        let info = devices[item.device].info();
        if item.size > info.max_alloc {
            let (leaf, id, size, most) = (&item.leaf, &info.id, Size(item.size), Size(info.max_alloc));
            let why =
                format!("{leaf} is {size} large, and {id} allocates {most} at once at most; place it elsewhere (-ot)");
            return Err(Error::Request(why));
        }
    }
    Ok(())
}

/// Says before anything is allocated what does not fit.
fn check_fits(
    scheduler: &Scheduler,
    free: &[u64],
    loads: &[DeviceLoad],
    mapped: &[Mapped],
    kept_bytes: &dyn Fn(usize, &dyn Device) -> u64,
) -> Result<()> {
    let devices = scheduler.devices();
    // Each memory once, with the first device that has it.
    let memories = sharing(devices).into_iter().enumerate().filter(|(d, sharing)| sharing.first() == Some(d));
    for (_, sharing) in memories {
        let weights_of = |d: usize| match mapped[d] {
            Some(_) => 0,
            None => loads[d].weight_bytes.saturating_sub(kept_bytes(d, devices[d].as_ref())),
        };
        let sum = |bytes: &dyn Fn(usize) -> u64| sharing.iter().map(|&d| bytes(d)).sum::<u64>();
        let (weights, cache) = (sum(&weights_of), sum(&|d| loads[d].cache_bytes));
        let (results, free) = (sum(&|d| loads[d].compute_bytes), sharing.iter().map(|&d| free[d]).min().unwrap_or(0));
        let needed = weights + cache + results;
        if needed > free {
            let ids = sharing.iter().map(|&d| loads[d].id.as_str()).collect::<Vec<_>>().join(" and ");
            return Err(Error::Request(format!(
                "{ids}: not enough memory: {} needed (weights {}, KV cache {}, results {}), {} free; use fewer layers there \
                 (-ts), a smaller context (-c) or another device",
                Size(needed),
                Size(weights),
                Size(cache),
                Size(results),
                Size(free)
            )));
        }
    }
    Ok(())
}
