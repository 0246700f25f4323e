//! `outboard fetch`.

use crate::fetch;
use anyhow::Result;
use outboard_output as output;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the model; without one, the catalogue is listed
    name: Option<String>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    match &args.name {
        Some(name) => output::outln(fetch::fetch(name)?.display())?,
        None => output::outln(fetch::list())?,
    }
    Ok(ExitCode::SUCCESS)
}
