//! What a kernel does wrong, and where: what hardware does not say.
use crate::code::Kernel;
use crate::ptx::Place;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Findings of a launch that are kept; a fault that every lane has is told once.
const MAX_FINDINGS: usize = 32;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Fault {
    /// An access that is not inside one allocation. The kernel ends.
    OutOfBounds = 1,
    /// An address that is no multiple of what is read or written. The kernel ends.
    Misaligned = 2,
    /// Bytes read that nobody has written.
    Uninitialised = 3,
    /// Shared memory that two warps touch, one of them writing, without a barrier between.
    Race = 4,
    /// Shared memory read or written while a `cp.async` to it has not been waited for.
    MissingWait = 5,
    /// A lane that a mask names is not there, or a lane is there that its mask does not name.
    MissingLanes = 6,
    /// A barrier of the block that only some lanes of a warp reach.
    DivergentBarrier = 7,
    /// Warps wait at barriers that nobody else will reach. The kernel ends.
    Deadlock = 8,
    /// `trap`. The kernel ends.
    Trap = 9,
    /// A kernel that does not end, by the number of its instructions. The kernel ends.
    Endless = 10,
    /// Constant memory is written. The kernel ends.
    ReadOnly = 11,
}

impl Fault {
    /// Whether the kernel cannot go on.
    pub(crate) fn ends_the_kernel(self) -> bool {
        use Fault::*;
        matches!(self, OutOfBounds | ReadOnly | Misaligned | Trap | Deadlock | Endless)
    }

    /// The fault of this number.
    pub fn from_code(code: u32) -> Option<Self> {
        use Fault::*;
        let all = [
            OutOfBounds,
            Misaligned,
            Uninitialised,
            Race,
            MissingWait,
            MissingLanes,
            DivergentBarrier,
            Deadlock,
            Trap,
            Endless,
            ReadOnly,
        ];
        all.into_iter().find(|f| *f as u32 == code)
    }
}

/// A fault at a place. It is made only by the block that found it.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) fault: Fault,
    pub(crate) place: Place,
    pub(crate) block: [u32; 3],
    /// Warp of the block and lane.
    pub(crate) warp: u32,
    pub(crate) lane: u32,
    /// What was found, in words.
    pub(crate) what: String,
}

impl Finding {
    /// One line: kernel, PTX line, source line, block, lane, what.
    pub(crate) fn line(&self, kernel: &Kernel) -> String {
        let [x, y, z] = self.block;
        let source = match kernel.files.get(&self.place.file) {
            Some(file) if self.place.source > 0 => format!(" ({file}:{})", self.place.source),
            _ => String::new(),
        };
        format!(
            "{:?} in kernel {}, PTX line {}{source}, block ({x},{y},{z}), warp {} lane {}: {}",
            self.fault, kernel.name, self.place.ptx, self.warp, self.lane, self.what
        )
    }
}

#[derive(Debug, Default)]
struct Inner {
    known: HashSet<(Fault, Place)>,
    all: Vec<Finding>,
}

/// The findings of a launch, from all threads that run its blocks.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    inner: Mutex<Inner>,
}

impl Findings {
    /// Keeps a finding unless the same fault of the same instruction is known.
    pub(crate) fn add(&self, finding: Finding) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // What ends the kernel is kept in any case: the launch's error is its.
        let has_room = inner.all.len() < MAX_FINDINGS || finding.fault.ends_the_kernel();
        if has_room && inner.known.insert((finding.fault, finding.place)) {
            inner.all.push(finding);
        }
    }

    pub(crate) fn all(self) -> Vec<Finding> {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).all
    }
}
