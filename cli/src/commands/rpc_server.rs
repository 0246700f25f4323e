//! `outboard rpc-server`: the server in the same file as everything else, for the demo and for hosts that get one binary.

use outboard_rpc_server::{ServerArgs, main_with};
use std::io::Read;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// End when standard input ends: a server that a program has started does not outlive it
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

pub(crate) fn main(args: Args) -> ExitCode {
    if args.end_with_stdin {
        let watch = || {
            let mut stdin = std::io::stdin().lock();
            let mut buffer = [0; 64];
            while matches!(stdin.read(&mut buffer), Ok(n) if n > 0) {}
            std::process::exit(0);
        };
        if let Err(e) = std::thread::Builder::new().name("stdin".into()).spawn(watch) {
            return outboard_output::fail(format_args!("no thread: {e}"), ExitCode::FAILURE);
        }
    }
    main_with(args.server)
}
