//! `outboard try-forms`, which `outboard serve` starts: forms of strangers are compiled in it first, and end it in place of the server.

use anyhow::Result;
use outboard_serve::{FormTrials, TrialLimits, try_forms};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// For a form to be compiled
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
    /// For what forms take
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory: u64,
    /// The model's file
    model: PathBuf,
}

/// What it may hold in all, where the system keeps to that: more than it allows itself.
const ADDRESSES: u64 = 8 << 30;

/// How `outboard serve` starts it.
pub(crate) fn trials() -> FormTrials {
    FormTrials { program: outboard_backends::this_program(), args: vec!["try-forms".into()] }
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    // Neither is kept to everywhere; then the process's own look at itself is what there is.
    let _ = rlimit::setrlimit(rlimit::Resource::AS, ADDRESSES, ADDRESSES);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let limits = TrialLimits { time: Duration::from_secs(args.seconds), memory: args.memory << 20 };
    try_forms(&args.model, limits, std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
