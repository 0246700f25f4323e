//! What the helper costs: a step (a write, a graph, a read) and bytes, on ggml's CPU device in a process of its own and in this one, in turns.
//!
//! `OUTBOARD_GGML=DIR cargo run --release -p outboard-ggml --example helper_cost`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use bytes::Bytes;
use outboard_core::op::MulMat;
use outboard_core::{DType, Device, GraphBuilder, Host, Placement, Queue, Slice, Usage};
use outboard_ggml::{Library, VARIABLE, devices, find, ggml_device, open, run_if_helper};
use outboard_host::MemoryBudget;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 9;
const STEPS: u32 = 1000;
const BYTES: usize = 256 << 20;

/// Something to measure on a device.
struct Bench {
    queue: Arc<dyn Queue>,
    x: Slice,
    y: Slice,
    executable: Arc<dyn outboard_core::Executable>,
    large: Slice,
}

impl Bench {
    fn new(device: &dyn Device) -> Bench {
        let mut g = GraphBuilder::new();
        let w = g.weight("w", DType::F32, &[32, 32]).unwrap();
        let x = g.input("x", DType::F32, &[32, 1]).unwrap();
        let y = g.push(MulMat, &[w, x]).unwrap();
        g.output(y);
        let graph = Arc::new(g.finish().unwrap());
        let whole = Slice::whole(device.alloc(16 << 10, Usage::Any).unwrap());
        let place = |i: u64| whole.part(i * 4096, 4096).unwrap();
        let placement = Placement::new(&graph, device, (0..3).map(|i| Some(place(i))).collect()).unwrap();
        let executable = device.compile(graph, placement).unwrap();
        let large = Slice::whole(device.alloc(BYTES as u64, Usage::Any).unwrap());
        let queue = device.queue().unwrap();
        Bench { queue, x: place(1).part(0, 128).unwrap(), y: place(2).part(0, 128).unwrap(), executable, large }
    }

    /// Microseconds of a step.
    fn step(&self) -> f64 {
        let start = Instant::now();
        for _ in 0..STEPS {
            self.queue.write(&self.x, Bytes::from_static(&[0; 128])).unwrap();
            self.queue.execute(&self.executable).unwrap();
            self.queue.read(&self.y).unwrap().wait(WAIT).unwrap();
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS)
    }

    /// GB/s to the device and back.
    fn bytes(&self, data: &Bytes) -> [f64; 2] {
        let start = Instant::now();
        self.queue.write(&self.large, data.clone()).unwrap();
        self.queue.finish(WAIT).unwrap();
        let written = start.elapsed();
        self.queue.read(&self.large).unwrap().wait(WAIT).unwrap();
        let read = start.elapsed() - written;
        [written, read].map(|time| BYTES as f64 / 1e9 / time.as_secs_f64())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    if let Some(code) = run_if_helper() {
        return code;
    }
    let Some(folder) = std::env::var_os(VARIABLE) else {
        println!("{VARIABLE} does not name ggml's libraries");
        return ExitCode::FAILURE;
    };
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let apart = open(&host, find().iter().find(|found| found.name == "CPU").unwrap(), "ggml:CPU", 1, &budget);
    let library = Arc::new(Library::open(folder.as_ref(), None).unwrap());
    let here = devices(&library).into_iter().find(|device| device.name == "CPU").unwrap();
    let here = ggml_device(&host, &here, "ggml:CPU", 1, &budget);
    let benches = [Bench::new(apart.as_ref()), Bench::new(here.as_ref())];
    let data = Bytes::from(vec![7; BYTES]);
    let mut all = [const { (Vec::new(), Vec::new(), Vec::new()) }; 2];
    for _ in 0..ROUNDS {
        for (bench, (steps, writes, reads)) in benches.iter().zip(&mut all) {
            steps.push(bench.step());
            let [write, read] = bench.bytes(&data);
            writes.push(write);
            reads.push(read);
        }
    }
    for (name, (steps, writes, reads)) in ["in a helper", "in this process"].iter().zip(all) {
        let (step, write, read) = (median(steps), median(writes), median(reads));
        println!("{name}: a step {step:.0} us, writes {write:.1} GB/s, reads {read:.1} GB/s");
    }
    ExitCode::SUCCESS
}
