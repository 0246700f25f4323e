//! `outboard fetch`.

use crate::fetch;
use anyhow::Result;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the model; without one, the catalogue is listed
    name: Option<String>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    match &args.name {
        Some(name) => println!("{}", fetch::fetch(name, false)?.display()),
        None => fetch::list(),
    }
    Ok(ExitCode::SUCCESS)
}
