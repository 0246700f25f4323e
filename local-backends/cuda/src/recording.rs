//! A part of a program as a graph of the driver's, which is given in one call.

use crate::gpu::Gpu;
use crate::kernels::Function;
use crate::record::Record;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use outboard_core::local::fair_limit;
use outboard_core::lock;
use std::collections::HashMap;
use std::sync::Arc;

/// Kernels in graphs of a card at most: the driver's memory for them, some hundred megabytes then, is nobody's. A client has no more of them than
/// it leaves to others.
const MOST: u64 = 1 << 17;

/// Kernels that graphs of the driver's have, by the client that they are of.
#[derive(Debug, Default)]
pub(crate) struct Recorded(HashMap<u64, u64>);

impl Recorded {
    /// Counts so many more of a client, if there is room for them.
    fn take(&mut self, client: u64, kernels: u64) -> bool {
        let mine = self.0.get(&client).copied().unwrap_or(0);
        let others = self.0.values().sum::<u64>() - mine;
        let is_room = mine + kernels <= fair_limit(MOST, others);
        if is_room {
            *self.0.entry(client).or_default() += kernels;
        }
        is_room
    }

    fn give_back(&mut self, client: u64, kernels: u64) {
        if let Some(mine) = self.0.get_mut(&client) {
            *mine -= kernels.min(*mine);
        }
        self.0.retain(|_, kernels| *kernels > 0);
    }
}

/// Room for so many kernels, until it is dropped.
#[derive(Debug)]
struct Room {
    gpu: Arc<Gpu>,
    client: u64,
    kernels: u64,
}

impl Room {
    fn take(gpu: &Arc<Gpu>, client: u64, kernels: u64) -> Option<Room> {
        lock(&gpu.recorded).take(client, kernels).then(|| Room { gpu: gpu.clone(), client, kernels })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        lock(&self.gpu.recorded).give_back(self.client, self.kernels);
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Recording {
    room: Room,
    graph: sys::CUgraphExec,
}

// SAFETY: a handle that any thread may use, one at a time.
unsafe impl Send for Recording {}

/// A graph of the driver's, to be instantiated.
struct Plan {
    gpu: Arc<Gpu>,
    graph: sys::CUgraph,
}

impl Drop for Plan {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: a graph of this context, which nothing else has.
            let _ = unsafe { result::graph::destroy(self.graph) };
        }
    }
}

/// Kernels that depend on others by their numbers.
pub(crate) struct Recorder {
    room: Room,
    plan: Plan,
    /// The last kernel of each step.
    ends: Vec<sys::CUgraphNode>,
}

impl Recorder {
    /// An empty graph of this thread's context, for so many kernels of a client; `None` if there are too many already.
    pub(crate) fn new(gpu: &Arc<Gpu>, client: u64, kernels: u64) -> Result<Option<Recorder>, DriverError> {
        let Some(room) = Room::take(gpu, client, kernels) else { return Ok(None) };
        let mut graph = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        unsafe { sys::cuGraphCreate(&mut graph, 0) }.result()?;
        Ok(Some(Recorder { room, plan: Plan { gpu: gpu.clone(), graph }, ends: Vec::new() }))
    }

    /// Adds a step behind others: its kernels, one behind the other, with what they are given.
    pub(crate) fn add(
        &mut self,
        functions: &[(Function, u32, u32)],
        records: &[Record],
        behind: &[usize],
    ) -> Result<(), DriverError> {
        let mut last = std::ptr::null_mut();
        let mut before: Vec<_> = behind.iter().map(|&step| self.ends[step]).collect();
        for &(function, blocks, threads) in functions {
            let mut parameters = [records.as_ptr().cast_mut().cast()];
            let node = sys::CUDA_KERNEL_NODE_PARAMS {
                func: function.0,
                gridDimX: blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: function.1,
                kernelParams: parameters.as_mut_ptr(),
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: std::ptr::null_mut(),
            };
            let mut added = std::ptr::null_mut();
            // SAFETY: nodes of this graph, and a function whose parameter are so many records, which the call copies.
            let call = unsafe {
                sys::cuGraphAddKernelNode_v2(&mut added, self.plan.graph, before.as_ptr(), before.len(), &node)
            };
            call.result()?;
            last = added;
            before = vec![last];
        }
        self.ends.push(last);
        Ok(())
    }

    /// The graph as it can be launched.
    pub(crate) fn finish(self) -> Result<Recording, DriverError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a place for a handle, and a graph of this thread's context.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut graph, self.plan.graph, 0) }.result()?;
        Ok(Recording { room: self.room, graph })
    }
}

impl Recording {
    /// Gives it to a stream.
    ///
    /// # Safety
    ///
    /// The stream and this thread's context are those of the graph, and whoever gives it keeps it, and the memory that its kernels use, until it is
    /// done.
    pub(crate) unsafe fn give(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { result::graph::launch(self.graph, stream) }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // That of a context that was lost or given up is freed with it.
        if self.room.gpu.enter().is_ok() {
            // SAFETY: whoever gave it has waited for it.
            let _ = unsafe { result::graph::exec_destroy(self.graph) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_room_to_others() {
        let (mut recorded, piece) = (Recorded::default(), 1024);
        let fill =
            |recorded: &mut Recorded, client| (0..MOST).take_while(|_| recorded.take(client, piece)).count() as u64;
        assert_eq!(fill(&mut recorded, 1), MOST / 2 / piece);
        for client in 2..6 {
            assert!(fill(&mut recorded, client) > 0, "{client}");
        }
        assert!(recorded.0.values().sum::<u64>() <= MOST);
        recorded.give_back(1, MOST / 2);
        assert!(!recorded.0.contains_key(&1) && fill(&mut recorded, 1) > 0);
    }
}
