//! A compiled graph: its nodes as records that kernels read, and command buffers that are recorded once and submitted as often as it runs.

use crate::commands::{Commands, Lane, kernel_barrier, run_once};
use crate::gpu::{Gpu, PUSH_BYTES};
use crate::launch::{self, PARAMS};
use crate::memory::{GpuBuffer, buffer};
use crate::steps::{Step, steps};
use ash::vk;
use gpu_allocator::MemoryLocation;
use outboard_core::local::{Funds, Payment, card};
use outboard_core::op::MAX_SRCS;
use outboard_core::{DeviceKind, Error, Executable, Graph, Placement, Result, TensorId};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// What a record has of a tensor.
pub(crate) type TensorWords = [u32; 12];
pub(crate) const NO_TENSOR: TensorWords = [0; 12];
/// Bytes of a record: its sources, its result, its parameters, an address.
pub(crate) const RECORD_BYTES: usize = 4 * ((MAX_SRCS + 1) * NO_TENSOR.len() + PARAMS + 2);
/// Bytes in front of the records: the fault that kernels report.
const HEAD_BYTES: usize = 64;
/// Bytes of a fault: the node, the reason, the value, the limit.
pub(crate) const FAULT_BYTES: usize = 16;

/// Floating-point operations of a command buffer, at most, unless a single node has more: some hundredths of a second of a small card or of a
/// software driver. Between two of them a run can be stopped; a card stands still for some microseconds.
const PIECE: u64 = 32_000_000_000;
const PIECE_OF_SOFTWARE: u64 = 20_000_000;
/// Bytes that a driver takes for a kernel in a command buffer, and for a command buffer; lavapipe takes nearly as many.
const COMMAND_BYTES: u64 = 1 << 10;
const PIECE_BYTES: u64 = 8 << 10;
/// Most workgroups in one dimension.
const MOST_GROUPS: u64 = 65_535;

/// Some nodes of a graph as a command buffer.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) commands: vk::CommandBuffer,
    /// Nodes that it computes.
    pub(crate) nodes: u64,
    /// The first of them.
    first: TensorId,
}

/// A compiled graph. It keeps the memory that its tensors lie in.
pub(crate) struct Program {
    graph: Arc<Graph>,
    _placement: Placement,
    records: GpuBuffer,
    pub(crate) pieces: Vec<Piece>,
    _commands: Commands,
    /// For what the driver takes for the commands.
    _payment: Payment,
    device: u64,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("pieces", &self.pieces.len()).finish_non_exhaustive()
    }
}

// SAFETY: the command buffers are recorded before it is shared, and only submitted afterwards, under the queue's lock.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Executable for Program {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Program {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        funds: &Funds,
        graph: Arc<Graph>,
        placement: Placement,
        place: Arc<()>,
    ) -> Result<Program> {
        let steps = steps(gpu, &graph, &placement)?;
        gpu.save_pipelines_soon();
        let tables: usize = steps.iter().map(|step| step.launch.table.next_multiple_of(4) * 4).sum();
        let size = HEAD_BYTES + steps.len() * RECORD_BYTES + tables;
        let scratch = steps.iter().map(|step| step.launch.scratch).max().unwrap_or(0) * 4;
        let records = GpuBuffer::new(gpu, funds, (size + scratch) as u64)?.counted_by(place);
        let image = image(&graph, &placement, &steps, records.address(), size)?;
        let records = upload(gpu, records, &image)?;
        let pieces = divide(gpu, &steps);
        let kernels: usize = steps.iter().map(|step| step.pipelines.len()).sum();
        let payment = funds.pay(kernels as u64 * COMMAND_BYTES + pieces.len() as u64 * PIECE_BYTES)?;
        let commands = Commands::new(gpu, Lane::Compute)?;
        let of_piece = |range| record(gpu, &commands, &steps, range, records.address());
        let pieces = pieces.into_iter().map(of_piece).collect::<Result<_>>()?;
        let device = funds.device();
        Ok(Program { graph, _placement: placement, records, pieces, _commands: commands, _payment: payment, device })
    }

    /// The buffer at whose beginning kernels report a fault.
    pub(crate) fn fault(&self) -> Result<vk::Buffer> {
        self.records.handle().ok_or_else(|| Error::Misuse("a graph without records".into()))
    }

    /// An error of the device while it was at a piece, with the name of the piece's first node.
    pub(crate) fn blame(&self, piece: usize, error: Error) -> Error {
        match self.pieces.get(piece) {
            Some(piece) => card::blame(&self.graph, piece.first, piece.nodes, error),
            None => error,
        }
    }

    /// What kernels have found wrong, as an error of the device of that id.
    pub(crate) fn fault_error(&self, id: &str, fault: [u32; 4]) -> Option<Error> {
        card::wrong_value(&self.graph, id, fault)
    }
}

/// The records as kernels read them, with what stands before and behind them. Scratch memory comes behind all.
fn image(graph: &Graph, placement: &Placement, steps: &[Step], address: u64, size: usize) -> Result<Vec<u8>> {
    let mut words: Vec<u32> = vec![0; HEAD_BYTES / 4];
    let mut table = address + (HEAD_BYTES + steps.len() * RECORD_BYTES) as u64;
    let scratch = address + size as u64;
    for step in steps {
        let mut tensors = [NO_TENSOR; MAX_SRCS + 1];
        for (place, src) in tensors.iter_mut().zip(&step.srcs) {
            *place = src.map_or(Ok(NO_TENSOR), |src| tensor_record(graph, placement, src))?;
        }
        tensors[MAX_SRCS] = tensor_record(graph, placement, step.id)?;
        words.extend(record_words(
            &tensors,
            &step.launch.params,
            if step.launch.scratch > 0 { scratch } else { table },
        ));
        table += step.launch.table.next_multiple_of(4) as u64 * 4;
    }
    for step in steps {
        let (len, table) = (step.launch.table, launch::table(graph, step.table_of));
        debug_assert!(table.len() == len);
        words.extend(table.iter().map(|number| number.to_bits()));
        words.resize(words.len() + len.next_multiple_of(4) - len, 0);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    debug_assert!(bytes.len() == size);
    Ok(bytes)
}

/// A record as kernels read it (`shaders/common.glsl`): sources and result, parameters, and where scratch memory or the host's table is.
pub(crate) fn record_words(tensors: &[TensorWords; MAX_SRCS + 1], params: &[u32; PARAMS], behind: u64) -> Vec<u32> {
    [tensors.as_flattened(), params, &halves(behind)].concat()
}

/// Low and high half, as shaders have addresses.
fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

/// Where a tensor of a graph lies, and how.
fn tensor_record(graph: &Graph, placement: &Placement, id: TensorId) -> Result<TensorWords> {
    let tensor = graph.tensor(id);
    let address = match placement.get(tensor.root()) {
        Some(slice) => buffer(slice)?.address() + slice.offset() + tensor.offset() as u64,
        None => 0,
    };
    // `launch` has seen that they fit.
    Ok(tensor_words(address, tensor.ne().map(|n| n as u32), tensor.layout().nb().map(|stride| stride as u32)))
}

/// Address, extents and strides of a tensor.
pub(crate) fn tensor_words(address: u64, ne: [u32; 4], nb: [u32; 4]) -> TensorWords {
    let mut words = NO_TENSOR;
    words[..2].copy_from_slice(&halves(address));
    words[4..8].copy_from_slice(&ne);
    words[8..].copy_from_slice(&nb);
    words
}

/// Copies bytes to the beginning of a buffer.
fn upload(gpu: &Arc<Gpu>, to: GpuBuffer, bytes: &[u8]) -> Result<GpuBuffer> {
    let staging = gpu.allocate(bytes.len() as u64, MemoryLocation::GpuToCpu)?;
    let (Some(mapped), Some(handle)) = (staging.mapped(), to.handle()) else {
        return Err(gpu.failed("memory that the host cannot address", vk::Result::ERROR_MEMORY_MAP_FAILED));
    };
    // SAFETY: the memory is mapped, has room for the bytes, and nothing else uses it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapped, bytes.len()) };
    let used = run_once(gpu, (to, staging), |device, commands, (_, staging)| {
        let regions = [vk::BufferCopy::default().size(bytes.len() as u64)];
        // SAFETY: two buffers of this device with so many bytes.
        unsafe { device.cmd_copy_buffer(commands, staging.buffer, handle, &regions) };
    })?;
    Ok(used.0)
}

/// The steps of each command buffer.
fn divide(gpu: &Gpu, steps: &[Step]) -> Vec<Range<usize>> {
    let most = if gpu.physical.kind == DeviceKind::Cpu { PIECE_OF_SOFTWARE } else { PIECE };
    let mut pieces = Vec::new();
    let mut begin = 0;
    while begin < steps.len() {
        let mut sum = steps[begin].launch.work;
        let more = steps[begin + 1..].iter().take_while(|step| {
            sum = sum.saturating_add(step.launch.work);
            sum <= most
        });
        let end = begin + 1 + more.count();
        pieces.push(begin..end);
        begin = end;
    }
    pieces
}

/// Records some of the steps, whose records are behind an address.
fn record(gpu: &Arc<Gpu>, commands: &Commands, steps: &[Step], piece: Range<usize>, address: u64) -> Result<Piece> {
    let buffer = commands.buffer()?;
    let first = piece.start;
    commands.record(buffer, vk::CommandBufferUsageFlags::SIMULTANEOUS_USE, |device, commands| {
        for i in piece.clone() {
            let place = (HEAD_BYTES + i * RECORD_BYTES) as u64;
            // SAFETY: the command buffer is being recorded; pipeline and layout are of this device.
            unsafe { record_step(gpu, device, commands, &steps[i], i > first, address + place, address) };
        }
    })?;
    Ok(Piece { commands: buffer, nodes: piece.len() as u64, first: steps[first].id })
}

/// Records one node, whose record is at an address.
///
/// # Safety
///
/// The command buffer is being recorded, by this thread alone.
unsafe fn record_step(
    gpu: &Gpu,
    device: &ash::Device,
    commands: vk::CommandBuffer,
    step: &Step,
    has_earlier: bool,
    record: u64,
    fault: u64,
) {
    let push = push(record, fault, step.id.index() as u32);
    // SAFETY: what this function asks for; the kernel reads its record and the tensors that it names, inside their memory.
    unsafe {
        if step.waits && has_earlier {
            kernel_barrier(device, commands);
        }
        for (i, &(pipeline, groups)) in step.pipelines.iter().enumerate() {
            if i > 0 {
                kernel_barrier(device, commands);
            }
            dispatch(gpu, device, commands, (pipeline, groups), &push);
        }
    }
}

/// Push constants: the addresses of a node and of the fault, and the node's number.
pub(crate) fn push(node: u64, fault: u64, number: u32) -> [u8; PUSH_BYTES as usize] {
    let mut push = [0; PUSH_BYTES as usize];
    push[..8].copy_from_slice(&node.to_le_bytes());
    push[8..16].copy_from_slice(&fault.to_le_bytes());
    push[16..].copy_from_slice(&number.to_le_bytes());
    push
}

/// Records a kernel over so many workgroups.
///
/// # Safety
///
/// The command buffer is being recorded, by this thread alone; what the kernel reads and writes is there until it is done.
pub(crate) unsafe fn dispatch(
    gpu: &Gpu,
    device: &ash::Device,
    commands: vk::CommandBuffer,
    (pipeline, groups): (vk::Pipeline, u64),
    push: &[u8],
) {
    let (across, down) = (groups.min(MOST_GROUPS) as u32, groups.div_ceil(MOST_GROUPS) as u32);
    // SAFETY: what this function asks for.
    unsafe {
        device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline);
        device.cmd_push_constants(commands, gpu.pipelines.layout, vk::ShaderStageFlags::COMPUTE, 0, push);
        device.cmd_dispatch(commands, across, down, 1);
    }
}
