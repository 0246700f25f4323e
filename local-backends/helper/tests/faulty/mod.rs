//! A device whose graphs do what the name of their node says: fail in the ways in which a driver can.

use bytes::Bytes;
use outboard_core::local::{Backend, Context, FixedPool, Funds, LocalDevice, Outcome, Payment, Span, Stream};
use outboard_core::{
    Buffer, DeviceInfo, DeviceKind, Error, Executable, Graph, Host, Placement, Result, Slice, TensorId, Usage,
};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that every compiled graph takes beside its tensors.
pub(crate) const SCRATCH: u64 = 1000;
/// What a write that hangs begins with.
pub(crate) const HANGS: &[u8] = b"hang";
/// Bytes whose copy takes a second.
pub(crate) const SLOW: &[u8] = b"slow";
/// Bytes of memory.
pub(crate) const MEMORY: u64 = 64 << 20;

pub(crate) fn info() -> DeviceInfo {
    DeviceInfo {
        description: format!("process {}", std::process::id()),
        ..DeviceInfo::new("faulty", DeviceKind::Gpu, "faulty", MEMORY)
    }
}

pub(crate) fn device() -> Arc<LocalDevice> {
    LocalDevice::new(&Host::new(), info(), FixedPool::new(u64::MAX), Arc::new(Faulty))
}

struct Faulty;

impl Backend for Faulty {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        graph.tensor(id).name() != "unsupported"
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        Arc::new(Part(funds))
    }
}

struct Part(Funds);

#[derive(Debug)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    device: u64,
    _payment: Payment,
}

impl Buffer for Memory {
    fn size(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }
    fn device(&self) -> u64 {
        self.device
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct Compiled {
    device: u64,
    names: Vec<String>,
    _payment: Payment,
}

impl Executable for Compiled {
    fn device(&self) -> u64 {
        self.device
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Context for Part {
    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        let payment = self.0.pay(size)?;
        let bytes = Mutex::new(vec![0; size as usize]);
        Ok(Arc::new(Memory { bytes, device: self.0.device(), _payment: payment }))
    }

    fn compile(&self, graph: Arc<Graph>, _: Placement) -> Result<Arc<dyn Executable>> {
        let names = graph.nodes().map(|id| graph.tensor(id).name().to_owned()).collect();
        Ok(Arc::new(Compiled { device: self.0.device(), names, _payment: self.0.pay(SCRATCH)? }))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Line(cancel)))
    }
}

struct Line(Arc<AtomicBool>);

fn memory(slice: &Slice) -> &Mutex<Vec<u8>> {
    &slice.buffer().as_any().downcast_ref::<Memory>().unwrap().bytes
}

fn range(slice: &Slice) -> std::ops::Range<usize> {
    slice.offset() as usize..(slice.offset() + slice.len()) as usize
}

impl Stream for Line {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        if data.starts_with(HANGS) {
            std::thread::sleep(Duration::from_secs(3600));
        }
        memory(dst).lock().unwrap()[range(dst)].copy_from_slice(&data);
        Ok(Outcome::Now(()))
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        Ok(Outcome::Now(memory(src).lock().unwrap()[range(src)].to_vec().into()))
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        let bytes = memory(src).lock().unwrap()[range(src)].to_vec();
        if bytes.starts_with(SLOW) {
            std::thread::sleep(Duration::from_secs(1));
        }
        self.write(dst, bytes.into())
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        memory(dst).lock().unwrap()[range(dst)].fill(value);
        Ok(Outcome::Now(()))
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let compiled: &Compiled = executable.as_any().downcast_ref().unwrap();
        let start = Instant::now();
        for name in &compiled.names {
            match name.as_str() {
                "abort" => {
                    eprintln!("GGML_ASSERT(everything is well) failed");
                    std::process::abort();
                }
                "exit" => std::process::exit(7),
                "hang" => std::thread::sleep(Duration::from_secs(3600)),
                "long" => {
                    while !self.0.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return Err(Error::Cancelled);
                }
                "wrong" => {
                    let (device, detail) = ("faulty".into(), "row 9 outside 0..5 rows".into());
                    return Err(Error::Device { device, op: Some("GET_ROWS wrong".into()), detail });
                }
                _ => {}
            }
        }
        Ok(Outcome::Now(Span { start, end: Instant::now() }))
    }

    fn reaches(&self, _: &Slice) -> bool {
        false
    }
}
