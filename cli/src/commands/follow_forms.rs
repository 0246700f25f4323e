//! `outboard follow-forms`, which `outboard serve` starts: forms of strangers are compiled and followed in it, and end it in place of the server.

use anyhow::Result;
use outboard_serve::{FormLimits, FormProcesses, follow_forms};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Of a processor, for a form to be compiled, and for each token
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
    /// For what a form takes
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory: u64,
    /// The model's file
    model: PathBuf,
}

/// What it may hold beyond the model's file, where the system keeps to that: more than it allows itself.
const ADDRESSES: u64 = 8 << 30;

/// MiB for the forms of all texts of a model, and for each at least and at most.
const ALL: usize = 2048;
const EACH: (usize, usize) = (64, 256);

/// How `outboard serve` starts it, for so many texts of a model at a time.
pub(crate) fn processes(places: usize) -> FormProcesses {
    let memory = (ALL / outboard_serve::form_processes_of(places)).clamp(EACH.0, EACH.1);
    let args = vec!["follow-forms".into(), "--memory".into(), memory.to_string().into()];
    FormProcesses { program: outboard_backends::this_program(), args }
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let limits = FormLimits { time: Duration::from_secs(args.seconds), memory: args.memory << 20 };
    follow_forms(&args.model, limits, std::io::stdin().lock(), std::io::stdout().lock(), limit_to_what_is_needed)?;
    Ok(ExitCode::SUCCESS)
}

/// Neither is kept to everywhere; then the process's own look at itself is what there is.
fn limit_to_what_is_needed(addresses: u64) {
    // The model's files are part of them, which may be larger than all else.
    let most = addresses.saturating_add(ADDRESSES);
    let _ = rlimit::setrlimit(rlimit::Resource::AS, most, most);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}
