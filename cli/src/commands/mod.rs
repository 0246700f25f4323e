//! One file per command: its arguments and what it does.

pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod fetch;
pub(crate) mod follow_forms;
pub(crate) mod logits;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod rpc_server;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod smoke;
pub(crate) mod tokenize;
pub(crate) mod top;

use anyhow::Result;
use outboard_output as output;
use serde::Serialize;

/// Prints one JSON document on stdout.
fn print_json(value: &impl Serialize) -> Result<()> {
    Ok(output::outln(serde_json::to_string(value)?)?)
}
