//! Scratch memory: what programs need while they run, beside their tensors.
//!
//! The programs of one client on one device share one piece of it, as large as the largest of them asks for, because only one
//! program of a device runs at a time. No other client's programs ever see it. It is counted like any buffer, refused when a
//! program is compiled that would need too much, and given back with the last program.

use crate::buffer::HostBuffer;
use crate::lock;
use outboard_core::local::Funds;
use outboard_core::{Buffer, Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a program that needs more waits for one that runs, if the two do not fit beside one another.
const RUN_WAIT: Duration = Duration::from_secs(60);

/// The scratch memory of one client's programs on one device.
#[derive(Debug)]
pub(crate) struct Scratch {
    funds: Funds,
    state: Mutex<State>,
    /// A run has given its memory back.
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    memory: Option<HostBuffer>,
    /// Bytes that a run has.
    lent: u64,
    /// How many programs need so many bytes.
    needs: BTreeMap<u64, usize>,
}

/// The right of a program to scratch memory, for as long as the program lives.
#[derive(Debug)]
pub(crate) struct ScratchNeed {
    scratch: Arc<Scratch>,
    bytes: u64,
}

/// Memory that a run has. It goes back however the run ends.
struct Lent<'s> {
    scratch: &'s Scratch,
    memory: Option<HostBuffer>,
}

impl Scratch {
    pub(crate) fn new(funds: Funds) -> Arc<Scratch> {
        Arc::new(Scratch { funds, state: Mutex::default(), returned: Condvar::new() })
    }

    /// Makes sure that there are `bytes` whenever the program runs. [`Error::OutOfMemory`] names the size.
    ///
    /// While a program runs, a larger piece is made beside the one that it has, and takes its place afterwards. Only where there is no
    /// room for both does this wait for the run.
    pub(crate) fn need(self: &Arc<Self>, bytes: u64) -> Result<ScratchNeed> {
        let end = Instant::now() + RUN_WAIT;
        let mut state = lock(&self.state);
        while bytes > state.size() {
            // The old memory goes first: nothing in it has to last from one run to the next.
            let before = state.memory.take().map_or(0, |memory| memory.size());
            let error = match self.allocate(bytes) {
                Ok(memory) => {
                    state.memory = Some(memory);
                    break;
                }
                Err(error) => error,
            };
            state.memory = self.allocate_again(before);
            let left = end.saturating_duration_since(Instant::now());
            if state.lent == 0 || left.is_zero() {
                return Err(error);
            }
            state = self.returned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *state.needs.entry(bytes).or_default() += 1;
        Ok(ScratchNeed { scratch: self.clone(), bytes })
    }

    fn allocate(&self, bytes: u64) -> Result<HostBuffer> {
        HostBuffer::new(bytes, &self.funds).map_err(|e| for_scratch(e, &self.funds))
    }

    /// Memory of a size that there was a moment ago. If somebody else has taken it meanwhile, the next run fails, not this call.
    fn allocate_again(&self, bytes: u64) -> Option<HostBuffer> {
        if bytes == 0 { None } else { self.allocate(bytes).ok() }
    }

    /// Gives back what no program needs any more.
    fn shrink(&self, state: &mut State) {
        let largest = state.needs.last_key_value().map_or(0, |(&bytes, _)| bytes);
        if state.memory.as_ref().is_some_and(|memory| memory.size() > largest) {
            state.memory = None;
            if state.lent < largest {
                state.memory = self.allocate_again(largest);
            }
        }
    }
}

impl State {
    /// Bytes that there are, at hand or lent.
    fn size(&self) -> u64 {
        self.memory.as_ref().map_or(self.lent, |memory| memory.size())
    }
}

impl ScratchNeed {
    /// Calls `run` with the program's scratch memory, of any content that this client's programs have left.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut lent = self.lend()?;
        let bytes = usize::try_from(self.bytes).unwrap_or(0);
        Ok(match &mut lent.memory {
            Some(memory) => run(memory.bytes_mut().get_mut(..bytes).unwrap_or_default()),
            None => run(&mut []),
        })
    }

    fn lend(&self) -> Result<Lent<'_>> {
        let scratch = &*self.scratch;
        let mut state = lock(&scratch.state);
        let mut memory = state.memory.take();
        if memory.as_ref().map_or(0, |memory| memory.size()) < self.bytes {
            drop(memory);
            memory = Some(scratch.allocate(self.bytes)?);
        }
        state.lent = memory.as_ref().map_or(0, |memory| memory.size());
        Ok(Lent { scratch, memory })
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.scratch.state);
        state.lent = 0;
        if state.memory.is_none() {
            state.memory = self.memory.take();
        }
        // A larger one may have been made meanwhile.
        self.memory = None;
        self.scratch.shrink(&mut state);
        drop(state);
        self.scratch.returned.notify_all();
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
        self.scratch.shrink(&mut state);
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
    use crate::budget::funds_for_tests;

    #[test]
    fn there_is_as_much_as_the_largest_program_needs_and_none_behind_the_last() {
        let budget = MemoryBudget::new(Some(1000));
        let scratch = Scratch::new(funds_for_tests(&budget));
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

    #[test]
    fn programs_come_and_go_while_one_runs() {
        let budget = MemoryBudget::new(Some(1000));
        let scratch = Scratch::new(funds_for_tests(&budget));
        let first = scratch.need(300).unwrap();
        let larger = first
            .with(|bytes| {
                // There is room beside it; and when that goes, what runs keeps its own.
                drop(scratch.need(600).unwrap());
                assert_eq!((bytes.len(), budget.used()), (300, 300));
                scratch.need(500).unwrap()
            })
            .unwrap();
        assert_eq!(budget.used(), 500);
        let ended = std::thread::scope(|scope| {
            let (to, from) = std::sync::mpsc::channel();
            let larger = &larger;
            let run = scope.spawn(move || larger.with(|_| from.recv().unwrap()));
            while budget.used() != 500 || lock(&scratch.state).lent != 500 {
                std::thread::yield_now();
            }
            // There is none for both: it waits until the run is over.
            let waits = scope.spawn(|| scratch.need(900).map(|need| (need.bytes, budget.used())));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished());
            to.send(()).unwrap();
            run.join().unwrap().unwrap();
            waits.join().unwrap()
        });
        assert_eq!(ended, Ok((900, 900)));
        // A run that panics gives it back as well.
        let panics = || larger.with(|_| panic!("a bug"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        drop((first, larger));
        assert_eq!(budget.used(), 0);
    }
}
