//! The device as the rest of this process has it: a backend whose work another process does.

use crate::launch::Launch;
use crate::lock;
use crate::memory::{HelperBuffer, HelperExecutable, buffer};
use crate::message::{Alloc, Compile, OpenStream, What};
use crate::process::Process;
use crate::stream::HelperStream;
use outboard_core::device::fresh_uid;
use outboard_core::local::{Backend, CardPool, Context, Funds, LocalDevice, MemoryPool, Stream};
use outboard_core::{Buffer, DeviceInfo, Executable, Graph, Host, NodeSet, Placement, Result, TensorId, Usage};
use outboard_proto::device::{slice, usage_name};
use outboard_proto::graph;
use outboard_proto::v1;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// A device in `host` that lives in a helper, which is started when it is first needed, and again after it has ended. Its memory is that of `pool`,
/// or what the helper says that there is.
pub fn helper_device(
    host: &Arc<Host>,
    launch: Launch,
    info: DeviceInfo,
    pool: Option<Arc<dyn MemoryPool>>,
) -> Arc<LocalDevice> {
    let helper = Arc::new(Helper { name: info.id.clone(), launch, now: Mutex::default(), starting: Mutex::default() });
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
    /// Whoever starts one has it. Others see meanwhile that there is none.
    starting: Mutex<()>,
}

impl Helper {
    /// A helper that lives.
    fn process(&self) -> Result<Arc<Process>> {
        let living = || self.running().filter(|process| process.check().is_ok());
        if let Some(process) = living() {
            return Ok(process);
        }
        let _one = lock(&self.starting);
        if let Some(process) = living() {
            return Ok(process);
        }
        let (process, _) = Process::start(&self.launch, &self.name)?;
        Ok(lock(&self.now).insert(process).clone())
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
        let answer = process.ask(What::Supports(graph::encode(graph)?))?;
        Ok(NodeSet::from_flags(answer.done.supported))
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        Arc::new(HelperContext { helper: self.0.clone(), funds, opened: Mutex::default() })
    }

    fn progress(&self) -> Option<u64> {
        Some(self.0.running().map_or(0, |process| process.progress()))
    }
}

/// What one client has of it: it stays with the helper in which it was first used.
struct HelperContext {
    helper: Arc<Helper>,
    funds: Funds,
    opened: Mutex<Option<Opened>>,
}

#[derive(Clone)]
struct Opened {
    process: Arc<Process>,
    id: u64,
}

impl HelperContext {
    /// Its place in the helper. An error if that helper has ended.
    fn opened(&self) -> Result<Opened> {
        let mut opened = lock(&self.opened);
        if let Some(opened) = opened.as_ref() {
            opened.process.check()?;
            return Ok(opened.clone());
        }
        let new = Opened { process: self.helper.process()?, id: fresh_uid() };
        new.process.tell(What::Open(new.id));
        Ok(opened.insert(new).clone())
    }
}

impl Context for HelperContext {
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        let Opened { process, id: context } = self.opened()?;
        let id = fresh_uid();
        let call = What::Alloc(Alloc { context, buffer: id, size, usage: usage_name(usage).to_owned() });
        let payments = process.ask_paid(call, &self.funds, size)?;
        Ok(Arc::new(HelperBuffer { process, id, size, device: self.funds.device(), payments }))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let Opened { process, id: context } = self.opened()?;
        let place = |id| match placement.get(id) {
            Some(place) => Ok(slice(buffer(&process, place)?.id, place)),
            None => Ok(v1::Slice::default()),
        };
        let places = graph.ids().map(place).collect::<Result<_>>()?;
        let executable = fresh_uid();
        let call = What::Compile(Compile { context, executable, graph: graph::encode(&graph)?, places });
        let payments = process.ask_paid(call, &self.funds, 0)?;
        let device = self.funds.device();
        Ok(Arc::new(HelperExecutable { process, id: executable, device, payments, _placement: placement }))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        let Opened { process, id: context } = self.opened()?;
        let stream = fresh_uid();
        process.tell(What::Stream(OpenStream { context, stream }));
        Ok(Box::new(HelperStream::new(process, stream, cancel)))
    }

    fn check(&self) -> Result<()> {
        lock(&self.opened).as_ref().map_or(Ok(()), |opened| opened.process.check())
    }
}

impl Drop for HelperContext {
    fn drop(&mut self) {
        if let Some(Opened { process, id }) = lock(&self.opened).take() {
            process.tell(What::Close(id));
        }
    }
}
