//! A model's place on its devices: what lies where, whether it fits, memory, upload.

use crate::ahead::round_trip;
use crate::allocate::{Bound, Item, Mapped, allocate, import, most_apart, set_states_apart};
use crate::arch::net::{self, Added, Cache, Feed, GraphShape, LogProbs, ModelGraph, Outputs, State, Stored};
use crate::batch::{MAX_PADDING, padded_rows};
use crate::blocks::blocks_of;
use crate::division::{Member, divide};
use crate::error::{Error, Result, Room};
use crate::model::Model;
use crate::parts::Parts;
use crate::pipeline::Pipeline;
use crate::route::Route;
use crate::split::{SplitDevice, split};
use crate::upload::{Uploads, fill, upload};
use outboard_core::op::BLOCK_ROWS;
use outboard_core::{Costs, DType, Device, DeviceInfo, DeviceKind, Slice, TensorId, WeightTail, try_at_once};
use outboard_scheduler::{Hints, Plan, Scheduler, SchedulerOptions};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Most tokens of a micro-batch when nothing is said: what the device asks for that wants the most. Several devices in a row get smaller ones
/// ([`crate::pipeline`]).
pub fn default_ubatch(devices: &[Arc<dyn Device>]) -> usize {
    devices.iter().map(|d| d.info().costs.batch_rows as usize).max().unwrap_or(1)
}

/// What attention and a run cost on these devices, in the mean.
pub fn mean_costs(devices: &[Arc<dyn Device>]) -> Costs {
    let mean =
        |of: fn(&Costs) -> f32| devices.iter().map(|d| of(&d.info().costs)).sum::<f32>() / devices.len().max(1) as f32;
    Costs { attention: mean(|costs| costs.attention), run_rows: mean(|costs| costs.run_rows), ..Costs::default() }
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
    /// Tokens of context of a sequence; 0 for what the model was trained with.
    pub n_ctx: usize,
    /// Most sequences at a time; 0 for one.
    pub n_seqs: usize,
    /// Tokens that the cache has room for, of all sequences together; 0 for the whole context of each.
    pub cache_tokens: usize,
    /// Element types of keys and of values in the cache.
    pub cache_types: [DType; 2],
    /// What becomes of beginnings that sequences have in common.
    pub prefixes: Prefixes,
    /// Most tokens in one run of the graph; 0 for what the devices ask for ([`default_ubatch`]).
    pub n_ubatch: usize,
    /// Most tokens of a run whose logits are needed, beside the last one: what they take is part of what has to fit.
    pub scores: usize,
    /// Each device's part of the model; empty for the parts that [`crate::division`] gives.
    pub split: Vec<f64>,
    /// Devices for weights by name, before the split: `None` leaves one to the split.
    pub overrides: Overrides,
    /// Allocates weights without their values, for measurements: nothing is uploaded, kernels take as long. Devices that use the
    /// mapped file in place have the real ones.
    pub blank: bool,
    /// Whether devices that can use weights where the file is mapped do so.
    pub mmap: Mmap,
}

/// Whether sequences that begin with the same tokens have these in the cache once, and read them once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefixes {
    /// Each has and reads its own: what is measured is not what somebody has read before.
    #[default]
    Apart,
    /// In whole blocks, which stay as long as their place is not needed.
    Shared,
}

impl Prefixes {
    pub(crate) fn are_shared(self) -> bool {
        self == Prefixes::Shared
    }
}

/// Options with numbers for everything.
pub(crate) struct Completed {
    pub(crate) options: LoadOptions,
    pub(crate) cache: Cache,
    /// Fewest rows of a run: with several sequences as many as are rounded alike, so that a text does not depend on those beside it.
    pub(crate) least_rows: usize,
}

impl LoadOptions {
    /// The same with numbers in place of those that depend on the model and the devices.
    pub(crate) fn completed(self, model: &Model, devices: &[Arc<dyn Device>]) -> Completed {
        let n_ctx = if self.n_ctx == 0 { model.hparams().n_ctx_train } else { self.n_ctx };
        let n_seqs = self.n_seqs.max(1);
        let uniform = devices.iter().map(|d| d.info().costs.uniform_rows as usize).max().unwrap_or(1);
        let least_rows = if n_seqs > 1 { uniform.clamp(1, BLOCK_ROWS) } else { 1 };
        let spare = if n_seqs > 1 { MAX_PADDING.max(least_rows) } else { 0 };
        let n_ubatch = if self.n_ubatch == 0 { default_ubatch(devices) } else { self.n_ubatch };
        // A step of all sequences is one run, with a part of a prompt that cannot be cut.
        let n_ubatch = n_ubatch.clamp(1, n_ctx.max(1)).max(if n_seqs > 1 {
            padded_rows(n_seqs.saturating_add(2 * least_rows))
        } else {
            1
        });
        // Where rows are rounded alike only from some number on, a part that cannot be cut has nearly twice as many.
        let scores = if self.scores == 0 { 0 } else { padded_rows(self.scores.max(2 * uniform.clamp(1, BLOCK_ROWS))) };
        let options = LoadOptions { n_ctx, n_seqs, n_ubatch, scores, ..self };
        let cache = options.cache().with_spare(spare);
        Completed { options, cache, least_rows }
    }

    /// The shape of the cache, of options that say the context, without spare slots.
    pub fn cache(&self) -> Cache {
        let (n_ctx, slots) = (self.n_ctx, self.n_seqs.max(1));
        let blocks = match self.cache_tokens {
            0 => blocks_of(n_ctx).saturating_mul(slots),
            tokens => blocks_of(tokens),
        };
        Cache { n_ctx, blocks, slots, spare: 0, dtypes: self.cache_types }
    }
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
        LoadOptions {
            n_ctx: 0,
            n_seqs: 1,
            cache_tokens: 0,
            cache_types: [net::CACHE_DTYPE; 2],
            prefixes: Prefixes::Apart,
            n_ubatch: 0,
            scores: 0,
            split: Vec::new(),
            overrides: Overrides::default(),
            blank: false,
            mmap: Mmap::Auto,
        }
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
    /// Bytes of weights, with the zeros that the device wants behind them.
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

/// A model on its devices.
pub(crate) struct Placed {
    pub(crate) scheduler: Scheduler,
    pub(crate) bound: Bound,
    /// The blocks of sequences, as each device with a part of the cache has them.
    pub(crate) tables: Vec<(usize, Slice)>,
    pub(crate) homes: Homes,
    pub(crate) pipeline: Pipeline,
    pub(crate) loads: Vec<DeviceLoad>,
    /// The way to the farthest device and back.
    pub(crate) round_trip: Duration,
    pub(crate) parts: Parts,
}

/// Which device each leaf belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    pub(crate) route: Route,
    overrides: Overrides,
}

impl Homes {
    pub(crate) fn of_leaf(&self, model: &ModelGraph, id: TensorId, stored: Stored) -> usize {
        let by_route = self.route.device_of(model.part(id));
        match stored {
            Stored::Weight(_) => self.overrides.device(model.graph.tensor(id).name()).unwrap_or(by_route),
            Stored::State(_) => by_route,
        }
    }

    /// What the scheduler is told of a graph's leaves and nodes.
    pub(crate) fn hints(&self, model: &ModelGraph) -> Hints {
        let graph = &model.graph;
        let leaves = model.all_stored().map(|(id, stored)| (id, self.of_leaf(model, id, stored))).collect();
        let prefer = graph.nodes().map(|id| (id, self.route.device_of(model.part(id)))).collect();
        Hints { leaves, pins: HashMap::new(), prefer }
    }

    /// What each device will hold. Leaves of one device that stand for the same are one item.
    fn items(&self, model: &ModelGraph, devices: &[Arc<dyn Device>]) -> Vec<Item> {
        let item = |(id, stored): (TensorId, Stored)| {
            let (t, device) = (model.graph.tensor(id), self.of_leaf(model, id, stored));
            let tail = match stored {
                Stored::Weight(_) => devices[device].info().weight_tail.of(t.dtype()),
                Stored::State(_) => 0,
            };
            Item { stored, name: t.name().to_owned(), device, bytes: t.layout().span() as u64, tail }
        };
        let mut seen = HashSet::new();
        let mut items: Vec<_> =
            model.all_stored().map(item).filter(|item| seen.insert((item.device, item.stored))).collect();
        let largest = |device: &Arc<dyn Device>| has_pages(device.info()).then_some(device.info().max_alloc);
        set_states_apart(&mut items, devices.iter().map(largest));
        items
    }
}

/// The graphs that need the most memory for results.
struct LargestGraphs {
    prompt: ModelGraph,
    step: ModelGraph,
    /// For scores of many tokens, where they were asked for.
    scores: Option<ModelGraph>,
}

impl LargestGraphs {
    fn new(model: &Model, options: &LoadOptions, cache: Cache) -> Result<LargestGraphs> {
        let n_ubatch = options.n_ubatch;
        // A step of all sequences, with as much padding as there may be.
        let rows = if options.n_seqs > 1 { padded_rows(options.n_seqs.max(cache.spare)).min(n_ubatch) } else { 1 };
        let outputs = Outputs::Sample { rows, penalties: true, added: Added::Nothing, log_probs: LogProbs::Top };
        let feed = if cache.slots > 1 { Feed::Mixed } else { Feed::Input };
        let prompt = GraphShape { n_tokens: n_ubatch, cache, feed, history: true, outputs };
        let step = model.graph(GraphShape { n_tokens: rows, feed: Feed::Sampled, ..prompt })?;
        let scores = match options.scores.min(n_ubatch) {
            _ if model.hparams().pooling.is_some() => None,
            0 => None,
            rows => Some(model.graph(GraphShape {
                feed: Feed::Input,
                outputs: Outputs::Scores { rows, log_probs: LogProbs::Top },
                ..prompt
            })?),
        };
        Ok(LargestGraphs { prompt: model.graph(prompt)?, step, scores })
    }

    fn all(&self) -> Vec<&ModelGraph> {
        [&self.prompt, &self.step].into_iter().chain(&self.scores).collect()
    }
}

/// A model that is divided, and has no memory yet.
struct Layout {
    /// Bytes that were free on each device.
    free: Vec<u64>,
    homes: Homes,
    plans: Vec<Plan>,
}

impl Placed {
    /// The memory of what each leaf of a graph stands for.
    pub(crate) fn memory_of(&self, model: &ModelGraph) -> Result<HashMap<TensorId, Slice>> {
        let memory = |(id, stored): (TensorId, Stored)| {
            let device = self.scheduler.devices().get(self.homes.of_leaf(model, id, stored));
            let slice = device.and_then(|device| self.bound.get(&(stored, device.uid())));
            let missing = || Error::Internal(format!("{} was not loaded", model.graph.tensor(id).name()));
            Ok((id, slice.ok_or_else(missing)?.clone()))
        };
        model.all_stored().map(memory).collect()
    }

    /// Places the model, checks that it fits, allocates, uploads. Weights that are kept are not uploaded again.
    pub(crate) fn new(
        model: &Model,
        devices: Vec<Arc<dyn Device>>,
        options: &LoadOptions,
        cache: Cache,
        kept_weights: &Bound,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Placed> {
        let draft = Draft::new(model, devices, options, cache, kept_weights)?;
        let mapped = draft.check(model, options, &draft.free, kept_weights)?;
        let Draft { mut scheduler, parts, homes, plans, items, loads, round_trip, .. } = draft;
        let (bound, uploads) = reserve(&mut scheduler, &plans, model, &items, &mapped, kept_weights)?;
        if options.blank {
            fill(&scheduler, &uploads)?
        } else {
            upload(model, &scheduler, uploads, progress)?
        }
        let pipeline = homes.route.pipeline(&parts, |d| Some(loads.get(d)?.costs));
        let tables = tables(&bound, scheduler.devices());
        Ok(Placed { scheduler, bound, tables, homes, pipeline, loads, round_trip, parts })
    }

    /// Fails if the model would not fit on the devices even if what lies there were freed. Nothing is allocated.
    pub(crate) fn would_fit(
        model: &Model,
        devices: Vec<Arc<dyn Device>>,
        options: &LoadOptions,
        cache: Cache,
        kept_weights: &Bound,
    ) -> Result<()> {
        let draft = Draft::new(model, devices, options, cache, kept_weights)?;
        let kept = kept_on(draft.scheduler.devices(), kept_weights);
        let free: Vec<u64> = draft.free.iter().zip(kept).map(|(free, kept)| free.saturating_add(kept)).collect();
        draft.check(model, options, &free, &Bound::new()).map(drop)
    }
}

/// A model that is divided and has no memory yet, and what each device is to hold.
struct Draft {
    scheduler: Scheduler,
    parts: Parts,
    /// Bytes that were free on each device.
    free: Vec<u64>,
    homes: Homes,
    plans: Vec<Plan>,
    items: Vec<Item>,
    loads: Vec<DeviceLoad>,
    round_trip: Duration,
}

impl Draft {
    fn new(
        model: &Model,
        devices: Vec<Arc<dyn Device>>,
        options: &LoadOptions,
        cache: Cache,
        kept_weights: &Bound,
    ) -> Result<Draft> {
        let scheduler = Scheduler::new(devices, SchedulerOptions::default())?;
        let graphs = LargestGraphs::new(model, options, cache)?;
        let parts = Parts::new(model, cache, &mean_costs(scheduler.devices()))?;
        // How far away the devices are is found out while they say what they can do.
        let (layout, round_trip) = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| round_trip(&scheduler));
            let panicked = |_| Err(Error::Internal("measuring round trips panicked".into()));
            let layout = lay_out(&parts, &scheduler, options, kept_weights, &graphs.all());
            (layout, measuring.join().unwrap_or_else(panicked))
        });
        let (Layout { free, homes, plans }, round_trip) = (layout?, round_trip?);
        let items = homes.items(&graphs.prompt, scheduler.devices());
        let loads = loads(scheduler.devices(), &items, &plans, &parts, &homes.route);
        Ok(Draft { scheduler, parts, free, homes, plans, items, loads, round_trip })
    }

    /// Checks that there is room, with so many bytes free on each device and weights that are there already. Gives the model's files as memory of the
    /// devices that are to use them in place.
    fn check(&self, model: &Model, options: &LoadOptions, free: &[u64], kept_weights: &Bound) -> Result<Vec<Mapped>> {
        let devices = self.scheduler.devices();
        let mapped = map(model, devices, options.mmap, free, &self.loads)?;
        check_allocations(&self.items, devices)?;
        let kept = |d: usize, device: &dyn Device| kept_bytes(&self.items, kept_weights, d, device);
        check_fits(devices, free, &self.loads, &mapped, &kept)?;
        Ok(mapped)
    }
}

/// The table of blocks on each device that has one.
fn tables(bound: &Bound, devices: &[Arc<dyn Device>]) -> Vec<(usize, Slice)> {
    let of = |(d, device): (usize, &Arc<dyn Device>)| {
        Some((d, bound.get(&(Stored::State(State::BlockTable), device.uid()))?.clone()))
    };
    devices.iter().enumerate().filter_map(of).collect()
}

/// What each device will hold.
fn loads(devices: &[Arc<dyn Device>], items: &[Item], plans: &[Plan], parts: &Parts, route: &Route) -> Vec<DeviceLoad> {
    let load = |(d, device): (usize, &Arc<dyn Device>)| {
        let here = || items.iter().filter(|item| item.device == d);
        DeviceLoad {
            id: device.info().id.clone(),
            costs: device.info().costs,
            layers: route.layers_on(parts, d),
            weight_bytes: bytes_of(here().filter(|item| item.is_weight())),
            cache_bytes: bytes_of(here().filter(|item| !item.is_weight())),
            compute_bytes: results(plans, d),
        }
    };
    devices.iter().enumerate().map(load).collect()
}

/// The model's files as memory of each device that is to use them in place.
fn map(
    model: &Model,
    devices: &[Arc<dyn Device>],
    mmap: Mmap,
    free: &[u64],
    loads: &[DeviceLoad],
) -> Result<Vec<Mapped>> {
    let map = |(device, has_room): (&Arc<dyn Device>, bool)| match mmap {
        Mmap::Always => import(device.as_ref(), model.gguf().files()),
        Mmap::Auto if !has_room => import(device.as_ref(), model.gguf().files()),
        Mmap::Auto | Mmap::Never => Ok(None),
    };
    let each = devices.iter().zip(has_room_for_copies(devices, free, loads));
    Ok(each.map(map).collect::<outboard_core::Result<_>>()?)
}

/// Bytes of weights of a device that are there already.
fn kept_bytes(items: &[Item], kept_weights: &Bound, d: usize, device: &dyn Device) -> u64 {
    let there = |item: &&Item| item.device == d && kept_weights.contains_key(&(item.stored, device.uid()));
    bytes_of(items.iter().filter(there))
}

/// Bytes of weights that lie in the memory of each device already.
fn kept_on(devices: &[Arc<dyn Device>], kept_weights: &Bound) -> Vec<u64> {
    let here = |&d: &usize| {
        kept_weights.values().filter(|s| s.buffer().device() == devices[d].uid()).map(Slice::len).sum::<u64>()
    };
    sharing(devices).iter().map(|sharing| sharing.iter().map(here).sum()).collect()
}

/// Asks for memory for leaves, and meanwhile for that of results.
fn reserve(
    scheduler: &mut Scheduler,
    plans: &[Plan],
    model: &Model,
    items: &[Item],
    mapped: &[Mapped],
    kept_weights: &Bound,
) -> Result<(Bound, Uploads)> {
    let devices = scheduler.devices().to_vec();
    let (reserved, allocated) = std::thread::scope(|scope| {
        let reserving = scope.spawn(|| scheduler.reserve(&plans.iter().collect::<Vec<_>>()));
        let allocated = allocate(model, &devices, items, mapped, kept_weights);
        (reserving.join(), allocated)
    });
    reserved.map_err(|_| Error::Internal("asking for memory panicked".into()))??;
    allocated
}

/// Divides the model and plans the graphs. Memory for results is known only with a plan, so that a second one is needed where it changes how
/// the model is divided.
fn lay_out(
    parts: &Parts,
    scheduler: &Scheduler,
    options: &LoadOptions,
    kept_weights: &Bound,
    graphs: &[&ModelGraph],
) -> Result<Layout> {
    let devices = scheduler.devices();
    let free = try_at_once(devices, |d| d.memory().map(|memory| memory.free))?;
    let weights = split_weights(parts, devices, options)?;
    let (sharing, kept) = (sharing(devices), kept_on(devices, kept_weights));
    let room: Vec<u64> = free.iter().zip(kept).map(|(free, kept)| free.saturating_add(kept)).collect();
    let used = weights.iter().filter(|&&weight| weight > 0.0).count();
    let sizes = parts.sizes(used);
    // Divides the model beside so many bytes of results, and behind weights and states, on each device.
    let divided = |reserve: &[u64]| -> Result<Homes> {
        let seen = |(d, device): (usize, &Arc<dyn Device>)| SplitDevice {
            id: device.info().id.clone(),
            pool: device.info().pool(),
            capacity: room[d].saturating_sub(sharing[d].iter().map(|&other| reserve[other]).sum()),
            weight: weights.get(d).copied().unwrap_or(0.0),
        };
        let seen: Vec<SplitDevice> = devices.iter().enumerate().map(seen).collect();
        Ok(Homes { route: split(&sizes, &seen)?, overrides: options.overrides.clone() })
    };
    let plan = |homes: &Homes| try_at_once(graphs, |g| scheduler.plan(g.graph.clone(), &homes.hints(g)));
    let apart = most_apart(largest_state(graphs));
    let tails = |info: &DeviceInfo| all_tails(graphs, info.weight_tail) + if has_pages(info) { apart } else { 0 };
    let tails: Vec<u64> = devices.iter().map(|device| tails(device.info())).collect();
    let homes = divided(&tails)?;
    let plans = plan(&homes)?;
    let needed: Vec<u64> = tails.iter().enumerate().map(|(d, tails)| results(&plans, d) + tails).collect();
    let with_results = divided(&needed)?;
    if with_results.route == homes.route {
        return Ok(Layout { free, homes, plans });
    }
    let plans = plan(&with_results)?;
    Ok(Layout { free, homes: with_results, plans })
}

/// Bytes of zeros that a device wants behind all weights of the model: whatever part of it is there, it is not more.
fn all_tails(graphs: &[&ModelGraph], tail: WeightTail) -> u64 {
    let of = |graph: &&ModelGraph| {
        let weights = graph.all_stored().filter(|(_, stored)| matches!(stored, Stored::Weight(_)));
        weights.map(|(id, _)| tail.of(graph.graph.tensor(id).dtype())).sum()
    };
    graphs.iter().map(of).max().unwrap_or(0)
}

/// Whether the system gives a device's memory in pages, when they are first written to.
fn has_pages(info: &DeviceInfo) -> bool {
    info.kind == DeviceKind::Cpu
}

/// Bytes of the largest state.
fn largest_state(graphs: &[&ModelGraph]) -> u64 {
    let states = graphs.iter().flat_map(|graph| {
        let of =
            |(id, stored)| matches!(stored, Stored::State(_)).then(|| graph.graph.tensor(id).layout().span() as u64);
        graph.all_stored().filter_map(of)
    });
    states.max().unwrap_or(0)
}

/// Each device's part of the model, relative to the others.
fn split_weights(parts: &Parts, devices: &[Arc<dyn Device>], options: &LoadOptions) -> Result<Vec<f64>> {
    match options.split.as_slice() {
        [] => Ok(divide(parts.bytes(), &Member::of(devices)?).parts),
        given if given.len() == devices.len() => Ok(given.to_vec()),
        given => Err(Error::PartsOfSplit { parts: given.len(), devices: devices.len() }),
    }
}

fn bytes_of<'i>(items: impl Iterator<Item = &'i Item>) -> u64 {
    items.map(Item::room).sum()
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

/// Says before anything is allocated which weight or state no buffer of its device can hold.
fn check_allocations(items: &[Item], devices: &[Arc<dyn Device>]) -> Result<()> {
    for item in items {
        let info = devices[item.device].info();
        if item.room() > info.max_alloc {
            let (tensor, device) = (item.name.clone(), info.id.clone());
            return Err(Error::TensorTooLarge { tensor, device, needed: item.room(), most: info.max_alloc });
        }
    }
    Ok(())
}

/// Says before anything is allocated what does not fit.
fn check_fits(
    devices: &[Arc<dyn Device>],
    free: &[u64],
    loads: &[DeviceLoad],
    mapped: &[Mapped],
    kept_bytes: &dyn Fn(usize, &dyn Device) -> u64,
) -> Result<()> {
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
        if weights + cache + results > free {
            let room = Room { devices: sharing.iter().map(|&d| loads[d].id.clone()).collect(), free };
            return Err(Error::MemoryFull { room, weights, cache, results });
        }
    }
    Ok(())
}
