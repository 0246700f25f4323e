//! Scratch memory: what programs need while they run, beside their tensors.
//!
//! The programs of one client on one device share one piece of it, as large as the largest of them asks for, because only one
//! program of a device runs at a time. No other client's programs ever see it. It is counted like any buffer, refused when a
//! program is compiled that would need too much, and given back with the last program.

use crate::budget::Funds;
use crate::buffer::HostBuffer;
use crate::lock;
use outboard_core::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The scratch memory of one client's programs on one device.
#[derive(Debug)]
pub(crate) struct Scratch {
    funds: Funds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    memory: Option<HostBuffer>,
    /// How many programs need so many bytes.
    needs: BTreeMap<u64, usize>,
}

/// The right of a program to scratch memory, for as long as the program lives.
#[derive(Debug)]
pub(crate) struct ScratchNeed {
    scratch: Arc<Scratch>,
    bytes: u64,
}

impl Scratch {
    pub(crate) fn new(funds: Funds) -> Arc<Scratch> {
        Arc::new(Scratch { funds, state: Mutex::default() })
    }

    /// Makes sure that there are `bytes` whenever the program runs. [`Error::OutOfMemory`] names the size.
    pub(crate) fn need(self: &Arc<Self>, bytes: u64) -> Result<ScratchNeed> {
        let mut state = lock(&self.state);
        if bytes > state.size() {
            // The old memory goes first: nothing in it has to last from one run to the next.
            let before = state.memory.take().map_or(0, |memory| outboard_core::Buffer::size(&memory));
            let larger = HostBuffer::new(bytes, &self.funds).map_err(|e| for_scratch(e, &self.funds));
            state.memory = match larger {
                Ok(memory) => Some(memory),
                Err(e) => {
                    state.memory = self.allocate_again(before);
                    return Err(e);
                }
            };
        }
        *state.needs.entry(bytes).or_default() += 1;
        Ok(ScratchNeed { scratch: self.clone(), bytes })
    }

    /// Memory of a size that there was a moment ago. If somebody else has taken it meanwhile, the next run fails, not this call.
    fn allocate_again(&self, bytes: u64) -> Option<HostBuffer> {
        if bytes == 0 { None } else { HostBuffer::new(bytes, &self.funds).ok() }
    }
}

impl State {
    fn size(&self) -> u64 {
        self.memory.as_ref().map_or(0, outboard_core::Buffer::size)
    }
}

impl ScratchNeed {
    /// Calls `run` with the program's scratch memory, of any content that this client's programs have left.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut state = lock(&self.scratch.state);
        if state.size() < self.bytes {
            state.memory = Some(
                HostBuffer::new(self.bytes, &self.scratch.funds).map_err(|e| for_scratch(e, &self.scratch.funds))?,
            );
        }
        let bytes = usize::try_from(self.bytes).unwrap_or(0);
        Ok(match &mut state.memory {
            Some(memory) => run(memory.bytes_mut().get_mut(..bytes).unwrap_or_default()),
            None => run(&mut []),
        })
    }
}

impl Drop for ScratchNeed {
    fn drop(&mut self) {
        let mut state = lock(&self.scratch.state);
        if let Some(count) = state.needs.get_mut(&self.bytes) {
            *count -= 1;
            if *count == 0 {
                state.needs.remove(&self.bytes);
            }
        }
        let largest = state.needs.last_key_value().map_or(0, |(&bytes, _)| bytes);
        if largest < state.size() {
            state.memory = None;
            state.memory = self.scratch.allocate_again(largest);
        }
    }
}

fn for_scratch(error: Error, funds: &Funds) -> Error {
    match error {
        Error::OutOfMemory { needed, free, .. } => {
            let device = format!("{} (scratch memory of a graph)", funds.info().id);
            Error::OutOfMemory { device, needed, free }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryBudget;

    #[test]
    fn there_is_as_much_as_the_largest_program_needs_and_none_behind_the_last() {
        let budget = MemoryBudget::new(Some(1000));
        let scratch = Scratch::new(Funds::for_tests(&budget));
        let small = scratch.need(100).unwrap();
        assert_eq!(budget.used(), 100);
        let large = scratch.need(600).unwrap();
        assert_eq!(budget.used(), 600);
        let error = scratch.need(1001).unwrap_err();
        assert!(matches!(&error, Error::OutOfMemory { needed: 1001, .. }), "{error}");
        assert!(error.to_string().contains("scratch"), "{error}");
        assert_eq!(large.with(|bytes| bytes.len()), Ok(600));
        drop(large);
        assert_eq!((budget.used(), small.with(|bytes| bytes.len())), (100, Ok(100)));
        let none = scratch.need(0).unwrap();
        drop(small);
        assert_eq!((budget.used(), none.with(|bytes| bytes.len())), (0, Ok(0)));
    }
}
