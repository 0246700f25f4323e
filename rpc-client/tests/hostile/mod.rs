//! A server, clients on it that do their work, and one that sends what it likes.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use crate::common;
pub(crate) use crate::common::run;
use crate::common::*;
use outboard_core::Host;
use outboard_core::*;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_fuzz::raw::{Conn, Stream};
use outboard_fuzz::second_device;
use outboard_host::MemoryBudget;
use outboard_proto::limits;
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::v1::{self, error::Kind, reply::Reply};
use outboard_reference::reference_device;
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use prost::Message;
use std::result::Result;
use std::sync::Arc;
use std::time::Duration;

/// The second is another one where the environment asks for it (`outboard_fuzz::second_device`).
pub(crate) const DEVICES: [&str; 2] = ["REF0", "CPU0"];
/// Bytes of the buffers of an attacker.
pub(crate) const SIZE: u64 = 64 << 10;

/// A server with a client on it that does its work beside the attack.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) used: u64,
}

/// A session that behaves, on one device.
pub(crate) struct Neighbour {
    pub(crate) program: Program,
    pub(crate) placed: Placed,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) secret: Slice,
}

impl Neighbour {
    pub(crate) fn new(device: &Arc<dyn Device>) -> Neighbour {
        let program = program();
        let (placed, queue) = (Placed::new(device, &program), device.queue().unwrap());
        let secret = buffer(device, SIZE);
        queue.fill(&secret, 0x5e).unwrap();
        queue.write(&placed.slice(&program, program.table), f32s(&[2.0; 32])).unwrap();
        Neighbour { program, placed, queue, secret }
    }

    pub(crate) fn works(&self, n: f32) {
        let (p, at) = (&self.program, |id| self.placed.slice(&self.program, id));
        self.queue.write(&at(p.x), f32s(&[n; 8])).unwrap();
        self.queue.write(&at(p.ids), 3i32.to_le_bytes().to_vec().into()).unwrap();
        self.queue.execute(&self.placed.executable).unwrap();
        assert_eq!(read(self.queue.as_ref(), &at(p.y)), f32s(&[2.0 * n; 8]));
        assert_eq!(read(self.queue.as_ref(), &at(p.rows)), f32s(&[2.0; 8]));
        assert!(read(self.queue.as_ref(), &self.secret).iter().all(|&b| b == 0x5e));
    }
}

impl Scene {
    pub(crate) fn new(limits: Limits) -> Scene {
        let (host, budget) = (Host::new(), MemoryBudget::new(Some(MEMORY)));
        let ours = || -> Arc<dyn Device> { cpu_device(&host, "CPU0", CpuOptions::with_threads(1), &budget) };
        let second = second_device(&host, "CPU0", &budget).unwrap_or_else(ours);
        let devices = vec![reference_device(&host, "REF0", &budget), second];
        let addr = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(ServerConfig { addr, devices, limits, trust: Trust::default() }).unwrap();
        let neighbours: Vec<_> = devices_of(&server).iter().map(Neighbour::new).collect();
        neighbours.iter().for_each(|n| n.works(1.0));
        let used = budget.used();
        Scene { server, budget, neighbours, used }
    }

    pub(crate) fn unharmed(&self, n: usize) {
        self.neighbours.iter().for_each(|neighbour| neighbour.works(n as f32));
    }

    /// Runs attacks by a new session, looks after the neighbours, and that nothing of it is left.
    pub(crate) fn attack(&self, attack: impl AsyncFnOnce(&mut Hostile)) {
        run(async {
            let conn = Conn::open(self.server.local_addr()).await.unwrap();
            let mut hostile = Hostile::new(conn).await;
            attack(&mut hostile).await;
            self.unharmed(2);
            hostile.leave(self).await;
        });
        self.unharmed(3);
        // At once after a goodbye, and otherwise when the lease is over.
        eventually(Duration::from_secs(12), || self.budget.used() == self.used);
    }
}

pub(crate) fn devices_of(server: &Server) -> Vec<Arc<dyn Device>> {
    common::devices(server)
}

/// A session of an attacker, who knows the protocol well. Its buffers 1 and 2 are on the first device and the second.
pub(crate) struct Hostile {
    pub(crate) conn: Conn,
    pub(crate) session: v1::Session,
    pub(crate) control: Stream,
    pub(crate) next: u64,
}

impl Hostile {
    pub(crate) async fn new(conn: Conn) -> Hostile {
        let session = conn.hello().await.unwrap().session.unwrap();
        let mut hostile = Hostile { control: control(&conn, &session).await, conn, session, next: 100 };
        for (i, device) in DEVICES.iter().enumerate() {
            let made = hostile.request(alloc(i as u64 + 1, device, SIZE)).await;
            assert_eq!(made, Ok(()));
        }
        hostile
    }

    pub(crate) async fn leave(self, scene: &Scene) {
        let Hostile { conn, session, control, .. } = self;
        drop(control);
        if conn.goodbye(&session).await.is_err() {
            let conn = Conn::open(scene.server.local_addr()).await.unwrap();
            let left = conn.goodbye(&session).await;
            assert!(left.as_ref().is_ok() || left.as_ref().is_err_and(|e| e.contains("no such session")), "{left:?}");
        }
    }

    /// The answer to a request: the text of its error, or that the stream is over.
    pub(crate) async fn request(&mut self, request: R) -> Result<(), String> {
        self.raw_request(&v1::ControlRequest { request: Some(request) }.encode_to_vec()).await
    }

    /// Waits until the requests so far are done: the one behind them is answered, and not all of them are.
    pub(crate) async fn settle(&mut self) -> Result<(), String> {
        let last = v1::Alloc { request: LAST, buffer: 0, ..Default::default() };
        self.control.message(&v1::ControlRequest { request: Some(R::Alloc(last)) }.encode_to_vec());
        loop {
            let reply = self.control.next().await?.ok_or("the end")?;
            let reply = v1::ControlReply::decode(reply).unwrap().reply.unwrap();
            if matches!(reply, v1::control_reply::Reply::Done(v1::Done { request: LAST, .. })) {
                return Ok(());
            }
        }
    }

    pub(crate) async fn raw_request(&mut self, request: &[u8]) -> Result<(), String> {
        self.control.message(request);
        loop {
            let reply = self.control.next().await?.ok_or("the end")?;
            match v1::ControlReply::decode(reply).unwrap().reply.unwrap() {
                v1::control_reply::Reply::Attached(_) => {}
                v1::control_reply::Reply::Done(done) => return done.error.map_or(Ok(()), |e| Err(text(e))),
                v1::control_reply::Reply::Bye(_) => return Err("goodbye".into()),
                v1::control_reply::Reply::Resumed(_) => return Err("a session that was not taken up goes on".into()),
            }
        }
    }

    /// Compiles an encoded graph, each root of `tensors` at its own kilobyte of the device's buffer.
    pub(crate) async fn compile(
        &mut self,
        device: usize,
        graph: impl Into<Vec<u8>>,
        tensors: u32,
    ) -> Result<u64, String> {
        let buffer = device as u64 + 1;
        let places = (0..tensors).map(|t| (t, buffer, u64::from(t) * 1024, 1024)).collect::<Vec<_>>();
        self.compile_at(device, graph, &places).await
    }

    pub(crate) async fn compile_at(
        &mut self,
        device: usize,
        graph: impl Into<Vec<u8>>,
        places: &[(u32, u64, u64, u64)],
    ) -> Result<u64, String> {
        self.next += 1;
        let compile = compile(self.next, device, graph.into(), places);
        self.request(R::Compile(compile)).await.map(|()| self.next)
    }

    /// Runs commands on a new queue: the error that it fails with, if it does.
    pub(crate) async fn commands(&mut self, device: usize, commands: impl IntoIterator<Item = C>) -> Option<String> {
        let commands = commands.into_iter().map(|c| v1::Command { command: Some(c) }.encode_to_vec());
        self.raw_commands(device, commands).await.unwrap()
    }

    pub(crate) async fn raw_commands(
        &mut self,
        device: usize,
        commands: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Option<String>, String> {
        self.next += 1;
        let mut stream = self.conn.stream("outboard.v1.Outboard/Queue").await?;
        let (session, device) = (Some(self.session.clone()), DEVICES[device].into());
        let open = C::Open(v1::OpenQueue { session, queue: self.next, device });
        let last = C::Finish(v1::Finish { request: LAST });
        stream.message(&v1::Command { command: Some(open) }.encode_to_vec());
        commands.into_iter().for_each(|c| stream.message(&c));
        stream.message(&v1::Command { command: Some(last) }.encode_to_vec());
        let mut failed = None;
        loop {
            match v1::Reply::decode(stream.next().await?.ok_or("the end")?).unwrap().reply.unwrap() {
                Reply::Failed(e) => failed = Some(text(e)),
                Reply::Done(v1::Done { request: LAST, error }) => {
                    return Ok(failed.or(error.map(text)));
                }
                Reply::Opened(_) | Reply::Data(_) | Reply::Done(_) => {}
            }
        }
    }
}

pub(crate) const LAST: u64 = 0xdead_beef;

pub(crate) async fn control(conn: &Conn, session: &v1::Session) -> Stream {
    let stream = conn.stream("outboard.v1.Outboard/Control").await.unwrap();
    stream.message(&v1::ControlRequest { request: Some(R::Attach(session.clone())) }.encode_to_vec());
    stream
}

pub(crate) fn text(error: v1::Error) -> String {
    match error.kind.unwrap() {
        Kind::Request(text) => text,
        other => format!("{other:?}"),
    }
}

pub(crate) fn alloc(buffer: u64, device: &str, size: u64) -> R {
    R::Alloc(v1::Alloc { request: 1, buffer, device: device.into(), size, usage: "ANY".into() })
}

pub(crate) fn compile(executable: u64, device: usize, graph: Vec<u8>, places: &[(u32, u64, u64, u64)]) -> v1::Compile {
    let places = v1::Places {
        tensors: places.iter().map(|p| p.0).collect(),
        buffers: places.iter().map(|p| p.1).collect(),
        offsets: places.iter().map(|p| p.2).collect(),
        lens: places.iter().map(|p| p.3).collect(),
    };
    let places = places.encode_to_vec().into();
    v1::Compile { request: 2, executable, device: DEVICES[device].into(), graph: graph.into(), places }
}

pub(crate) fn slice(buffer: u64, offset: u64, len: u64) -> Option<v1::Slice> {
    Some(v1::Slice { buffer, offset, len })
}

pub(crate) fn write(buffer: u64, offset: u64, data: Vec<u8>) -> C {
    C::Write(v1::Write { dst: slice(buffer, offset, data.len() as u64), data: data.into() })
}

/// A leaf on the wire.
pub(crate) fn leaf(name: &str, dtype: &str, ne: &[u64], nb: &[u64]) -> v1::Tensor {
    let (name, dtype, leaf) = (name.into(), dtype.into(), "INPUT".into());
    v1::Tensor { name, dtype, ne: ne.into(), nb: nb.into(), leaf, ..Default::default() }
}

/// A node on the wire; sources count from 1.
pub(crate) fn node(op: &str, ne: &[u64], srcs: &[u32]) -> v1::Tensor {
    v1::Tensor { dtype: "F32".into(), ne: ne.into(), op: op.into(), srcs: srcs.into(), ..Default::default() }
}

pub(crate) fn wire(tensors: impl Into<Vec<v1::Tensor>>) -> Vec<u8> {
    v1::Graph { tensors: tensors.into() }.encode_to_vec()
}

pub(crate) fn contains(error: Result<u64, String>, what: &str) {
    let error = error.unwrap_err();
    assert!(
        error.contains(what) && error.len() <= limits::MAX_ERROR_TEXT && !error.contains('\n'),
        "{error}, not {what}"
    );
}
