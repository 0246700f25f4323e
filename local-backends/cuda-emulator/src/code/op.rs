//! Instructions in the form that is run.
use super::lanes::{AluFn, Row};
use crate::count::Kind;
use crate::ptx::{Place, Ty};

/// A comparison of two rows as a mask of lanes.
pub(crate) type CompareFn = fn(&[Row], u32, u32) -> u32;

/// A place in memory: base register (a row; two for addresses of 64 bits) and offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Option<u32>,
    /// Whether the base has 64 bits.
    pub(crate) wide: bool,
    pub(crate) offset: i64,
}

/// Which memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    /// Global and constant memory.
    Global,
    Shared,
    Local,
    /// Parameters of the kernel.
    Param,
}

/// A predicate, perhaps negated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pred {
    pub(crate) index: u32,
    pub(crate) negated: bool,
}

/// Where a value goes: a row or two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dst {
    pub(crate) row: u32,
    pub(crate) wide: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// Elements of a matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    S8,
    U8,
}

/// A matrix instruction: rows of A and the result, columns of A; B has 8 columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MmaShape {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) a: Element,
    pub(crate) b: Element,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Alu {
        run: AluFn,
        dst: Dst,
        src: [u32; 4],
    },
    Convert {
        convert: super::convert::Convert,
        dst: Dst,
        src: u32,
    },
    Compare {
        run: CompareFn,
        dst: u32,
        not: Option<u32>,
        src: [u32; 2],
        with: Option<(Logic, Pred)>,
    },
    Select {
        dst: Dst,
        src: [u32; 2],
        by: Pred,
    },
    PredMove {
        dst: u32,
        src: Pred,
    },
    PredSet {
        dst: u32,
        value: bool,
    },
    PredLogic {
        logic: Logic,
        dst: u32,
        src: [Pred; 2],
    },
    /// Parts of a value to registers, or the other way.
    Unpack {
        dst: Vec<Option<Dst>>,
        bits: u32,
        src: u32,
        wide: bool,
    },
    Pack {
        dst: Dst,
        bits: u32,
        src: Vec<u32>,
    },
    Clock {
        dst: Dst,
    },
    Load {
        space: Space,
        ty: Ty,
        dst: Vec<Option<Dst>>,
        from: Address,
    },
    Store {
        space: Space,
        ty: Ty,
        src: Vec<u32>,
        to: Address,
    },
    Atomic {
        space: Space,
        ty: Ty,
        op: AtomOp,
        dst: Option<Dst>,
        at: Address,
        src: [u32; 2],
    },
    Branch {
        to: u32,
        join: u32,
    },
    /// A table of targets, and the row of the index into it.
    Switch {
        to: Vec<u32>,
        index: u32,
        join: u32,
    },
    Exit,
    Trap,
    Nop,
    Barrier {
        id: u32,
        threads: Option<u32>,
        wait: bool,
    },
    /// Lanes that a row names come together (`bar.warp.sync`).
    WarpBarrier {
        mask: u32,
    },
    Shuffle {
        mode: Shuffle,
        dst: u32,
        valid: Option<u32>,
        src: u32,
        by: u32,
        clamp: u32,
        mask: u32,
    },
    Vote {
        vote: Vote,
        dst: u32,
        src: Pred,
        mask: u32,
    },
    /// Lanes with the same value; `all` is the predicate of `match.all`.
    Match {
        dst: u32,
        src: u32,
        wide: bool,
        all: Option<Option<u32>>,
        mask: u32,
    },
    ActiveMask {
        dst: u32,
    },
    Reduce {
        op: AtomOp,
        signed: bool,
        dst: u32,
        src: u32,
        mask: u32,
    },
    LoadMatrix {
        transposed: bool,
        dst: Vec<u32>,
        from: Address,
        generic: bool,
    },
    Mma {
        shape: MmaShape,
        dst: Vec<u32>,
        a: Vec<u32>,
        b: Vec<u32>,
        c: Vec<u32>,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        source: Option<u32>,
    },
    CopyCommit,
    /// All but so many groups; `None` is everything, committed or not.
    CopyWait {
        left: Option<u32>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) guard: Option<Pred>,
    pub(crate) op: Op,
    pub(crate) kind: Kind,
    pub(crate) place: Place,
}
