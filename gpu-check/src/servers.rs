//! Several devices of one server, a model split over them: of CUDA, each card is divided.

use crate::programs::{lines, program};
use crate::{Outcome, programs, texts};
use anyhow::{Context, Result, bail};
use outboard_core::Device;
use outboard_output as output;
use outboard_rpc_client::{ClientOptions, connect};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Devices that each card is divided into.
const PARTS: &str = "3";

/// Longest wait for a line of a server that starts.
const START: Duration = Duration::from_secs(60);

/// A server that ends with this.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(devices: &str) -> Result<Server> {
        let mut command = Command::new(program("rpc-server")?);
        command.args(["-p", "0", "-d", devices]).env("OUTBOARD_CUDA_VIRTUAL", PARTS).stdout(Stdio::piped());
        let mut child = command.spawn().context("rpc-server does not start")?;
        let lines = lines(&mut child)?;
        let mut server = Server { child, address: String::new() };
        while let Ok(line) = lines.recv_timeout(START) {
            if let Some(address) = line.strip_prefix("listening on ") {
                server.address = address.trim().to_owned();
                return Ok(server);
            }
        }
        bail!("rpc-server -d {devices} does not listen")
    }
}

pub(crate) fn run(devices: &[Arc<dyn Device>], models: &[(String, PathBuf)]) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut rows = Vec::new();
    for backend in ["cuda", "vulkan"] {
        if !devices.iter().any(|device| device.info().backend == backend) {
            output::out(format_args!("skipped: there is no device of {backend}\n"))?;
            continue;
        }
        let server = Server::start(&format!("{backend},cpu"))?;
        let client = connect(&[server.address.parse()?], &ClientOptions::default())?;
        let mut smoke = Command::new(program("outboard")?);
        let (said, status) = programs::output(smoke.args(["smoke", "--rpc", &server.address]))?;
        output::out(format_args!("{said}"))?;
        if !status.success() {
            outcome.wrong.push(format!("outboard smoke of {backend}: {status}"));
        }
        for (name, path) in models {
            let (row, wrong) = texts::on(name, path, &client, 128)?;
            rows.push(row);
            outcome.wrong.extend(wrong);
        }
    }
    outcome.report = json!({ "texts": rows });
    Ok(outcome)
}
