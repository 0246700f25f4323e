//! Generates the messages and the service from the `.proto` files, in Rust alone (no `protoc`).

use prost::Message;
use std::error::Error;
use std::path::PathBuf;

/// What no other file imports; the others come with them.
const FILES: [&str; 4] = [
    "proto/outboard/v1/outboard.proto",
    "proto/outboard/v1/bulk.proto",
    "proto/outboard/v1/peer.proto",
    "proto/outboard/v1/graph.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
