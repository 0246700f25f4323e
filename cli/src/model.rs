//! From `-m` and its companions to a model on its devices.

use crate::args::{ModelArgs, SplitMode, usage};
use crate::{fetch, print};
use anyhow::Result;
use outboard::{DeviceLoad, Devices, Layout, Mmap, Model, Overrides, PlaceOptions, Placed, Plan, Split};
use outboard_core::Device;
use outboard_core::error::Bytes;
use outboard_llm::{LoadOptions, Parts, PlacedModel};
use outboard_output as output;
use regex::Regex;
use serde::Serialize;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Reads and checks the file of `-m`, and those beside it that are of the same model.
pub(crate) fn open(arg: &str) -> Result<Model> {
    let path = fetch::resolve_model(arg)?;
    Ok(match fetch::cache_dir() {
        Ok(cache) => Model::open_with_digests(path, cache.join("digests"))?,
        Err(_) => Model::open(path)?,
    })
}

/// How a model is put on devices. What was left to the defaults is decided here.
pub(crate) fn load_options(args: &ModelArgs, model: &Model, set: &Devices) -> Result<LoadOptions> {
    Ok(options_and_parts(args, model, set)?.0)
}

/// How a model is put on devices, and the parts that they divide among them.
pub(crate) fn options_and_parts(args: &ModelArgs, model: &Model, set: &Devices) -> Result<(LoadOptions, Parts)> {
    let options = PlaceOptions {
        context: match args.ctx {
            Some(0) => Some(model.trained_context()),
            other => other.map(|n| n as usize),
        },
        sequences: args.sequences.count(),
        cache_tokens: None,
        cache_types: [args.cache_type_k.dtype(), args.cache_type_v.dtype()],
        prefixes: args.sequences.prefixes(),
        micro_batch: args.ubatch_size.map(|n| n as usize),
        scores: args.sequences.scores(model.tokenizer().n_vocab()),
        split: split(args)?,
        overrides: overrides(&args.override_tensor, set.list())?,
        mmap: match (args.mmap, args.no_mmap) {
            (true, _) => Mmap::Always,
            (_, true) => Mmap::Never,
            _ => Mmap::Auto,
        },
    };
    if let Some(context) = options.context.filter(|&n| n > model.trained_context()) {
        output::errln(format_args!(
            "warning: a context of {context} tokens (-c) is longer than the {} that the model was trained with: what it writes behind them may make no sense",
            model.trained_context()
        ))?;
    }
    let Layout { load, parts, why } = model.layout(set, &options)?;
    if !why.is_empty() {
        output::errln(format_args!("layers are divided {why}"))?;
    }
    Ok((LoadOptions { n_ubatch: load.n_ubatch.min(args.batch_size as usize), ..load }, parts))
}

fn split(args: &ModelArgs) -> Result<Split> {
    Ok(match (&args.tensor_split, args.split_mode) {
        (Some(_), SplitMode::None) => return Err(usage("-ts divides a model, -sm none does not: give one of them")),
        (Some(given), SplitMode::Layer) => Split::Parts(given.0.clone()),
        (None, SplitMode::None) => Split::First,
        (None, SplitMode::Layer) => Split::BySpeed,
    })
}

fn overrides(rules: &[String], devices: &[Arc<dyn Device>]) -> Result<Overrides> {
    if rules.is_empty() {
        return Ok(Overrides::default());
    }
    let mut parsed = Vec::new();
    for rule in rules.iter().flat_map(|r| r.split(',')) {
        let no_device = || usage(format_args!("-ot {rule}: should be REGEX=DEV, such as ffn_.*=CPU0"));
        let (pattern, device) = rule.rsplit_once('=').ok_or_else(no_device)?;
        let regex = Regex::new(pattern).map_err(|e| usage(format_args!("-ot {rule}: {e}")))?;
        let found = outboard::devices::find(device, devices)?;
        let index = devices.iter().position(|d| found.iter().any(|f| f.uid() == d.uid()));
        parsed.push((regex, index));
    }
    let device = move |name: &str| parsed.iter().find(|(regex, _)| regex.is_match(name)).and_then(|(_, d)| *d);
    Ok(Overrides::new(device))
}

/// Puts a model on its devices, with a progress bar; what is made of it belongs to this command.
pub(crate) fn load(model: &Model, set: &Devices, options: &LoadOptions) -> Result<PlacedModel> {
    Ok(place(model, set, options)?.into_inner())
}

/// Puts a model on its devices, with a progress bar.
pub(crate) fn place(model: &Model, set: &Devices, options: &LoadOptions) -> Result<Placed> {
    let bar = OnceLock::new();
    let progress = |done: u64, total: u64| {
        bar.get_or_init(|| print::bytes_bar(total, "loading")).set_position(done);
    };
    let placed = model.place_as(set, options, &progress);
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
    Ok(placed?)
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
    table_of(&Plan::of(engine))
}

/// The same of a plan.
pub(crate) fn table_of(plan: &Plan) -> String {
    let mut table = print::table(&["device", "layers", "weights", "KV cache", "results"], &[2, 3, 4]);
    for load in &plan.devices {
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
    for (layer, devices) in &plan.divided_layers {
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
pub(crate) fn describe(model: &Model) -> String {
    let (h, gguf) = (model.inner().hparams(), model.inner().gguf());
    let (size, path) = (Bytes(gguf.file_bytes()), model.path().display());
    let more = match gguf.files().len() {
        0 | 1 => String::new(),
        n => format!(" and {} more files", n - 1),
    };
    format!("{} ({}, {} layers, {size}) from {path}{more}", model.name(), h.arch, h.n_layer)
}
