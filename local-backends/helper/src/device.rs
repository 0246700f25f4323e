//! The device as the rest of this process has it: a backend whose work another process does.

use crate::calls::HelperClient;
use crate::launch::{Launch, StartLimit};
use crate::lock;
use crate::memory::{HelperBuffer, HelperExecutable, buffer};
use crate::message::{Alloc, Compile, OpenStream, Request};
use crate::process::Process;
use crate::stream::HelperStream;
use outboard_core::device::fresh_uid;
use outboard_core::local::{Backend, CardPool, Context, Funds, LocalDevice, MemoryPool, Stream};
use outboard_core::{Buffer, DeviceInfo, Error, Executable, Graph, Host, NodeSet, Placement, Result, TensorId, Usage};
use outboard_proto::device::{slice, usage_name};
use outboard_proto::graph;
use outboard_proto::v1;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A device in `host` that lives in a helper, which is started when it is first needed, and again after it has ended. Its memory is that of `pool`,
/// or what the helper says that there is.
pub fn helper_device(
    host: &Arc<Host>,
    launch: Launch,
    info: DeviceInfo,
    pool: Option<Arc<dyn MemoryPool>>,
) -> Arc<LocalDevice> {
    let (name, now, starts) = (info.id.clone(), Mutex::default(), Mutex::default());
    let helper = Arc::new(Helper { name, launch, now, starts, failed: Mutex::default() });
    let seen = helper.clone();
    let free = move || seen.running().map_or(u64::MAX, |process| process.free());
    let pool = pool.unwrap_or_else(|| CardPool::new(info.memory_total, free));
    LocalDevice::new(host, info, pool, Arc::new(HelperBackend(helper)))
}

/// The helper of a device, whichever there is now.
#[derive(Debug)]
struct Helper {
    name: String,
    launch: Launch,
    now: Mutex<Option<Arc<Process>>>,
    /// When it was started last, the oldest first. Whoever starts one has it: others see meanwhile that there is none.
    starts: Mutex<VecDeque<Instant>>,
    /// When a start has failed last, and why.
    failed: Mutex<Option<(Instant, Error)>>,
}

impl Helper {
    /// A helper that lives.
    fn process(&self) -> Result<Arc<Process>> {
        let living = || self.running().filter(|process| process.check().is_ok());
        if let Some(process) = living() {
            return Ok(process);
        }
        let asked = Instant::now();
        let mut starts = lock(&self.starts);
        if let Some(process) = living() {
            return Ok(process);
        }
        // Whoever has waited for a start does not try the same again.
        if let Some((_, error)) = lock(&self.failed).clone().filter(|(failed, _)| *failed >= asked) {
            return Err(error);
        }
        self.check_starts(&mut starts)?;
        starts.push_back(Instant::now());
        let started = Process::start(&self.launch, &self.name);
        let (process, _) = started.inspect_err(|error| *lock(&self.failed) = Some((Instant::now(), error.clone())))?;
        Ok(lock(&self.now).insert(process).clone())
    }

    /// Fails if it was started too often.
    fn check_starts(&self, starts: &mut VecDeque<Instant>) -> Result<()> {
        let StartLimit { starts: most, within } = self.launch.limit;
        starts.retain(|start| start.elapsed() < within);
        let Some(first) = starts.front().filter(|_| starts.len() >= most) else { return Ok(()) };
        let left = within.saturating_sub(first.elapsed()).as_secs_f64().ceil();
        let last = self.running().and_then(|process| process.check().err());
        let last = match last {
            Some(Error::Peer { detail, .. }) => format!("; the last time {detail}"),
            _ => String::new(),
        };
        let within = within.as_secs_f64();
        let detail = format!(
            "its process was started {most} times in {within:.0} s, and is not started again for {left:.0} s{last}"
        );
        Err(Error::Peer { endpoint: self.name.clone(), detail })
    }

    /// What a client is told that was refused a helper, as long as that is so: it is not to try again.
    fn check_refusal(&self) -> Result<()> {
        // Somebody who is at starting one was not refused.
        let Ok(mut starts) = self.starts.try_lock() else { return Ok(()) };
        self.check_starts(&mut starts).map_err(|error| match error {
            Error::Peer { endpoint, detail } => {
                Error::Timeout { what: format!("{endpoint}: {detail}"), after: Duration::ZERO }
            }
            error => error,
        })
    }

    /// The one that there is, if there is one.
    fn running(&self) -> Option<Arc<Process>> {
        lock(&self.now).clone()
    }
}

struct HelperBackend(Arc<Helper>);

impl Backend for HelperBackend {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        self.supports_of(graph).is_ok_and(|supported| supported.contains(id))
    }

    fn supports_of(&self, graph: &Graph) -> Result<NodeSet> {
        let process = self.0.process()?;
        let answer = process.ask(Request::Supports(graph::encode(graph)?))?;
        Ok(NodeSet::from_flags(answer.done.supported))
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        Arc::new(HelperContext { helper: self.0.clone(), funds, stay: Mutex::new(Stay::Nowhere) })
    }

    fn progress(&self) -> Option<u64> {
        Some(self.0.running().map_or(0, |process| process.progress()))
    }
}

/// What one client has of it: it stays with the helper in which it was first used.
struct HelperContext {
    helper: Arc<Helper>,
    funds: Funds,
    stay: Mutex<Stay>,
}

/// Where a client is.
enum Stay {
    /// It has asked for nothing yet.
    Nowhere,
    /// It has asked, and there was no helper for it.
    Refused,
    In(Opened),
}

#[derive(Clone)]
struct Opened {
    process: Arc<Process>,
    client: Arc<HelperClient>,
    id: u64,
}

impl HelperContext {
    /// Its place in the helper. An error if that helper has ended.
    fn opened(&self) -> Result<Opened> {
        let mut stay = lock(&self.stay);
        if let Stay::In(opened) = &*stay {
            opened.process.check()?;
            return Ok(opened.clone());
        }
        let process = self.helper.process().inspect_err(|_| *stay = Stay::Refused)?;
        let new = Opened { process, client: Arc::default(), id: fresh_uid() };
        new.process.tell(Request::Open(new.id));
        *stay = Stay::In(new.clone());
        Ok(new)
    }
}

impl Context for HelperContext {
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        let Opened { process, client, id: context } = self.opened()?;
        let id = fresh_uid();
        let call = Request::Alloc(Alloc { context, buffer: id, size, usage: usage_name(usage).to_owned() });
        let payments = process.ask_paid(call, &self.funds, &client, size)?;
        Ok(Arc::new(HelperBuffer { process, id, size, device: self.funds.device(), payments }))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let Opened { process, client, id: context } = self.opened()?;
        let place = |id| match placement.get(id) {
            Some(place) => Ok(slice(buffer(&process, place)?.id, place)),
            None => Ok(v1::Slice::default()),
        };
        let places = graph.ids().map(place).collect::<Result<_>>()?;
        let executable = fresh_uid();
        let call = Request::Compile(Compile { context, executable, graph: graph::encode(&graph)?, places });
        let payments = process.ask_paid(call, &self.funds, &client, 0)?;
        let device = self.funds.device();
        Ok(Arc::new(HelperExecutable { process, id: executable, device, payments, _placement: placement }))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        let Opened { process, client, id: context } = self.opened()?;
        let stream = fresh_uid();
        process.tell(Request::Stream(OpenStream { context, stream }));
        Ok(Box::new(HelperStream::new(process, client, stream, cancel)))
    }

    fn check(&self) -> Result<()> {
        match &*lock(&self.stay) {
            Stay::Nowhere => Ok(()),
            Stay::Refused => self.helper.check_refusal(),
            Stay::In(Opened { process, client, .. }) => process.check().map_err(|lost| match client.hung() {
                Some(after) => Error::Timeout { what: format!("{} to get any further", self.helper.name), after },
                None => lost,
            }),
        }
    }
}

impl Drop for HelperContext {
    fn drop(&mut self) {
        if let Stay::In(Opened { process, id, .. }) = &*lock(&self.stay) {
            process.tell(Request::Close(*id));
        }
    }
}
