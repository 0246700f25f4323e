//! The servers of the demo: this program again, as processes that end with it.

use anyhow::{Context, Result, anyhow, bail};
use outboard_output as output;
use std::io::{BufRead, BufReader};
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A server that does not listen after this long will not.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A server that has not ended after this long is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Starts both, and says so.
pub(super) fn start() -> Result<[Server; 2]> {
    output::errln("starting two servers with two CPU devices each")?;
    let servers = [Server::start()?, Server::start()?];
    for server in &servers {
        output::errln(format_args!("  rpc-server, process {}, {}", server.child.id(), server.addr))?;
    }
    Ok(servers)
}

/// Ends both.
pub(super) fn stop(servers: [Server; 2]) -> Result<()> {
    servers.into_iter().try_for_each(Server::stop)?;
    let instead = "both servers have stopped; to do the same over your own hosts: rpc-server there, outboard run --rpc or outboard serve --rpc here";
    Ok(output::errln(instead)?)
}

/// A server that this process has started, and that ends with it.
pub(super) struct Server {
    child: Child,
    pub(super) addr: String,
}

impl Server {
    fn start() -> Result<Server> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command
            .args(["rpc-server", "--end-with-stdin", "-p", "0", "-d", "cpu:1,cpu:1"])
            .env_remove("OUTBOARD_RPC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What is not as it should be, and nothing else.
            .env("RUST_LOG", "off")
            .stderr(Stdio::inherit());
        // Ctrl-C is for this process alone, which ends them when it has nothing on them any more.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().context("cannot start a server")?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("a server without output"))?;
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            // Reads on to the end, so that the server never waits for this pipe.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(addr) = line.strip_prefix("listening on ") {
                    let _ = tx.send(addr.trim().to_owned());
                }
            }
        });
        let mut server = Server { child, addr: String::new() };
        match rx.recv_timeout(START_LIMIT) {
            Ok(addr) => server.addr = addr,
            Err(RecvTimeoutError::Timeout) => {
                bail!("a server did not start to listen within {} s", START_LIMIT.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("a server ended before it listened"),
        }
        Ok(server)
    }

    /// Ends it and waits for its end, but not for long.
    fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let end = Instant::now() + STOP_LIMIT;
        while self.child.try_wait().context("waiting for a server")?.is_none() {
            if Instant::now() >= end {
                bail!("a server did not end within {} s", STOP_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
