//! A server whose Vulkan device is lost or hangs: its clients get errors, its other devices go on, and the next client finds the device open.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../local-backends/vulkan/tests/driver/mod.rs"]
mod driver;

use driver::*;
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The two devices as a new client has them.
fn client(server: &Server) -> [Work; 2] {
    let endpoints = Endpoint::parse_list(&server.local_addr().to_string()).unwrap();
    let devices = connect(&endpoints, &ClientOptions::default()).unwrap();
    devices.into_iter().map(Work::new).collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("two devices"))
}

#[test]
fn a_server_goes_on_without_its_device() {
    let Some(broken) = Broken::new() else { return };
    let cpu: Arc<dyn Device> =
        cpu_device(&Host::new(), "CPU0", CpuOptions::with_threads(1), &MemoryBudget::new(Some(1 << 30)));
    let addr = "127.0.0.1:0".parse().unwrap();
    let devices = vec![broken.device.clone(), cpu];
    let server =
        Server::start(ServerConfig { addr, devices, limits: Limits::default(), trust: Trust::default() }).unwrap();
    for (fault, said) in [(LOST_WHEN_WAITED_FOR, "lost"), (HANGS, "given up")] {
        let ([first, cpu], [second, _]) = (client(&server), client(&server));
        [&first, &cpu, &second].into_iter().for_each(Work::computes);
        FAULT.store(fault, Ordering::Relaxed);
        let start = Instant::now();
        for work in [&first, &second] {
            let error = work.run().unwrap_err().to_string();
            assert!(error.contains("Vulkan0") && error.contains(said), "{error}");
        }
        // The other device, of a client that has seen the fault and of one that comes while it lasts.
        cpu.computes();
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        FAULT.store(NONE, Ordering::Relaxed);
        let [vulkan, other] = client(&server);
        vulkan.computes();
        other.computes();
        drop((first, second));
        release();
        vulkan.computes();
    }
}
