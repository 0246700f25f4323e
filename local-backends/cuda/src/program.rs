//! A compiled graph: for each node what is launched, in pieces between which a run can be stopped.

use crate::card::words;
use crate::events::{Mark, Timeline};
use crate::gpu::{Gpu, is_kept};
use crate::kernels::Function;
use crate::memory::GpuBuffer;
use crate::pinned::{LARGEST, Pinned};
use crate::record::{FAULT_BYTES, Record};
use crate::recording::{Recorder, Recording};
use crate::rotation::rates;
use crate::steps::{Step, Table, Used, dependencies, steps};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use outboard_core::local::{Funds, card};
use outboard_core::{Error, Executable, Graph, Placement, Result, TensorId, lock};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// Floating-point operations of a piece that every card does in a few milliseconds. A piece has more where a card does more in one, and where a
/// single node has.
const PIECE: u64 = 2_000_000_000;
/// Nodes of a piece at most: what is given ahead cannot be stopped.
const PIECE_NODES: usize = 1024;
/// Numbers that tables begin at multiples of.
const TABLE: usize = 8;
/// Steps that one must wait for in a graph of the driver's, on average at most: its memory for them is nobody's. Models have one or two.
const MOST_BEHIND: usize = 16;
/// Numbers of tables of a program at most.
const MOST_NUMBERS: usize = 1 << 22;
/// Tables that are looked at for one that is the same: models have one or two.
const MOST_TABLES: usize = 16;
/// How often a run that waits for another one to be given looks whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Runs before the pieces are recorded: many graphs run once.
const RUNS_BEFORE: u32 = 1;

/// A node that is computed, maybe with those before it.
#[derive(Debug)]
struct Launched {
    id: TensorId,
    /// Of each pass: its function, blocks, and threads of each.
    functions: Vec<(Function, u32, u32)>,
    /// The parameter of its kernels: of each node that they compute.
    records: Vec<Record>,
    used: Used,
    work: u64,
}

/// Some nodes, one behind the other.
#[derive(Debug)]
pub(crate) struct Piece {
    steps: Range<usize>,
    /// The first of them.
    first: TensorId,
    recording: Mutex<State>,
}

/// How a piece is given.
#[derive(Debug)]
enum State {
    /// Kernel by kernel, so often until now.
    Plain(u32),
    Recorded(Recording),
    /// Kernel by kernel: it cannot be recorded.
    Never,
}

impl Piece {
    /// Nodes that it computes.
    pub(crate) fn nodes(&self) -> u64 {
        self.steps.len() as u64
    }
}

/// A compiled graph. It keeps the memory that its tensors lie in.
pub(crate) struct Program {
    graph: Arc<Graph>,
    _placement: Placement,
    steps: Vec<Launched>,
    pub(crate) pieces: Vec<Piece>,
    /// What kernels say of wrong values; zeros; tables; and behind them the memory that nodes leave numbers in for their next pass.
    memory: GpuBuffer,
    device: u64,
    /// Whose it is, where clients share room.
    client: u64,
    runs: Runs,
}

/// Runs follow one another, whatever queues they are on: they have the same memory for what kernels say, and leave for one another.
#[derive(Debug, Default)]
struct Runs {
    /// Held while a run is given.
    given: Mutex<()>,
    /// Where the last one ends.
    last: Mutex<Option<Arc<Mark>>>,
}

/// That it is given by nobody else.
#[derive(Debug)]
pub(crate) struct Alone<'a> {
    _given: MutexGuard<'a, ()>,
    /// Where the run before ends, if it is not known to have ended.
    pub(crate) last: Option<Arc<Mark>>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("pieces", &self.pieces.len()).finish_non_exhaustive()
    }
}

impl Executable for Program {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Program {
    pub(crate) fn new(gpu: &Arc<Gpu>, funds: &Funds, graph: Arc<Graph>, placement: Placement) -> Result<Program> {
        let planned = steps(gpu, &graph, &placement)?;
        let zeros = planned.iter().flat_map(Step::tables).map(Table::zeros).max().unwrap_or(0);
        let scratch = planned.iter().map(|step| step.launch.scratch).max().unwrap_or(0);
        let mut numbers = vec![0.0; (FAULT_BYTES / 4 + zeros).next_multiple_of(TABLE)];
        let (mut tables, mut places) = (Tables::default(), Vec::new());
        let mut launched = Vec::with_capacity(planned.len());
        for step in planned {
            for table in step.tables() {
                places.push(match table {
                    Table::Of(id) => Place::Numbers(tables.place(rates(&graph, id), &mut numbers)?),
                    Table::Scratch(at) => Place::Scratch(4 * at as u64),
                    Table::Zeros(_) => Place::Numbers(FAULT_BYTES as u64),
                });
            }
            let records = step.parts.iter().map(|part| Record::new(&graph, &placement, part));
            let records = records.collect::<Result<_>>()?;
            let used = Used::of(&graph, &placement, &step);
            launched.push(Launched { id: step.id(), functions: step.functions, records, used, work: step.launch.work });
        }
        let memory = GpuBuffer::new(gpu, funds, 4 * (numbers.len() + scratch) as u64)?;
        for (record, place) in launched.iter_mut().flat_map(|step| &mut step.records).zip(places) {
            record.table = memory.address()
                + match place {
                    Place::Numbers(at) => at,
                    Place::Scratch(at) => 4 * numbers.len() as u64 + at,
                };
            record.fault = memory.address();
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        upload(gpu, memory.address(), &bytes)?;
        let pieces = pieces(&launched, PIECE.max(gpu.flops_of_ms));
        let (device, client) = (funds.device(), funds.room());
        let runs = Runs::default();
        Ok(Program { graph, _placement: placement, steps: launched, pieces, memory, device, client, runs })
    }

    /// Waits until nobody else gives it; [`Error::Cancelled`] when the flag is set.
    pub(crate) fn alone(&self, cancel: &AtomicBool) -> Result<Alone<'_>> {
        loop {
            let given = match self.runs.given.try_lock() {
                Ok(given) => given,
                Err(TryLockError::Poisoned(given)) => given.into_inner(),
                Err(TryLockError::WouldBlock) if cancel.load(Ordering::Relaxed) => return Err(Error::Cancelled),
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(LOOK_AGAIN);
                    continue;
                }
            };
            return Ok(Alone { _given: given, last: lock(&self.runs.last).clone() });
        }
    }

    /// Says where the last run that was given ends.
    pub(crate) fn ends(&self, mark: &Arc<Mark>) {
        *lock(&self.runs.last) = Some(mark.clone());
    }

    /// A run has ended there.
    pub(crate) fn ended(&self, mark: &Arc<Mark>) {
        let mut last = lock(&self.runs.last);
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, mark)) {
            *last = None;
        }
    }

    /// Where kernels say that a value is wrong: [`FAULT_BYTES`] bytes.
    pub(crate) fn fault(&self) -> CUdeviceptr {
        self.memory.address()
    }

    /// Gives a piece to a stream.
    ///
    /// # Safety
    ///
    /// The context of this thread is the one that this was compiled in, and the stream is of it. Whoever gives it keeps the program until it is
    /// done.
    pub(crate) unsafe fn give(
        &self,
        gpu: &Arc<Gpu>,
        piece: &Piece,
        stream: CUstream,
    ) -> std::result::Result<(), DriverError> {
        let mut state = lock(&piece.recording);
        if let State::Plain(RUNS_BEFORE) = *state {
            *state = self.record(gpu, piece)?;
        }
        match &mut *state {
            // SAFETY: as above.
            State::Recorded(recording) => return unsafe { recording.give(stream) },
            State::Plain(runs) => *runs = RUNS_BEFORE.min(*runs + 1),
            State::Never => {}
        }
        drop(state);
        for step in &self.steps[piece.steps.clone()] {
            for &(function, blocks, threads) in &step.functions {
                let mut parameters = [step.records.as_ptr().cast_mut().cast()];
                let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
                // SAFETY: the function's parameter are these records, which the call copies; the tensors that they name lie inside their memory.
                unsafe { result::launch_kernel(function.0, grid, block, function.1, stream, &mut parameters) }?;
            }
        }
        Ok(())
    }

    /// A piece as a graph of the driver's; where there is no room for it now, it is tried another time, and where the driver makes none, never.
    /// Errors are those that the context keeps.
    fn record(&self, gpu: &Arc<Gpu>, piece: &Piece) -> std::result::Result<State, DriverError> {
        let record = || -> std::result::Result<State, DriverError> {
            // Pieces follow one another.
            let steps = &self.steps[piece.steps.clone()];
            let kernels = steps.iter().map(|step| step.functions.len() as u64).sum();
            let Some(mut recorder) = Recorder::new(gpu, self.client, kernels)? else {
                return Ok(State::Plain(RUNS_BEFORE));
            };
            let behind = dependencies(&steps.iter().map(|step| &step.used).collect::<Vec<_>>());
            if behind.iter().map(Vec::len).sum::<usize>() > MOST_BEHIND * steps.len() {
                return Ok(State::Never);
            }
            for (step, behind) in steps.iter().zip(&behind) {
                recorder.add(&step.functions, &step.records, behind)?;
            }
            recorder.finish().map(State::Recorded)
        };
        match record() {
            Err(error) if !is_kept(error.0) => {
                tracing::debug!("{}: kernels are given one by one: {}", gpu.id, words(error));
                Ok(State::Never)
            }
            other => other,
        }
    }

    /// An error of the device while it was at a piece, with the name of the piece's first node.
    pub(crate) fn blame(&self, piece: usize, error: Error) -> Error {
        match self.pieces.get(piece) {
            Some(piece) => card::blame(&self.graph, piece.first, piece.nodes(), error),
            None => error,
        }
    }

    /// What kernels have found wrong, as an error of the device of that id.
    pub(crate) fn fault_error(&self, id: &str, fault: [u32; 4]) -> Option<Error> {
        card::wrong_value(&self.graph, id, fault)
    }
}

/// Where a record's table begins in the program's memory, in bytes: among its numbers, or from the beginning of scratch memory.
enum Place {
    Numbers(u64),
    Scratch(u64),
}

/// Tables by where they begin, in numbers.
#[derive(Default)]
struct Tables(Vec<Range<usize>>);

impl Tables {
    /// Where a table begins, in bytes; it is added if there is none like it. Errors: [`Error::Request`] if that makes too many numbers.
    fn place(&mut self, table: Vec<f32>, numbers: &mut Vec<f32>) -> Result<u64> {
        let same = self.0.iter().find(|range| numbers[(*range).clone()] == table[..]);
        if let Some(range) = same {
            return Ok(4 * range.start as u64);
        }
        let start = numbers.len();
        if start + table.len() > MOST_NUMBERS {
            return Err(Error::Request(format!(
                "tables of more than {MOST_NUMBERS} numbers, for ROPE with many different parameters"
            )));
        }
        numbers.extend(&table);
        if self.0.len() < MOST_TABLES {
            self.0.push(start..numbers.len());
        }
        numbers.resize(numbers.len().next_multiple_of(TABLE), 0.0);
        Ok(4 * start as u64)
    }
}

/// The steps in pieces.
fn pieces(steps: &[Launched], most: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut begin = 0;
    while begin < steps.len() {
        let mut sum = steps[begin].work;
        let more = steps[begin + 1..].iter().take(PIECE_NODES - 1).take_while(|step| {
            sum = sum.saturating_add(step.work);
            sum <= most
        });
        let end = begin + 1 + more.count();
        let recording = Mutex::new(State::Plain(0));
        pieces.push(Piece { steps: begin..end, first: steps[begin].id, recording });
        begin = end;
    }
    pieces
}

/// Copies bytes to the device, and waits for that.
fn upload(gpu: &Arc<Gpu>, to: CUdeviceptr, bytes: &[u8]) -> Result<()> {
    let mut timeline = Timeline::new(gpu)?;
    for (i, part) in bytes.chunks(LARGEST).enumerate() {
        let mut pinned = Pinned::take(gpu, part.len())?;
        pinned.write(part);
        let at = to + (i * LARGEST) as u64;
        // SAFETY: there is room for all of them, and the pinned memory is kept until it is done.
        let copied = unsafe { result::memcpy_htod_async(at, pinned.bytes(part.len()), timeline.stream()) };
        copied.map_err(|e| gpu.failed("a table cannot be copied", e))?;
        // Where waiting fails, nothing is freed any more.
        timeline.mark()?.wait(&AtomicBool::new(false))?;
    }
    Ok(())
}
