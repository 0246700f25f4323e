//! PTX text as a tree: variables, functions, instructions with operands whose registers are numbered.
mod lex;
mod operand;
mod parse;

pub(crate) use parse::parse;
use std::collections::HashMap;

/// Why a text is not PTX that the emulator knows.
#[derive(Clone, Debug)]
pub(crate) struct Error {
    /// Line of the PTX, 0 if of no line.
    pub(crate) line: u32,
    /// What is wrong.
    pub(crate) what: String,
}

impl Error {
    pub(crate) fn at(line: u32, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.what)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A type of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B(u8),
    U(u8),
    S(u8),
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Ty {
    /// The type that a word without its dot names.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Some(match word {
            "pred" => Self::Pred,
            "b8" | "b16" | "b32" | "b64" => Self::B(word[1..].parse().ok()?),
            "u8" | "u16" | "u32" | "u64" => Self::U(word[1..].parse().ok()?),
            "s8" | "s16" | "s32" | "s64" => Self::S(word[1..].parse().ok()?),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Bits of a value.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B(n) | Self::U(n) | Self::S(n) => u32::from(n),
            Self::F16 | Self::Bf16 => 16,
            Self::F16x2 | Self::Bf16x2 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// Bytes of a value in memory.
    pub(crate) fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }
}

/// Number of a register in its function.
pub(crate) type RegId = u32;

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Reg(RegId),
    /// `!%p1`.
    Not(RegId),
    /// `%tid.x` and its like.
    Special(String),
    Int(i64),
    F32(u32),
    F64(u64),
    /// A variable, a parameter, a label or a function.
    Symbol(String),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `[base + offset]`; the base is a register, a symbol or a number.
    Memory(Box<Operand>, i64),
    /// `a|p`.
    Pair(Box<Operand>, Box<Operand>),
    /// `_`.
    Sink,
}

/// Where an instruction comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// Line of the PTX.
    pub(crate) ptx: u32,
    /// File and line of the source by `.loc`, 0 if not said.
    pub(crate) file: u32,
    pub(crate) source: u32,
}

/// What stands in the body of a function.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Label(String),
    Instruction(Instruction),
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(RegId, bool)>,
    pub(crate) name: String,
    pub(crate) args: Vec<Operand>,
    pub(crate) place: Place,
}

/// A variable in memory, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) size: u32,
    pub(crate) align: u32,
    /// `.extern`: the shared memory that a launch adds.
    pub(crate) external: bool,
    pub(crate) read_only: bool,
    /// Its first bytes; the rest is zeros.
    pub(crate) init: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) entry: bool,
    /// Whether it has a body here.
    pub(crate) defined: bool,
    pub(crate) params: Vec<Variable>,
    pub(crate) results: Vec<Variable>,
    /// Type of every register.
    pub(crate) registers: Vec<Ty>,
    pub(crate) shared: Vec<Variable>,
    /// Local variables, and the parameters of calls that it makes.
    pub(crate) local: Vec<Variable>,
    pub(crate) body: Vec<Statement>,
    /// Jump tables.
    pub(crate) tables: HashMap<String, Vec<String>>,
    /// Threads of a block that it was compiled for, at most.
    pub(crate) max_threads: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Module {
    /// Compute capability of `.target`, as in 80.
    pub(crate) target: u32,
    /// `.version`, as in 82.
    pub(crate) version: u32,
    pub(crate) globals: Vec<Variable>,
    /// Shared variables outside of functions.
    pub(crate) shared: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
    pub(crate) files: HashMap<u32, String>,
}
