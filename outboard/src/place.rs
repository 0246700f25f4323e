//! How a model is put on devices, and what lies where then.

use crate::devices::Devices;
use crate::digests::Remembered;
use crate::error::{Error, Result};
use crate::model::Model;
use outboard_core::DType;
use outboard_llm::division::{Member, divide};
use outboard_llm::{
    DeviceLoad, LoadOptions, Mmap, Overrides, Parts, PlacedModel, Prefixes, default_ubatch, mean_costs,
};
use std::fmt;

/// Context when nothing is said: enough for a chat, and small beside the weights.
pub const DEFAULT_CONTEXT: usize = 4096;

/// How a model is divided over devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Split {
    /// By measured speed and free memory.
    #[default]
    BySpeed,
    /// Everything on the first device.
    First,
    /// In these parts, one for each device; the last one has the end of the model and its beginning.
    Parts(Vec<f64>),
}

/// How a model is put on devices. The default has one sequence of [`DEFAULT_CONTEXT`] tokens, and leaves the rest to what is measured.
#[derive(Clone, Debug)]
pub struct PlaceOptions {
    /// Tokens of context of each sequence: `None` for [`DEFAULT_CONTEXT`], or less if the model was trained with less.
    pub context: Option<usize>,
    /// Texts that are generated at a time; further ones wait.
    pub sequences: usize,
    /// Tokens that the cache has room for, of all sequences together: `None` for the whole context of each.
    pub cache_tokens: Option<usize>,
    /// Element types of keys and of values in the cache.
    pub cache_types: [DType; 2],
    /// What becomes of beginnings that prompts have in common.
    pub prefixes: Prefixes,
    /// Most tokens of a prompt that are worked on in one run: `None` for what the devices ask for.
    pub micro_batch: Option<usize>,
    /// Most tokens of a run of which probabilities are asked for ([`Runner::score`](crate::Runner::score)): what they take is part of what has to fit. 0
    /// for as many as have room in any case, which are few.
    pub scores: usize,
    /// How the model is divided.
    pub split: Split,
    /// Places of weights by name, as numbers of devices in their list, before the split.
    pub overrides: Overrides,
    /// Whether devices that can use weights where the file is mapped do so.
    pub mmap: Mmap,
}

impl Default for PlaceOptions {
    fn default() -> PlaceOptions {
        let LoadOptions { cache_types, overrides, mmap, .. } = LoadOptions::default();
        PlaceOptions {
            context: None,
            sequences: 1,
            cache_tokens: None,
            cache_types,
            prefixes: Prefixes::Shared,
            micro_batch: None,
            scores: 0,
            split: Split::BySpeed,
            overrides,
            mmap,
        }
    }
}

/// What [`PlaceOptions`] come to with a model and devices.
#[derive(Clone, Debug)]
pub struct Layout {
    /// How the model is loaded.
    pub load: LoadOptions,
    /// Its parts, which the devices divide among them.
    pub parts: Parts,
    /// Why they divide it so, for people; empty where that was said, or there is one device.
    pub why: String,
}

/// What each device holds of a model, and what there is room for.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In the order of the devices: layers, and bytes of weights, cache and results. A device without layers and weights is not used.
    pub devices: Vec<DeviceLoad>,
    /// Layers that are on several devices, and the ids of those.
    pub divided_layers: Vec<(usize, Vec<String>)>,
    /// Tokens of context of each sequence.
    pub context: usize,
    /// Texts at a time.
    pub sequences: usize,
    /// Tokens that the cache has room for, of all sequences together.
    pub cache_tokens: usize,
}

/// A model on its devices, with memory and weights, ready to run.
pub struct Placed {
    pub(crate) model: Model,
    pub(crate) inner: PlacedModel,
    pub(crate) devices: Devices,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("model", &self.model).field("plan", &self.plan()).finish_non_exhaustive()
    }
}

impl Model {
    /// Puts the model on devices: divides it, checks that it fits, allocates memory, sends weights. Fails with [`Error::DoesNotFit`] before anything
    /// is sent. It takes as long as the weights need to get there.
    pub fn place(&self, devices: &Devices, options: &PlaceOptions) -> Result<Placed> {
        let layout = self.layout(devices, options)?;
        self.place_as(devices, &layout.load, &|_, _| {})
    }

    /// The same with every number given, as [`Model::layout`] gives them. `progress` is called with bytes done and bytes in all, from several threads.
    pub fn place_as(
        &self,
        devices: &Devices,
        options: &LoadOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Placed> {
        let known = Remembered::known(self.inner());
        let placed = PlacedModel::load(self.inner().clone(), devices.list().to_vec(), options, progress);
        if let Some(digests) = self.digests().filter(|_| !options.blank) {
            match &placed {
                Ok(_) => digests.save(self.inner(), &known),
                Err(_) => digests.forget(),
            }
        }
        let placed = placed.map_err(|e| Error::of_model(self.path(), e))?;
        Ok(Placed { model: self.clone(), inner: placed, devices: devices.clone() })
    }

    /// Decides what the options have left open. Devices are asked for their memory and measured, and hold nothing afterwards.
    pub fn layout(&self, devices: &Devices, options: &PlaceOptions) -> Result<Layout> {
        let trained = self.trained_context();
        let load = LoadOptions {
            n_ctx: options.context.unwrap_or(trained.min(DEFAULT_CONTEXT)),
            n_seqs: options.sequences,
            cache_tokens: options.cache_tokens.unwrap_or(0),
            cache_types: options.cache_types,
            prefixes: options.prefixes,
            n_ubatch: options.micro_batch.unwrap_or_else(|| default_ubatch(devices.list())),
            scores: options.scores,
            overrides: options.overrides.clone(),
            mmap: options.mmap,
            ..LoadOptions::default()
        };
        let parts = Parts::new(self.inner(), load.cache(), &mean_costs(devices.list()))?;
        let (mut split, why) = shares(&options.split, &parts, devices)?;
        split.resize(devices.list().len(), 0.0);
        Ok(Layout { load: LoadOptions { split, ..load }, parts, why })
    }
}

/// What each device gets of a model, relative to the others, and why.
fn shares(split: &Split, parts: &Parts, devices: &Devices) -> Result<(Vec<f64>, String)> {
    let usable = devices.usable();
    match split {
        Split::Parts(given) if given.len() != usable.len() => {
            Err(Error::PartsOfSplit { parts: given.len(), devices: usable.len() })
        }
        Split::Parts(given) => Ok((given.clone(), String::new())),
        Split::First => Ok(((0..usable.len()).map(|d| if d == 0 { 1.0 } else { 0.0 }).collect(), String::new())),
        Split::BySpeed => {
            let division = divide(parts.bytes(), &Member::of(usable)?);
            Ok((division.parts, division.why))
        }
    }
}

impl Placed {
    /// What lies where.
    pub fn plan(&self) -> Plan {
        Plan::of(&self.inner)
    }

    /// What `outboard-llm` has made: for sequences, logits and perplexities.
    pub fn into_inner(self) -> PlacedModel {
        self.inner
    }
}

impl Plan {
    /// Of a model on its devices.
    pub fn of(placed: &PlacedModel) -> Plan {
        let owned = |ids: Vec<&str>| ids.into_iter().map(str::to_owned).collect();
        Plan {
            devices: placed.loads().to_vec(),
            divided_layers: placed.divided_layers().into_iter().map(|(layer, ids)| (layer, owned(ids))).collect(),
            context: placed.n_ctx(),
            sequences: placed.n_seqs(),
            cache_tokens: placed.cache_tokens(),
        }
    }
}
