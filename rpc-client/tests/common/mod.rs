//! A real server in this process, with two reference devices.
#![allow(dead_code, unreachable_pub, missing_docs)]

use outboard_core::Host;
use outboard_core::op::*;
use outboard_core::*;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::sync::Arc;
use std::time::Duration;

pub const WAIT: Duration = Duration::from_secs(20);

/// Memory of the host of [`server`].
pub const MEMORY: u64 = 1 << 30;

pub fn server_with(limits: Limits) -> (Server, Arc<MemoryBudget>) {
    let host = Host::new();
    let budget = MemoryBudget::new(Some(MEMORY));
    let devices = ["REF0", "REF1"].map(|name| reference_device(&host, name, &budget)).to_vec();
    let addr = "127.0.0.1:0".parse().unwrap();
    (Server::start(ServerConfig { addr, devices, limits, trust: Trust::default() }).unwrap(), budget)
}

pub fn server() -> (Server, Arc<MemoryBudget>) {
    server_with(Limits::default())
}

pub fn endpoint(server: &Server) -> Endpoint {
    Endpoint::parse(&server.local_addr().to_string()).unwrap()
}

pub fn devices(server: &Server) -> Vec<Arc<dyn Device>> {
    connect(&[endpoint(server)], &ClientOptions::default()).unwrap()
}

/// Runs a test on an event loop of its own.
pub fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

pub fn buffer(device: &Arc<dyn Device>, size: u64) -> Slice {
    Slice::whole(device.alloc(size, Usage::Any).unwrap())
}

pub fn read(queue: &dyn Queue, slice: &Slice) -> Vec<u8> {
    queue.read(slice).unwrap().wait(WAIT).unwrap().to_vec()
}

pub fn f32s(values: &[f32]) -> device::Bytes {
    values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// `y = x + x`, then rows of `table` by `ids`; an id outside of it fails.
pub struct Program {
    pub graph: Arc<Graph>,
    pub x: TensorId,
    pub y: TensorId,
    pub table: TensorId,
    pub ids: TensorId,
    pub rows: TensorId,
}

pub fn program() -> Program {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let table = g.weight("table", DType::F32, &[8, 4]).unwrap();
    let ids = g.input("ids", DType::I32, &[1]).unwrap();
    let y = g.push(Binary { kind: BinaryKind::Add }, &[x, x]).unwrap();
    let rows = g.push(GetRows, &[table, ids]).unwrap();
    g.name(rows, "picked");
    g.output(y);
    g.output(rows);
    Program { graph: Arc::new(g.finish().unwrap()), x, y, table, ids, rows }
}

/// The program on a device, its tensors one after the other in one buffer, each at a multiple of 256.
pub struct Placed {
    pub executable: Arc<dyn Executable>,
    slices: Vec<Option<Slice>>,
}

impl Placed {
    pub fn new(device: &Arc<dyn Device>, p: &Program) -> Placed {
        let whole = buffer(device, 256 * p.graph.tensors().len() as u64);
        let slice = |id: TensorId| whole.part(256 * id.index() as u64, 256).unwrap();
        let slices: Vec<_> = p.graph.ids().map(|id| Some(slice(id))).collect();
        let placement = Placement::new(&p.graph, device.as_ref(), slices.clone()).unwrap();
        Placed { executable: device.compile(p.graph.clone(), placement).unwrap(), slices }
    }

    pub fn slice(&self, p: &Program, id: TensorId) -> Slice {
        let len = p.graph.tensor(id).layout().span() as u64;
        self.slices[id.index()].as_ref().unwrap().part(0, len).unwrap()
    }
}

/// Polls until `ok` or two seconds more than `within` have passed; says how long it took.
pub fn eventually(within: Duration, ok: impl Fn() -> bool) -> Duration {
    let start = std::time::Instant::now();
    while !ok() {
        assert!(start.elapsed() < within + Duration::from_secs(2), "not within {within:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}
