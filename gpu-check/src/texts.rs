//! What a model says of llama.cpp's texts, by the rule that tests of the CPU device have, too.

use crate::Outcome;
use anyhow::Result;
use outboard_core::Device;
use outboard_integration::{Forced, cases};
use outboard_llm::gguf::Gguf;
use outboard_llm::{LoadOptions, Model, PlacedModel};
use outboard_output as output;
use outboard_system::open_mapped;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens of a prompt that are read together: products with many columns, and with one.
const AT_ONCE: [usize; 2] = [128, 1];

pub(crate) fn run(devices: &[Arc<dyn Device>], models: &[(String, PathBuf)]) -> Result<Outcome> {
    if models.is_empty() {
        output::out(format_args!("skipped: no model was given (-m smollm2=FILE)\n"))?;
    }
    let mut outcome = Outcome::default();
    let mut rows = Vec::new();
    for (name, path) in models {
        for device in devices {
            for at_once in AT_ONCE {
                let (row, wrong) = on(name, path, std::slice::from_ref(device), at_once)?;
                rows.push(row);
                outcome.wrong.extend(wrong);
            }
        }
    }
    outcome.report = rows.into();
    Ok(outcome)
}

/// The texts of a model on some devices.
pub(crate) fn on(
    name: &str,
    path: &Path,
    devices: &[Arc<dyn Device>],
    at_once: usize,
) -> Result<(serde_json::Value, Option<String>)> {
    let model = Arc::new(Model::new(Gguf::parse(open_mapped(path)?)?)?);
    let ids: Vec<_> = devices.iter().map(|device| device.info().id.clone()).collect();
    let options = LoadOptions { n_ctx: 256, ..LoadOptions::default() };
    let mut placed = PlacedModel::load(model, devices.to_vec(), &options, &|_, _| {})?;
    let mut forced = Forced::default();
    for case in cases(name) {
        forced.add(&mut placed, &case, at_once)?;
    }
    let (steps, others) = (forced.differences.len(), forced.others.len());
    let ids = ids.join(", ");
    let (rms, worst, lead) = (forced.rms(), forced.worst(), forced.lead());
    output::out(format_args!(
        "{name} on {ids}, {at_once} at once: rms {rms:.4}, worst {worst:.4}, another token in {others} of {steps} steps (lead {lead:.3})\n"
    ))?;
    let row = json!({
        "model": name, "devices": ids, "at_once": at_once, "steps": steps, "others": others,
        "rms": forced.rms(), "worst": forced.worst(), "lead": forced.lead(),
    });
    Ok((row, forced.check(name).err().map(|why| format!("{name} on {ids}: {why}"))))
}
