//! The binary; see [`outboard_rpc_server`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

use clap::Parser;
use outboard_rpc_server::{ServerArgs, main_with};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: outboard_system::ProgramAllocator = outboard_system::ProgramAllocator;

fn main() -> ExitCode {
    if let Some(code) = outboard_backends::run_if_helper() {
        return code;
    }
    match ServerArgs::try_parse() {
        Ok(args) => main_with(args),
        Err(usage) => outboard_output::fail_usage(&usage),
    }
}
