//! From `-m` and its companions to a model on its devices.

use crate::args::{ModelArgs, SplitMode};
use crate::devices::{self, DeviceSet};
use crate::{fetch, print};
use anyhow::{Context, Result, anyhow, bail};
use outboard_core::Device;
use outboard_core::error::Bytes;
use outboard_llm::division::{Member, divide};
use outboard_llm::gguf::{Digests, FileKey, Gguf};
use outboard_llm::tokenizer::Tokenizer;
use outboard_llm::{
    DeviceLoad, LoadOptions, Mmap, Model, Overrides, Parts, PlacedModel, attention_cost, default_ubatch,
};
use outboard_output as output;
use outboard_system::open_mapped;
use regex::Regex;
use serde::Serialize;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Context when nothing is said: enough for a chat, and small beside the weights.
const DEFAULT_CTX: usize = 4096;

/// A model whose file, or files, have been read and checked.
pub(crate) struct Loaded {
    pub(crate) path: PathBuf,
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: Tokenizer,
    digests: Option<Remembered>,
}

/// Where digests of a model's tensors are remembered, so that servers can be asked for them without reading the files: `digests`
/// in the cache directory, in a side file for each of the model's files.
struct Remembered {
    dir: PathBuf,
    keys: Vec<FileKey>,
}

impl Remembered {
    /// Nothing is remembered of files or for a user that have no place for it.
    fn open(paths: &[PathBuf]) -> Option<Remembered> {
        let keys = paths.iter().map(|path| FileKey::of(path)).collect::<io::Result<_>>().ok()?;
        Some(Remembered { dir: fetch::cache_dir().ok()?.join("digests"), keys })
    }

    fn load(&self) -> Vec<Digests> {
        self.keys.iter().map(|key| Digests::load(&self.dir, key)).collect()
    }

    /// Takes note of what a load had to compute. One that failed may have failed because of a wrong digest.
    fn update(&self, model: &Model, known_before: &[usize], ok: bool) {
        for ((key, digests), before) in self.keys.iter().zip(model.digests()).zip(known_before) {
            if !ok {
                Digests::forget(&self.dir, key);
            } else if digests.known().len() > *before {
                // Not remembered, they are computed again.
                let _ = digests.save(&self.dir, key);
            }
        }
    }
}

/// Reads and checks the file of `-m`, and those beside it that are of the same model.
pub(crate) fn open(arg: &str) -> Result<Loaded> {
    let path = fetch::resolve_model(arg)?;
    let gguf = open_gguf(&path)?;
    let name = path.display().to_string();
    let tokenizer = Tokenizer::from_gguf(&gguf).with_context(|| name.clone())?;
    let digests = Remembered::open(gguf.paths());
    let known = digests.as_ref().map(Remembered::load).unwrap_or_default();
    let model = Arc::new(Model::new(gguf).with_context(|| name)?.with_digests(known));
    Ok(Loaded { path, model, tokenizer, digests })
}

/// Maps and parses a GGUF file, and those beside it that are of the same model.
pub(crate) fn open_gguf(path: &Path) -> Result<Gguf> {
    Ok(Gguf::open(path, open_mapped)?)
}

/// How a model is put on devices. What was left to the defaults is decided here.
pub(crate) fn load_options(args: &ModelArgs, model: &Model, set: &DeviceSet) -> Result<LoadOptions> {
    Ok(options_and_parts(args, model, set)?.0)
}

/// How a model is put on devices, and the parts that they divide among them.
pub(crate) fn options_and_parts(args: &ModelArgs, model: &Model, set: &DeviceSet) -> Result<(LoadOptions, Parts)> {
    let trained = model.hparams().n_ctx_train;
    let n_ctx = match args.ctx {
        Some(0) => trained,
        Some(n) => n as usize,
        None => trained.min(DEFAULT_CTX),
    };
    let n_ubatch = args.ubatch_size.map_or_else(|| default_ubatch(&set.devices), |n| n as usize);
    let options = LoadOptions {
        n_ctx,
        n_seqs: args.n_seqs,
        cache_types: [args.cache_type_k.dtype(), args.cache_type_v.dtype()],
        prefixes: args.prefixes,
        n_ubatch: n_ubatch.min(args.batch_size as usize),
        overrides: overrides(&args.override_tensor, &set.devices)?,
        mmap: match (args.mmap, args.no_mmap) {
            (true, _) => Mmap::Always,
            (_, true) => Mmap::Never,
            _ => Mmap::Auto,
        },
        ..LoadOptions::default()
    };
    let parts = Parts::new(model, options.cache(), attention_cost(&set.devices))?;
    let options = LoadOptions { split: shares(args, &parts, set)?, ..options };
    Ok((options, parts))
}

/// What each device gets of a model, relative to the others.
fn shares(args: &ModelArgs, parts: &Parts, set: &DeviceSet) -> Result<Vec<f64>> {
    let usable = set.devices.len() - usize::from(set.fallback);
    let mut shares = match (&args.tensor_split, args.split_mode) {
        (Some(_), SplitMode::None) => bail!("-ts divides a model, -sm none does not: give one of them"),
        (Some(given), _) if given.0.len() != usable => {
            bail!("-ts has {} parts, but there are {usable} devices", given.0.len())
        }
        (Some(given), _) => given.0.clone(),
        (None, SplitMode::None) => (0..usable).map(|d| if d == 0 { 1.0 } else { 0.0 }).collect(),
        (None, SplitMode::Layer) => by_speed(parts, set.devices.get(..usable).unwrap_or_default())?,
    };
    shares.resize(set.devices.len(), 0.0);
    Ok(shares)
}

/// Shares that nobody has given; says why they are so.
fn by_speed(parts: &Parts, devices: &[Arc<dyn Device>]) -> Result<Vec<f64>> {
    let division = divide(parts.sizes().bytes(), &Member::of(devices)?);
    if !division.why.is_empty() {
        output::errln(format_args!("layers are divided {}", division.why))?;
    }
    Ok(division.parts)
}

fn overrides(rules: &[String], devices: &[Arc<dyn Device>]) -> Result<Overrides> {
    if rules.is_empty() {
        return Ok(Overrides::default());
    }
    let mut parsed = Vec::new();
    for rule in rules.iter().flat_map(|r| r.split(',')) {
        let (pattern, device) =
            rule.rsplit_once('=').ok_or_else(|| anyhow!("-ot {rule}: should be REGEX=DEV, such as ffn_.*=CPU0"))?;
        let regex = Regex::new(pattern).map_err(|e| anyhow!("-ot {rule}: {e}"))?;
        let found = devices::find(device, devices, &[])?;
        let index = devices.iter().position(|d| found.iter().any(|f| f.uid() == d.uid()));
        parsed.push((regex, index));
    }
    let device = move |name: &str| parsed.iter().find(|(regex, _)| regex.is_match(name)).and_then(|(_, d)| *d);
    Ok(Overrides::new(device))
}

/// Puts a model on its devices, with a progress bar.
pub(crate) fn load(loaded: &Loaded, set: DeviceSet, options: &LoadOptions) -> Result<PlacedModel> {
    let bar = OnceLock::new();
    let progress = |done: u64, total: u64| {
        bar.get_or_init(|| print::bytes_bar(total, "loading")).set_position(done);
    };
    let known: Vec<usize> = loaded.model.digests().iter().map(|file| file.known().len()).collect();
    let engine = PlacedModel::load(loaded.model.clone(), set.devices, options, &progress);
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
    if let Some(digests) = loaded.digests.as_ref().filter(|_| !options.blank) {
        digests.update(&loaded.model, &known, engine.is_ok());
    }
    Ok(engine?)
}

/// Layers of a device, in JSON; the names are fixed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Layers {
    /// The first and the last of them.
    layers: Option<(usize, usize)>,
    /// First and last of those that follow one another: the device with the end of a model may have its beginning, too.
    layer_ranges: Vec<(usize, usize)>,
}

impl Layers {
    pub(crate) fn new(ranges: &[(usize, usize)]) -> Layers {
        let ends = ranges.first().zip(ranges.last());
        Layers { layers: ends.map(|(first, last)| (first.0, last.1)), layer_ranges: ranges.to_vec() }
    }

    /// How many they are.
    pub(crate) fn count(&self) -> usize {
        self.layer_ranges.iter().map(|(first, last)| last + 1 - first).sum()
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range =
            |&(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        if self.layer_ranges.is_empty() {
            f.write_str("-")
        } else {
            f.write_str(&self.layer_ranges.iter().map(range).collect::<Vec<_>>().join(","))
        }
    }
}

/// Which device holds what, as a table.
pub(crate) fn plan_table(engine: &PlacedModel) -> String {
    let mut table = print::table(&["device", "layers", "weights", "KV cache", "results"], &[2, 3, 4]);
    for load in engine.loads() {
        let size = |bytes: u64| Bytes(bytes).to_string();
        table.add_row([
            load.id.clone(),
            Layers::new(&load.layers).to_string(),
            size(load.weight_bytes),
            size(load.cache_bytes),
            size(load.compute_bytes),
        ]);
    }
    let mut out = print::indented(&table);
    for (layer, devices) in engine.divided_layers() {
        out += &format!("  layer {layer} is divided: its attention is on {}\n", devices.join(", the rest on "));
    }
    out
}

/// What a device has of a model, in JSON; the names are fixed.
#[derive(Serialize)]
pub(crate) struct DeviceReport {
    id: String,
    #[serde(flatten)]
    layers: Layers,
    weight_bytes: u64,
}

/// What each device has of a model.
pub(crate) fn device_reports(engine: &PlacedModel) -> Vec<DeviceReport> {
    let report = |load: &DeviceLoad| DeviceReport {
        id: load.id.clone(),
        layers: Layers::new(&load.layers),
        weight_bytes: load.weight_bytes,
    };
    engine.loads().iter().map(report).collect()
}

/// A line about a model.
pub(crate) fn describe(loaded: &Loaded) -> String {
    let h = loaded.model.hparams();
    let gguf = loaded.model.gguf();
    let (size, path) = (Bytes(gguf.file_bytes()), loaded.path.display());
    let more = match gguf.files().len() {
        0 | 1 => String::new(),
        n => format!(" and {} more files", n - 1),
    };
    format!("{} ({}, {} layers, {size}) from {path}{more}", loaded.model.name(), h.arch, h.n_layer)
}
