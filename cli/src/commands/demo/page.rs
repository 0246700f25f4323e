//! `outboard demo --serve`: the demo's servers behind the page and the API.

use super::{device_args, model_args, servers};
use crate::args::Sequences;
use crate::commands::{follow_forms, serve};
use crate::{devices, model};
use anyhow::{Context, Result};
use outboard_output as output;
use outboard_serve::{ServeOptions, Server, Service};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;

/// Texts at a time.
const TEXTS: usize = 4;
/// Tokens of context of each: some turns of a chat.
const CONTEXT: u32 = 2048;

/// Serves the model until a signal comes.
pub(super) fn serve(model: &Path, port: u16) -> Result<ExitCode> {
    let addr = ([127, 0, 0, 1], port).into();
    serve::check_free(addr)?;
    let (stop, stopped) = channel();
    let handler = move || {
        let _ = stop.send(());
    };
    ctrlc::set_handler(handler).context("cannot watch for signals")?;
    let servers = servers::start()?;
    let loaded = model::open(&model.to_string_lossy())?;
    let set = devices::open(&device_args(&servers)?)?;
    let options = model::load_options(&model_args(Sequences::Served(TEXTS), CONTEXT), &loaded, &set)?;
    output::errln(format_args!("model: {}", model::describe(&loaded)))?;
    let placed = model::place(&loaded, &set, &options)?;
    // Nobody but the runner has the devices, so that they are free before their servers end.
    drop(set);
    output::err(model::table_of(&placed.plan()))?;
    let options = ServeOptions { form_processes: Some(follow_forms::processes(TEXTS)), ..ServeOptions::default() };
    let service = Service::new(placed.run_with(serve::run_options())?, options)?;
    let server = Server::start(service, addr, None)?;
    output::outln(format_args!("open http://{}/ in a browser; Ctrl-C ends it", server.local_addr()))?;
    // An error means that the handler is gone, which lives as long as the process.
    let _ = stopped.recv();
    server.stop();
    servers::stop(servers)?;
    Ok(ExitCode::SUCCESS)
}
