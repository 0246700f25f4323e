//! Calls: capture of streams, and graphs.
use super::calls_module::function;
use super::calls_stream::stream;
use super::context::current;
use super::launch::{self, Shape};
use super::pointer::{In, Out};
use super::stream::{Command, Graph, Node};
use super::{Answer, Code, calls, driver, lock};
use std::sync::{Arc, Mutex};

/// `CUDA_KERNEL_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelNode {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: In<In<u8>>,
    extra: In<usize>,
    kernel: usize,
    context: usize,
}

fn add(context: usize, executable: bool, nodes: Vec<Node>) -> usize {
    driver().graphs.add(|handle| Graph { handle, context, executable, nodes: Mutex::new(nodes) }).handle
}

/// Commands that follow one another.
fn in_order(commands: Vec<Command>) -> Vec<Node> {
    let node = |(i, command): (usize, Command)| Node { command, behind: i.checked_sub(1).into_iter().collect() };
    commands.into_iter().enumerate().map(node).collect()
}

/// Adds a kernel. Handles of nodes are their places, from 1.
fn add_kernel(to: &Graph, behind: In<usize>, count: usize, params: &KernelNode) -> Answer<usize> {
    let function = function(params.function)?;
    if function.context != to.context || params.kernel != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let shape = Shape { grid: params.grid, block: params.block, shared: params.shared };
    let kernel = launch::prepare(&function, shape, launch::parameters(&function, params.params, params.extra)?)?;
    let mut nodes = lock(&to.nodes);
    let place = |i| {
        let place = behind.get(i)?.checked_sub(1).filter(|&place| place < nodes.len());
        place.ok_or(Code::INVALID_VALUE)
    };
    let behind = (0..count).map(place).collect::<Answer<Vec<usize>>>()?;
    nodes.push(Node { command: Command::Kernel(Arc::new(kernel)), behind });
    Ok(nodes.len())
}

fn graph(handle: usize, executable: bool) -> Answer<Arc<Graph>> {
    let graph = driver().graphs.get(handle)?;
    if graph.executable == executable { Ok(graph) } else { Err(Code::INVALID_HANDLE) }
}

fn instantiate(out: Out<usize>, handle: usize) -> Answer {
    let captured = graph(handle, false)?;
    let nodes = lock(&captured.nodes).clone();
    out.set(add(captured.context, true, nodes))
}

calls! {
    fn cuStreamBeginCapture_v2(handle: usize, _mode: u32) {
        stream(handle)?.begin_capture()
    }

    fn cuStreamEndCapture(handle: usize, out: Out<usize>) {
        let stream = stream(handle)?;
        let commands = stream.end_capture()?;
        out.set(add(stream.context.handle, false, in_order(commands)))
    }

    fn cuStreamIsCapturing(handle: usize, status: Out<u32>) {
        // 0 not at all, 1 yes, 2 what is captured is worth nothing.
        status.set(stream(handle)?.is_capturing().map_or(0, |valid| if valid { 1 } else { 2 }))
    }

    fn cuThreadExchangeStreamCaptureMode(_mode: Out<u32>) {
        Ok(())
    }

    fn cuGraphCreate(out: Out<usize>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(add(current()?.handle, false, Vec::new()))
    }

    fn cuGraphAddKernelNode_v2(out: Out<usize>, handle: usize, behind: In<usize>, count: usize, params: In<KernelNode>) {
        out.set(add_kernel(&*graph(handle, false)?, behind, count, &params.get(0)?)?)
    }

    fn cuGraphInstantiateWithFlags(out: Out<usize>, handle: usize, _flags: u64) {
        current()?;
        instantiate(out, handle)
    }

    fn cuGraphUpload(handle: usize, on: usize) {
        stream(on)?;
        graph(handle, true).map(drop)
    }

    fn cuGraphLaunch(handle: usize, on: usize) {
        let graph = graph(handle, true)?;
        stream(on)?.submit(Command::Graph(graph)).map(drop)
    }

    fn cuGraphDestroy(handle: usize) {
        graph(handle, false)?;
        driver().graphs.remove(handle).map(drop)
    }

    fn cuGraphExecDestroy(handle: usize) {
        graph(handle, true)?;
        driver().graphs.remove(handle).map(drop)
    }
}
