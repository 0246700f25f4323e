//! Calls: capture of streams, and graphs.
use super::calls_stream::stream;
use super::context::current;
use super::pointer::Out;
use super::stream::{Command, Graph};
use super::{Answer, Code, calls, driver};
use std::sync::Arc;

fn add(context: usize, executable: bool, commands: Arc<Vec<Command>>) -> usize {
    driver().graphs.add(|handle| Graph { handle, context, executable, commands }).handle
}

fn graph(handle: usize, executable: bool) -> Answer<Arc<Graph>> {
    let graph = driver().graphs.get(handle)?;
    if graph.executable == executable { Ok(graph) } else { Err(Code::INVALID_HANDLE) }
}

fn instantiate(out: Out<usize>, handle: usize) -> Answer {
    let captured = graph(handle, false)?;
    out.set(add(captured.context, true, captured.commands.clone()))
}

calls! {
    fn cuStreamBeginCapture_v2(handle: usize, _mode: u32) {
        stream(handle)?.begin_capture()
    }

    fn cuStreamEndCapture(handle: usize, out: Out<usize>) {
        let stream = stream(handle)?;
        let commands = stream.end_capture()?;
        out.set(add(stream.context.handle, false, Arc::new(commands)))
    }

    fn cuStreamIsCapturing(handle: usize, status: Out<u32>) {
        // 0 not at all, 1 yes, 2 what is captured is worth nothing.
        status.set(stream(handle)?.is_capturing().map_or(0, |valid| if valid { 1 } else { 2 }))
    }

    fn cuThreadExchangeStreamCaptureMode(_mode: Out<u32>) {
        Ok(())
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
