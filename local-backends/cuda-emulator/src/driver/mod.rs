//! The driver behind the calls: devices, contexts, memory, streams, events, modules, graphs. Handles are numbers of tables, so that one
//! that is no more is an error and not a fault.
mod calls_context;
mod calls_device;
mod calls_graph;
mod calls_memory;
mod calls_module;
mod calls_stream;
mod config;
mod context;
mod copy;
mod device;
mod error;
pub(crate) mod inject;
mod launch;
mod memory;
mod module;
mod pointer;
mod stream;
mod table;

use crate::count::Counts;
pub use config::{Config, VARIABLE};
use context::Context;
pub(crate) use error::{Answer, Code};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use table::Table;

/// Launches and findings that are kept for whoever asks, at most.
const MAX_RECORDS: usize = 1 << 16;

/// A launch that is over.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) kernel: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) counts: Counts,
}

/// The state of the process.
pub(crate) struct Driver {
    pub(crate) config: Mutex<Config>,
    initialised: AtomicBool,
    devices: OnceLock<Vec<device::Device>>,
    pub(crate) memory: memory::Allocations,
    contexts: Table<Context>,
    streams: Table<stream::Stream>,
    events: Table<stream::Event>,
    modules: Table<module::Module>,
    functions: Table<module::Function>,
    graphs: Table<stream::Graph>,
    pub(crate) injected: inject::Injected,
    pub(crate) records: Mutex<Vec<Record>>,
    /// Kernel and line of every finding.
    pub(crate) findings: Mutex<Vec<(u32, String, String)>>,
    launches: AtomicU64,
    /// How often each call was made.
    pub(crate) called: Mutex<HashMap<&'static str, u64>>,
}

/// The driver of this process.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| Driver {
        config: Mutex::new(Config::from_environment()),
        initialised: AtomicBool::new(false),
        devices: OnceLock::new(),
        memory: memory::Allocations::default(),
        contexts: Table::default(),
        streams: Table::default(),
        events: Table::default(),
        modules: Table::default(),
        functions: Table::default(),
        graphs: Table::default(),
        injected: inject::Injected::default(),
        records: Mutex::new(Vec::new()),
        findings: Mutex::new(Vec::new()),
        launches: AtomicU64::new(0),
        called: Mutex::default(),
    })
}

/// A lock whose holder may have panicked: what it guards is consistent after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line for whoever looks at the test's output.
#[allow(clippy::print_stderr)]
pub(crate) fn log(line: &str) {
    eprintln!("cuda-emulator: {line}");
}

impl Driver {
    /// The devices, made by the first who asks.
    fn devices(&self) -> &[device::Device] {
        self.devices.get_or_init(|| {
            let config = *lock(&self.config);
            (0..config.devices as usize).map(|i| device::Device::new(i, &config)).collect()
        })
    }

    fn device(&self, ordinal: i32) -> Answer<&device::Device> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices().get(i)).ok_or(Code::INVALID_DEVICE)
    }

    /// How many of its things are there.
    pub(crate) fn live(&self) -> Live {
        let primary = self.devices().iter().filter(|d| lock(&d.primary).is_some()).count();
        Live {
            contexts: self.contexts.len() as u64,
            primary_contexts: primary as u64,
            streams: self.streams.len() as u64,
            events: self.events.len() as u64,
            modules: self.modules.len() as u64,
            graphs: self.graphs.len() as u64,
            device_bytes: self.memory.used_by_all(),
            host_allocations: self.memory.host_count(),
        }
    }
}

/// What a program has made and not given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Live {
    /// Contexts, primary ones too.
    pub contexts: u64,
    /// Primary contexts that are retained.
    pub primary_contexts: u64,
    /// Streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Modules.
    pub modules: u64,
    /// Graphs, instantiated ones too.
    pub graphs: u64,
    /// Bytes of device memory, those of modules too.
    pub device_bytes: u64,
    /// Allocations and registrations of host memory.
    pub host_allocations: u64,
}

/// Runs a call: an error that is injected comes in its place, a panic becomes `UNKNOWN`.
fn enter(name: &'static str, call: impl FnOnce() -> Answer) -> u32 {
    let guarded = || {
        let driver = driver();
        *lock(&driver.called).entry(name).or_default() += 1;
        driver.injected.call(name)?;
        if !driver.initialised.load(Ordering::Acquire)
            && !name.starts_with("cuInit")
            && !name.starts_with("cuGetError")
            && name != "cuDriverGetVersion"
        {
            return Err(Code::NOT_INITIALIZED);
        }
        call()
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => {
            log(&format!("{name} panicked: a fault of the emulator"));
            Code::UNKNOWN.0
        }
    }
}

/// Calls of the driver under the names that programs look for.
macro_rules! calls {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::driver::enter(stringify!($name), move || $body)
        }
    )*};
}
use calls;
