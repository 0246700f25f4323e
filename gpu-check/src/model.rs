//! Decoding and prompts of a model with random weights, by `outboard bench`.

use crate::programs::{json_of, program};
use crate::{Args, Outcome, random};
use anyhow::Result;
use outboard_core::Device;
use outboard_output as output;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub(crate) fn run(devices: &[Arc<dyn Device>], args: &Args) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut rows = Vec::new();
    for &dtype in &args.types {
        let (path, layers) =
            (args.scratch.join(format!("random-{layers}-{dtype}.gguf", layers = args.layers)), args.layers);
        if let Err(why) = random::write(&path, dtype, layers as usize) {
            let _ = std::fs::remove_file(&path);
            return Err(why);
        }
        let bytes = std::fs::metadata(&path)?.len();
        for device in devices {
            match measure(&path, &device.info().id) {
                Ok(report) => {
                    output::out(format_args!("{dtype} on {}: {}\n", device.info().id, in_short(&report)))?;
                    rows.push(json!({ "type": dtype.name(), "layers": layers, "file_bytes": bytes, "bench": report }));
                }
                Err(why) => outcome.wrong.push(format!("{dtype} on {}: {why:#}", device.info().id)),
            }
        }
        if !args.keep {
            std::fs::remove_file(&path)?;
        }
    }
    outcome.report = rows.into();
    Ok(outcome)
}

fn measure(path: &Path, device: &str) -> Result<Value> {
    let mut bench = Command::new(program("outboard")?);
    bench.args(["bench", "-p", "512,2048", "-n", "128", "-r", "3", "-o", "json", "-dev", &device.to_lowercase(), "-m"]);
    json_of(bench.arg(path))
}

/// Rates of the tests, one after the other.
fn in_short(report: &Value) -> String {
    let rows = report.as_array().map_or(&[][..], Vec::as_slice);
    let rate = |row: &Value| {
        format!("{} {:.1} tok/s", row["test"].as_str().unwrap_or("?"), row["tps"].as_f64().unwrap_or(0.0))
    };
    rows.iter().map(rate).collect::<Vec<_>>().join(", ")
}
