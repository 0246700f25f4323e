//! The binary; see [`outboard_rpc_server`].
#![forbid(unsafe_code)]

use clap::Parser;
use outboard_rpc_server::{ServerArgs, main_with};
use std::process::ExitCode;

fn main() -> ExitCode {
    main_with(ServerArgs::parse())
}
