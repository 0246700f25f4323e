//! `outboard devices`.

use super::print_json;
use crate::args::DeviceArgs;
use crate::{devices, print};
use anyhow::Result;
use outboard_backends::DeviceSpec;
use outboard_core::error::Bytes;
use outboard_output as output;
use serde::Serialize;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    name: &'a str,
    kind: &'a str,
    description: &'a str,
    device_id: &'a str,
    backend: &'a str,
    memory_total: u64,
    memory_free: u64,
    capabilities: &'a [String],
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let available = devices::available(&args.devices, &[])?;
    // Names that stand for nothing are an error here, too.
    available.choose(&args.devices.dev)?;
    let all = available.all();
    let mut rows = Vec::new();
    for (device, memory) in all.list().iter().zip(devices::memory(all.list())?) {
        let info = device.info();
        rows.push(Row {
            id: &info.id,
            name: &info.name,
            kind: info.kind.name(),
            description: &info.description,
            device_id: &info.device_id,
            backend: &info.backend,
            memory_total: memory.total,
            memory_free: memory.free,
            capabilities: &info.capabilities,
        });
    }
    if args.json {
        print_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = print::table(&["device", "kind", "memory", "free", "description", ""], &[2, 3]);
    for r in &rows {
        let (total, free) = (Bytes(r.memory_total).to_string(), Bytes(r.memory_free).to_string());
        table.add_row([r.id, r.kind, &total, &free, r.description, &r.capabilities.join(" ")]);
    }
    output::out(print::indented(&table))?;
    if args.devices.dev.is_empty()
        && let Some(others) = DeviceSpec::used_when_named()
    {
        output::errln(format_args!("used when named (-dev): {others}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
