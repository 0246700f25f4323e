//! The binary; see [`outboard_rpc_server`].
#![forbid(unsafe_code)]

use clap::Parser;
use outboard_rpc_server::{ServerArgs, main_with};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: outboard_host::ProgramAllocator = outboard_host::ProgramAllocator;

fn main() -> ExitCode {
    main_with(ServerArgs::parse())
}
