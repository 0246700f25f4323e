//! Loads the tensors of a GGUF file onto the first device of every endpoint, all of them onto each, and says what that cost.
//!
//! `cargo run --release -p outboard-rpc-client --example content FILE host:port [host:port ...]`

use outboard_core::{Content, DeviceContents, Error, Result, Slice, Usage};
use outboard_gguf::Gguf;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use outboard_system::open_mapped;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

fn main() -> Result<()> {
    let wrong = |e: &dyn std::fmt::Display| Error::Request(e.to_string());
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or_else(|| wrong(&"give a GGUF file, then endpoints"))?;
    let endpoints: Vec<Endpoint> =
        args.map(|text| Endpoint::parse(&text).map_err(|e| wrong(&e))).collect::<Result<_>>()?;
    let gguf = Gguf::open(std::path::Path::new(&file), open_mapped).map_err(|e| wrong(&e))?;
    let tensors: Vec<_> = gguf.tensors().iter().map(|t| (gguf.data(t), Arc::new(OnceLock::new()))).collect();
    let size: u64 = tensors.iter().map(|(data, _)| data.len() as u64).sum();
    let devices = connect(&endpoints, &ClientOptions::default())?;
    let mut batch = Vec::new();
    let mut firsts = Vec::new();
    for endpoint in &endpoints {
        let of = |d: &&Arc<dyn outboard_core::Device>| {
            RemoteDevice::of(d.as_ref()).is_some_and(|remote| remote.endpoint() == endpoint)
        };
        let Some(device) = devices.iter().find(of) else { continue };
        let whole = Slice::whole(device.alloc(size, Usage::Weights)?);
        let mut at = 0;
        let mut contents = Vec::new();
        for (data, digest) in &tensors {
            let len = data.len() as u64;
            contents.push(Content { dst: whole.part(at, len)?, data: data.clone(), digest: digest.clone() });
            at += len;
        }
        batch.push(DeviceContents { device: device.clone(), contents });
        firsts.push(device.clone());
    }
    let content = firsts.first().and_then(|d| d.content()).ok_or_else(|| wrong(&"give an endpoint"))?;
    let start = Instant::now();
    content.upload(&batch, &|_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let (mut sent, mut between) = (0, 0);
    for remote in firsts.iter().filter_map(|d| RemoteDevice::of(d.as_ref())) {
        let stats = remote.net_stats();
        sent += stats.sent_bytes;
        between += stats.peer_bytes;
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{} servers, {:.1} MiB of weights each: {seconds:.3} s, {:.1} MiB sent, {:.1} MiB between servers",
        firsts.len(),
        mib(size),
        mib(sent),
        mib(between)
    );
    Ok(())
}
