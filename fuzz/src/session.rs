//! Sessions: random requests and commands, in any order, on a server in this process. An input is a program for a machine that knows
//! every message; each instruction is a byte, its arguments are the bytes behind it.

use crate::mutate::LIMITS;
use crate::random::{Content, RandomGraph};
use crate::raw::{Conn, NOTHING, Stream};
use crate::second::second_device;
use outboard_core::Host;
use outboard_core::op::{Binary, BinaryKind, GetRows, MulMat, SetRows};
use outboard_core::{DType, GraphBuilder, GraphError, TensorId};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_proto::graph;
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::v1::{self, Slice};
use outboard_reference::reference_device;
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use prost::Message;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Memory of the server: small enough that inputs find its end.
const MEMORY: u64 = 8 << 20;
/// Instructions of one input.
const MAX_STEPS: usize = 64;
/// Handle of the buffer and the executable of graphs that are right.
const COMPUTE: u64 = 77;
/// How long queues get to come to rest. Those that wait for what never comes do not.
const REST: Duration = Duration::from_millis(30);

/// The devices of the server, whose kernels and scratch memory are those that are shipped. The second one is ggml's where `OUTBOARD_GGML` names it.
const DEVICES: [&str; 2] = ["REF0", "CPU0"];

struct World {
    server: Server,
    budget: Arc<MemoryBudget>,
    /// Encoded graphs.
    graphs: Vec<Vec<u8>>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(MEMORY)));
    let second = second_device(&host, DEVICES[1], &budget);
    let second = second.unwrap_or_else(|| cpu_device(&host, DEVICES[1], CpuOptions::with_threads(2), &budget));
    let devices = vec![reference_device(&host, DEVICES[0], &budget), second];
    let addr = "127.0.0.1:0".parse().expect("an address");
    let config = ServerConfig { addr, devices, limits: Limits::default(), trust: Trust::default() };
    let server = Server::start(config).expect("a server");
    let graphs = [sum(), rows(), products(), Ok(Vec::new())].into_iter().map(|g| g.expect("a graph")).collect();
    World { server, budget, graphs }
});

thread_local! {
    /// An event loop, and a connection while it lives.
    static CLIENT: RefCell<(tokio::runtime::Runtime, Option<Conn>)> = RefCell::new((
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop"),
        None,
    ));
}

fn sum() -> Result<Vec<u8>, GraphError> {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8])?;
    let y = g.push(Binary { kind: BinaryKind::Add }, &[x, x])?;
    g.output(y);
    Ok(graph::encode(&g.finish()?).expect("a small graph").to_vec())
}

fn rows() -> Result<Vec<u8>, GraphError> {
    let mut g = GraphBuilder::new();
    let cache = g.state("cache", DType::F32, &[8, 4])?;
    let (x, ids) = (g.input("x", DType::F32, &[8, 2])?, g.input("ids", DType::I32, &[2])?);
    let written = g.push(SetRows, &[cache, x, ids])?;
    let y = g.push(GetRows, &[written, ids])?;
    g.output(y);
    Ok(graph::encode(&g.finish()?).expect("a small graph").to_vec())
}

/// Products with one right side, of matrices with and without rows.
fn products() -> Result<Vec<u8>, GraphError> {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[32, 2])?;
    for (name, rows) in [("none", 0), ("some", 3)] {
        let w = g.weight(name, DType::Q8_0, &[32, rows])?;
        let y = g.push(MulMat, &[w, x])?;
        g.output(y);
    }
    Ok(graph::encode(&g.finish()?).expect("a small graph").to_vec())
}

/// Arguments from an input; zeros behind its end.
struct Args<'a>(&'a [u8]);

impl Args<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// A handle: few, so that they meet.
    fn handle(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            n => u64::from(n % 6),
        }
    }

    /// A size or an offset.
    fn size(&mut self) -> u64 {
        match self.byte() {
            n @ 0..128 => u64::from(n) * 8,
            n => LIMITS[usize::from(n) % LIMITS.len()],
        }
    }

    fn device(&mut self) -> String {
        let [reference, cpu] = DEVICES;
        [reference, cpu, reference, cpu, "", "REF9"][self.below(6)].into()
    }

    fn slice(&mut self) -> Option<Slice> {
        match self.byte() {
            0 => None,
            _ => Some(Slice { buffer: self.handle(), offset: self.size(), len: self.size() }),
        }
    }

    fn ticket(&mut self) -> bytes::Bytes {
        match self.byte() {
            n @ 0..250 => vec![n % 3; 32].into(),
            n => vec![n; 31].into(),
        }
    }

    fn raw(&mut self) -> Vec<u8> {
        let n = self.below(40);
        (0..n).map(|_| self.byte()).collect()
    }
}

pub(crate) fn run(input: &[u8]) {
    // Starts with an event loop of its own, which must not be inside that of the client.
    LazyLock::force(&WORLD);
    CLIENT.with_borrow_mut(|(runtime, conn)| {
        let kept = conn.take();
        *conn = runtime.block_on(play(input, kept));
    });
}

/// Opens a session, on the connection that was kept unless that has ended.
async fn greet(addr: SocketAddr, kept: Option<Conn>) -> (Conn, v1::Session) {
    if let Some(conn) = kept
        && let Ok(hello) = conn.hello().await
    {
        return (conn, hello.session.expect("a session"));
    }
    let conn = Conn::open(addr).await.expect("a server that accepts");
    let hello = conn.hello().await.expect("a server that greets");
    (conn, hello.session.expect("a session"))
}

/// Runs a program; gives the connection back if it still works.
async fn play(input: &[u8], kept: Option<Conn>) -> Option<Conn> {
    let addr = WORLD.server.local_addr();
    let (conn, session) = greet(addr, kept).await;
    let mut machine =
        Machine { conn: conn.clone(), session, control: None, queues: [const { None }; 4], bulks: Vec::new() };
    let mut args = Args(input);
    for _ in 0..MAX_STEPS {
        if args.0.is_empty() {
            break;
        }
        // A refusal ends a stream or the connection, and is an answer.
        if let Err(e) = machine.step(&mut args).await {
            assert!(!e.starts_with(NOTHING), "{e}");
        }
    }
    machine.rest().await;
    let session = machine.session.clone();
    drop(machine);
    let conn = match conn.goodbye(&session).await {
        Ok(()) => conn,
        Err(_) => {
            let fresh = Conn::open(addr).await.expect("a server that accepts");
            // It may have said goodbye itself.
            match fresh.goodbye(&session).await {
                Ok(()) => {}
                Err(e) => assert!(e.contains("no such session"), "{e}"),
            }
            fresh
        }
    };
    // All of it is free again: at once, or when the lease is over of a session whose new secret was lost with its connection.
    let start = std::time::Instant::now();
    while WORLD.budget.used() > 0 {
        assert!(start.elapsed() < Duration::from_secs(15), "{} bytes are not freed", WORLD.budget.used());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Some(conn)
}

struct Machine {
    conn: Conn,
    session: v1::Session,
    control: Option<Stream>,
    queues: [Option<Stream>; 4],
    bulks: Vec<Stream>,
}

impl Machine {
    /// Carries out one instruction. What it means, and the order of its arguments, is what the corpus was made for.
    async fn step(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        match args.byte() % 28 {
            0 | 1 => self.alloc(args).await,
            2 | 3 => self.compile(args).await,
            4 => self.free(args).await,
            5 | 6 => {
                let slot = args.below(4);
                self.queues[slot] = Some(self.conn.queue(&self.session, slot as u64 + 1, DEVICES[slot % 2]).await?);
                Ok(())
            }
            kind @ 7..=18 => {
                let slot = args.below(4);
                let command = command(kind, args);
                if let Some(queue) = &self.queues[slot] {
                    queue.command(command);
                }
                Ok(())
            }
            19 => self.write_bulk(args).await,
            20 => {
                let slot = args.below(5);
                let raw = args.raw();
                match self.queues.get(slot) {
                    Some(Some(queue)) => queue.message(&raw),
                    Some(None) => {}
                    None => self.control_stream().await?.message(&raw),
                }
                Ok(())
            }
            21 => self.end(args).await,
            22 => {
                let (session, device) = (Some(self.session.clone()), args.device());
                let graph = match args.byte() % 2 {
                    0 => WORLD.graphs[0].clone(),
                    _ => args.raw(),
                };
                let request = v1::SupportsRequest { session, device, graph: graph.into() };
                self.conn.call("outboard.v1.Outboard/Supports", &request.encode_to_vec()).await.map(drop)
            }
            24..28 => self.compute(args).await,
            _ => self.call(args).await,
        }
    }

    async fn alloc(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        let alloc = v1::Alloc {
            request: 1,
            buffer: args.handle(),
            device: args.device(),
            size: args.size(),
            usage: "ANY".into(),
        };
        self.control(R::Alloc(alloc)).await
    }

    async fn compile(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        let graph = WORLD.graphs[args.below(WORLD.graphs.len())].clone();
        let n = args.below(6);
        let mut places = v1::Places::default();
        for tensor in 0..n as u32 {
            places.tensors.push(tensor);
            places.buffers.push(args.handle());
            places.offsets.push(args.size());
            places.lens.push(args.size());
        }
        let compile = v1::Compile {
            request: 2,
            executable: args.handle(),
            device: args.device(),
            graph: graph.into(),
            places: places.encode_to_vec().into(),
        };
        self.control(R::Compile(compile)).await
    }

    async fn free(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        let fences = match args.byte() % 4 {
            0 => vec![v1::Fence { queue: args.handle(), commands: args.size() }],
            _ => Vec::new(),
        };
        let free = v1::Free { buffers: vec![args.handle()], executables: vec![args.handle()], fences };
        self.control(R::Free(free)).await
    }

    /// Announces a payload, and sends some of it on a bulk stream, and something else behind that.
    async fn write_bulk(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        let write = v1::WriteBulk { transfer: args.handle(), dst: args.slice(), digest: Default::default() };
        let (slot, transfer) = (args.below(4), write.transfer);
        if let Some(queue) = &self.queues[slot] {
            queue.command(C::WriteBulk(write));
        }
        let bulk = self.conn.bulk(&self.session, slot as u64 + 1).await?;
        bulk.chunk(transfer, vec![2; args.size() as usize % 2048]);
        bulk.bytes(args.raw());
        self.bulks.push(bulk);
        Ok(())
    }

    /// A goodbye in the middle, streams that end, a session that goes on elsewhere.
    async fn end(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        match args.byte() % 6 {
            0 => self.control(R::Goodbye(v1::Goodbye {})).await,
            1 => self.control(R::Attach(self.session.clone())).await,
            2 => {
                self.control = None;
                Ok(())
            }
            4 => {
                let resume = self.resume_with(args);
                self.control(R::Resume(resume)).await
            }
            5 => {
                let resume = self.resume_with(args);
                self.resume(resume).await
            }
            _ => {
                self.queues[args.below(4)] = None;
                Ok(())
            }
        }
    }

    /// Some call, with a message that is right or any bytes.
    async fn call(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        let method =
            ["Hello", "Devices", "Memory", "Supports", "Trace", "HaveBlobs", "PlaceBlobs", "None"][args.below(8)];
        let request = match args.byte() % 2 {
            0 => v1::TraceRequest { session: Some(self.session.clone()), record: true }.encode_to_vec(),
            _ => args.raw(),
        };
        if method == "Hello" {
            return Ok(());
        }
        self.conn.call(&format!("outboard.v1.Outboard/{method}"), &request).await.map(drop)
    }

    /// Runs a graph that is right, with every op that there is, beside whatever else is under way.
    async fn compute(&mut self, args: &mut Args<'_>) -> Result<(), String> {
        let seed = u64::from(args.byte()) << 8 | u64::from(args.byte());
        let random = RandomGraph::new(seed);
        let (mut places, mut size) = (v1::Places::default(), 0);
        for id in random.graph.ids() {
            let t = random.graph.tensor(id);
            let span = t.layout().span() as u64;
            if t.root() == id && span > 0 {
                places.tensors.push(id.index() as u32);
                places.buffers.push(COMPUTE);
                places.offsets.push(size);
                places.lens.push(span);
                size += span.next_multiple_of(64);
            }
        }
        let slot = args.below(4);
        let device = DEVICES[slot % 2].to_owned();
        let old = v1::Free { buffers: vec![COMPUTE], executables: vec![COMPUTE], fences: Vec::new() };
        self.control(R::Free(old)).await?;
        let (request, buffer, usage) = (1, COMPUTE, "ANY".into());
        self.control(R::Alloc(v1::Alloc { request, buffer, device: device.clone(), size, usage })).await?;
        let graph = graph::encode(&random.graph).expect("a small graph");
        let offsets: Vec<(usize, u64)> =
            places.tensors.iter().map(|&t| t as usize).zip(places.offsets.iter().copied()).collect();
        let places = places.encode_to_vec().into();
        self.control(R::Compile(v1::Compile { request: 2, executable: COMPUTE, device, graph, places })).await?;
        let Some(queue) = &self.queues[slot] else { return Ok(()) };
        for (index, offset) in offsets {
            let id = TensorId::from_index(index);
            if random.graph.tensor(id).leaf().is_some() {
                let data = random.content(id, Content::Numbers, seed);
                let dst = Some(Slice { buffer: COMPUTE, offset, len: data.len() as u64 });
                let write = C::Write(v1::Write { dst, data: data.into() });
                queue.command(write);
            }
        }
        queue.command(C::Execute(v1::Execute { executable: COMPUTE }));
        Ok(())
    }

    async fn control_stream(&mut self) -> Result<&Stream, String> {
        if self.control.is_none() {
            self.control = Some(self.conn.control(R::Attach(self.session.clone())).await?);
        }
        self.control.as_ref().ok_or_else(|| "no control stream".into())
    }

    /// What takes the session up, or tries to, with some of its handles.
    fn resume_with(&self, args: &mut Args<'_>) -> v1::Resume {
        let mut session = self.session.clone();
        if args.byte() % 8 == 7 {
            session.secret = args.ticket();
        }
        let mut handles = || (0..args.below(4)).map(|_| args.handle()).collect();
        v1::Resume { session: Some(session), buffers: handles(), executables: handles() }
    }

    /// Takes the session up on another stream.
    async fn resume(&mut self, resume: v1::Resume) -> Result<(), String> {
        let mut stream = self.conn.control(R::Resume(resume)).await?;
        while let Some(reply) = stream.next_as::<v1::ControlReply>().await? {
            if let Some(v1::control_reply::Reply::Resumed(resumed)) = reply.reply {
                self.session = resumed.session.expect("a session that goes on");
                self.control = Some(stream);
                break;
            }
        }
        Ok(())
    }

    /// Sends a request, and waits for its answer if one comes, so that what is behind it finds what it has made.
    async fn control(&mut self, request: R) -> Result<(), String> {
        let answered = matches!(request, R::Alloc(_) | R::Compile(_));
        self.control_stream().await?.request(request);
        while answered && let Some(control) = &mut self.control {
            match control.next_as::<v1::ControlReply>().await {
                Ok(Some(reply)) => {
                    no_bug(&reply);
                    if !matches!(reply.reply, Some(v1::control_reply::Reply::Attached(_))) {
                        break;
                    }
                }
                ended => {
                    self.control = None;
                    return ended.map(drop);
                }
            }
        }
        Ok(())
    }

    /// Lets queues do what they can, and looks at what they say.
    async fn rest(&mut self) {
        const LAST: u64 = 0x1234_5678;
        for queue in self.queues.iter().flatten() {
            queue.command(C::Finish(v1::Finish { request: LAST }));
        }
        let listen = async {
            for queue in self.queues.iter_mut().flatten() {
                while let Ok(Some(reply)) = queue.next_as::<v1::Reply>().await {
                    no_bug(&reply);
                    if matches!(reply.reply, Some(v1::reply::Reply::Done(v1::Done { request: LAST, .. }))) {
                        break;
                    }
                }
            }
        };
        let _ = tokio::time::timeout(REST, listen).await;
    }
}

/// The command of an instruction.
fn command(kind: u8, args: &mut Args<'_>) -> C {
    match kind {
        7 => C::Write(v1::Write { dst: args.slice(), data: vec![1; args.size() as usize % 4096].into() }),
        8 => {
            // One that fits.
            let len = args.size() % 1024;
            let dst = Some(Slice { buffer: args.handle(), offset: 0, len });
            C::Write(v1::Write { dst, data: vec![0; len as usize].into() })
        }
        9 => C::Read(v1::Read { request: 7, src: args.slice(), bulk: args.byte() % 2 == 1 }),
        10 | 11 => C::Execute(v1::Execute { executable: args.handle() }),
        12 => C::Copy(v1::Copy { src: args.slice(), dst: args.slice() }),
        13 => C::Fill(v1::Fill { dst: args.slice(), value: args.size() as u32 }),
        14 => C::Wait(v1::Wait { queue: args.handle(), value: args.size() / 8 }),
        15 => C::Signal(v1::Signal { value: args.size() / 8 }),
        16 => C::Offer(v1::Offer { ticket: args.ticket(), src: args.slice(), to: args.device(), target: None }),
        17 => C::Accept(v1::Accept { ticket: args.ticket(), dst: args.slice(), value: args.size() / 8, source: None }),
        _ => C::Finish(v1::Finish { request: args.size() }),
    }
}

/// A server that blames itself is what is looked for.
fn no_bug(reply: &impl std::fmt::Debug) {
    let text = format!("{reply:?}");
    assert!(!text.contains("bug of"), "{text}");
}
