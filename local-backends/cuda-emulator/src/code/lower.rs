//! A function of the tree in the form that is run. Calls are written in place, so a kernel is one piece of code; recursion is an error.
use super::flow;
use super::mnemonic::Mnemonic;
use super::op::{Dst, Instr, Op, Pred};
use crate::count::Kind;
use crate::ptx::{Error, Function, Instruction, Module, Operand, Place, Result, Statement, Ty, Variable};
use std::collections::HashMap;

/// Calls within calls, at most.
const MAX_DEPTH: usize = 32;
/// Instructions of a kernel with everything that it calls, at most.
const MAX_CODE: usize = 1 << 20;

/// Bytes of a kernel's parameters, of the shared memory that it declares and of a lane's local memory, at most, as of the hardware.
const MAX_PARAMS: u32 = 4096;
const MAX_SHARED: u32 = 48 << 10;
const MAX_LOCAL: u32 = 512 << 10;

/// Generic addresses of shared memory begin here.
pub(crate) const SHARED_WINDOW: u64 = 0x7e00_0000_0000;
/// Generic addresses of local memory begin here.
pub(crate) const LOCAL_WINDOW: u64 = 0x7d00_0000_0000;
/// Addresses of a window.
pub(crate) const WINDOW: u64 = 1 << 32;

/// Addresses of the module's global variables.
pub(crate) type Layout = HashMap<String, u64>;

/// A row whose value the hardware sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// Lanes before this one, up to it, behind it, from it on, and itself.
    LanesBefore,
    LanesUpTo,
    LanesBehind,
    LanesFrom,
    LaneItself,
    Zero,
    One,
    DynamicShared,
    TotalShared,
}

/// A kernel that can be run.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Instr>,
    pub(crate) rows: u32,
    pub(crate) preds: u32,
    /// Rows that hold a number in every lane, and of which 64 bits matter.
    pub(crate) consts: Vec<(u32, u64, bool)>,
    pub(crate) specials: Vec<(u32, Special)>,
    /// Offset and size of every parameter.
    pub(crate) params: Vec<(u32, u32)>,
    pub(crate) param_bytes: u32,
    /// Bytes of shared memory that it declares; what a launch adds comes behind.
    pub(crate) shared: u32,
    pub(crate) local: u32,
    pub(crate) max_threads: u32,
    /// Names of source files by number.
    pub(crate) files: HashMap<u32, String>,
}

/// Where a named variable is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Global(u64),
    Shared(u32),
    Local(u32),
    Param(u32),
}

/// One function, or one call of it.
pub(super) struct Frame {
    /// Row or predicate of the first register; they follow one another in the order of `slots`.
    slots: Vec<u32>,
    pub(super) types: Vec<Ty>,
    names: HashMap<String, Home>,
    labels: HashMap<String, u32>,
    /// Branches whose targets are labels of this frame.
    pub(super) pending: Vec<(usize, Vec<String>)>,
    pub(super) tables: HashMap<String, Vec<String>>,
    entry: bool,
}

pub(super) struct Lower<'m> {
    module: &'m Module,
    layout: &'m Layout,
    pub(super) kernel: Kernel,
    constants: HashMap<(u64, bool), u32>,
    special_rows: HashMap<String, u32>,
    shared: HashMap<String, u32>,
    depth: usize,
}

fn align(at: u32, to: u32) -> u32 {
    at.div_ceil(to.max(1)).saturating_mul(to.max(1))
}

/// The kernel of this name, ready to be run.
pub(crate) fn lower(module: &Module, function: &Function, layout: &Layout) -> Result<Kernel> {
    let kernel = Kernel {
        name: function.name.clone(),
        files: module.files.clone(),
        max_threads: function.max_threads.unwrap_or(1024),
        ..Kernel::default()
    };
    let mut lower = Lower {
        module,
        layout,
        kernel,
        constants: HashMap::new(),
        special_rows: HashMap::new(),
        shared: HashMap::new(),
        depth: 0,
    };
    let mut names = HashMap::new();
    for param in &function.params {
        let offset = align(lower.kernel.param_bytes, param.align);
        names.insert(param.name.clone(), Home::Param(offset));
        lower.kernel.params.push((offset, param.size));
        lower.kernel.param_bytes = offset.saturating_add(param.size);
        if lower.kernel.param_bytes > MAX_PARAMS {
            return Err(Error::at(0, format!("more than {MAX_PARAMS} bytes of parameters")));
        }
    }
    lower.declare_shared(function)?;
    lower.function(function, names)?;
    lower.push(None, Op::Exit, Kind::Control, Place::default());
    if lower.kernel.shared > MAX_SHARED || lower.kernel.local > MAX_LOCAL {
        let what =
            format!("{} bytes of shared and {} of local memory are too many", lower.kernel.shared, lower.kernel.local);
        return Err(Error::at(0, what));
    }
    flow::joins(&mut lower.kernel.code);
    Ok(lower.kernel)
}

impl Lower<'_> {
    /// Places of the shared variables of the kernel, of what it calls and of the module: those of a size first, then the launch's.
    fn declare_shared(&mut self, function: &Function) -> Result<()> {
        let text = format!("{:?}", function.body);
        let mut all: Vec<&Variable> = function.shared.iter().collect();
        for other in self.module.functions.iter().filter(|f| !f.entry) {
            all.extend(&other.shared);
        }
        // Those of the module belong to every kernel that names them; a kernel that calls may do so through what it calls.
        let calls = text.contains("name: \"call");
        all.extend(self.module.shared.iter().filter(|v| calls || text.contains(&format!("\"{}\"", v.name))));
        for variable in all.iter().filter(|v| !v.external) {
            let at = align(self.kernel.shared, variable.align);
            self.shared.insert(variable.name.clone(), at);
            self.kernel.shared = at.checked_add(variable.size).ok_or_else(|| Error::at(0, "too much shared memory"))?;
        }
        let external: Vec<_> = all.iter().filter(|v| v.external).collect();
        self.kernel.shared = align(self.kernel.shared, external.iter().map(|v| v.align).max().unwrap_or(1));
        for variable in external {
            self.shared.insert(variable.name.clone(), self.kernel.shared);
        }
        Ok(())
    }

    fn function(&mut self, function: &Function, mut names: HashMap<String, Home>) -> Result<()> {
        for variable in &function.local {
            let at = align(self.kernel.local, variable.align);
            names.insert(variable.name.clone(), Home::Local(at));
            self.kernel.local = at.checked_add(variable.size).ok_or_else(|| Error::at(0, "too much local memory"))?;
        }
        let mut slots = Vec::with_capacity(function.registers.len());
        for ty in &function.registers {
            slots.push(if *ty == Ty::Pred { self.pred() } else { self.rows(ty.bits() == 64) });
        }
        let mut frame = Frame {
            slots,
            types: function.registers.clone(),
            names,
            labels: HashMap::new(),
            pending: Vec::new(),
            tables: function.tables.clone(),
            entry: function.entry,
        };
        for statement in &function.body {
            match statement {
                Statement::Label(name) => _ = frame.labels.insert(name.clone(), self.kernel.code.len() as u32),
                Statement::Instruction(i) => {
                    self.instruction(&mut frame, i).map_err(|e| Error::at(i.place.ptx, e.what))?;
                }
            }
            if self.kernel.code.len() > MAX_CODE {
                return Err(Error::at(0, "a kernel of too many instructions"));
            }
        }
        frame.labels.insert(String::new(), self.kernel.code.len() as u32);
        self.resolve(&frame)
    }

    fn resolve(&mut self, frame: &Frame) -> Result<()> {
        for (at, labels) in &frame.pending {
            let instr = &mut self.kernel.code[*at];
            let find = |label: &String| {
                let found = frame.labels.get(label).copied();
                found.ok_or_else(|| Error::at(instr.place.ptx, format!("label {label} is not there")))
            };
            let found: Vec<u32> = labels.iter().map(find).collect::<Result<_>>()?;
            match &mut instr.op {
                Op::Switch { to, .. } => *to = found,
                Op::Branch { to, .. } => *to = found[0],
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn push(&mut self, guard: Option<Pred>, op: Op, kind: Kind, place: Place) {
        self.kernel.code.push(Instr { guard, op, kind, place });
    }

    pub(super) fn rows(&mut self, wide: bool) -> u32 {
        self.kernel.rows += 1 + u32::from(wide);
        self.kernel.rows - 1 - u32::from(wide)
    }

    fn pred(&mut self) -> u32 {
        self.kernel.preds += 1;
        self.kernel.preds - 1
    }

    pub(super) fn constant(&mut self, value: u64, wide: bool) -> u32 {
        let value = if wide { value } else { value & 0xffff_ffff };
        if let Some(row) = self.constants.get(&(value, wide)) {
            return *row;
        }
        let row = self.rows(wide);
        self.constants.insert((value, wide), row);
        self.kernel.consts.push((row, value, wide));
        row
    }

    fn special(&mut self, name: &str) -> Result<u32> {
        if let Some(row) = self.special_rows.get(name) {
            return Ok(*row);
        }
        let (base, axis) = name.rsplit_once('.').unwrap_or((name, ""));
        let axis = match axis {
            "y" => 1,
            "z" => 2,
            _ => 0,
        };
        let special = match base {
            "%tid" => Special::Thread(axis),
            "%ntid" => Special::Threads(axis),
            "%ctaid" => Special::Block(axis),
            "%nctaid" => Special::Blocks(axis),
            "%laneid" => Special::Lane,
            "%warpid" => Special::Warp,
            "%nwarpid" => Special::Warps,
            "%lanemask_lt" => Special::LanesBefore,
            "%lanemask_le" => Special::LanesUpTo,
            "%lanemask_gt" => Special::LanesBehind,
            "%lanemask_ge" => Special::LanesFrom,
            "%lanemask_eq" => Special::LaneItself,
            "%smid" => Special::Zero,
            "%nsmid" => Special::One,
            "%dynamic_smem_size" => Special::DynamicShared,
            "%total_smem_size" => Special::TotalShared,
            _ => return Err(Error::at(0, format!("{name} is not supported"))),
        };
        let row = self.rows(false);
        self.kernel.specials.push((row, special));
        self.special_rows.insert(name.to_owned(), row);
        Ok(row)
    }

    pub(super) fn home(&self, frame: &Frame, name: &str) -> Result<Home> {
        if let Some(home) = frame.names.get(name) {
            return Ok(*home);
        }
        if let Some(at) = self.shared.get(name) {
            return Ok(Home::Shared(*at));
        }
        let address = self.layout.get(name).map(|a| Home::Global(*a));
        address.ok_or_else(|| Error::at(0, format!("{name} is not declared")))
    }

    pub(super) fn in_entry(frame: &Frame) -> bool {
        frame.entry
    }

    /// The row of a source of this type.
    pub(super) fn src(&mut self, frame: &Frame, operand: &Operand, ty: Ty) -> Result<u32> {
        let wide = ty.bits() == 64;
        match operand {
            Operand::Reg(reg) => {
                let own = frame.types[*reg as usize];
                if own == Ty::Pred || (own.bits() == 64) != wide || own.bits() < ty.bits().min(32) {
                    return Err(Error::at(0, format!("a register of {own:?} where {ty:?} should be")));
                }
                Ok(frame.slots[*reg as usize])
            }
            Operand::Int(n) => Ok(self.constant(*n as u64, wide)),
            Operand::F32(bits) if !wide => Ok(self.constant(u64::from(*bits), false)),
            Operand::F64(bits) if wide => Ok(self.constant(*bits, true)),
            Operand::Special(name) if !wide => self.special(name),
            Operand::Symbol(name) => {
                let value = match self.home(frame, name)? {
                    Home::Global(address) => address,
                    Home::Shared(at) | Home::Local(at) | Home::Param(at) => u64::from(at),
                };
                Ok(self.constant(value, wide))
            }
            other => Err(Error::at(0, format!("{other:?} as a source of {ty:?}"))),
        }
    }

    /// Where a result goes; `bits` of 64 want a register of 64.
    pub(super) fn dst(&self, frame: &Frame, operand: &Operand, ty: Ty) -> Result<Dst> {
        let Operand::Reg(reg) = operand else { return Err(Error::at(0, format!("{operand:?} as a result"))) };
        let own = frame.types[*reg as usize];
        if own == Ty::Pred || own.bits() < ty.bits() {
            return Err(Error::at(0, format!("a register of {own:?} for a result of {ty:?}")));
        }
        Ok(Dst { row: frame.slots[*reg as usize], wide: own.bits() == 64 })
    }

    /// Like `dst`, of exactly the width that arithmetic writes.
    pub(super) fn exact(&self, frame: &Frame, operand: &Operand, ty: Ty) -> Result<Dst> {
        let dst = self.dst(frame, operand, ty)?;
        if dst.wide != (ty.bits() == 64) {
            return Err(Error::at(0, format!("a register of another width for a result of {ty:?}")));
        }
        Ok(dst)
    }

    pub(super) fn predicate(&self, frame: &Frame, operand: &Operand) -> Result<Pred> {
        let (reg, negated) = match operand {
            Operand::Reg(reg) => (*reg, false),
            Operand::Not(reg) => (*reg, true),
            other => return Err(Error::at(0, format!("{other:?} as a predicate"))),
        };
        if frame.types[reg as usize] != Ty::Pred {
            return Err(Error::at(0, "a register that is no predicate"));
        }
        Ok(Pred { index: frame.slots[reg as usize], negated })
    }

    fn instruction(&mut self, frame: &mut Frame, i: &Instruction) -> Result<()> {
        let guard = match i.guard {
            Some((reg, negated)) => {
                let pred = self.predicate(frame, &Operand::Reg(reg))?;
                Some(Pred { negated, ..pred })
            }
            None => None,
        };
        let mut m = Mnemonic::new(&i.name, i.place.ptx);
        let wanted = arguments(m.base);
        if wanted.is_some_and(|n| n != i.args.len()) {
            return Err(Error::at(i.place.ptx, format!("{} with {} operands", i.name, i.args.len())));
        }
        let (op, kind) = match m.base {
            "call" => return self.call(frame, guard, i),
            "ld" | "st" | "atom" | "red" | "ldmatrix" | "cp" | "cvta" | "prefetch" => {
                self.memory(frame, &mut m, &i.args)?
            }
            "bra" | "brx" | "ret" | "exit" | "trap" | "bar" | "barrier" | "membar" | "fence" | "shfl" | "vote"
            | "match" | "activemask" | "redux" | "mma" | "nanosleep" => self.warp(frame, &mut m, &i.args)?,
            "setp" => (self.compare(frame, &mut m, &i.args)?, Kind::Integer),
            "selp" => (self.select(frame, &m, &i.args)?, Kind::Integer),
            "cvt" => self.convert(frame, &mut m, &i.args)?,
            "mov" => (self.mov(frame, &mut m, &i.args)?, Kind::Move),
            "and" | "or" | "xor" | "not" if m.ty()? == Ty::Pred => (self.logic(frame, &m, &i.args)?, Kind::Integer),
            _ => self.arithmetic(frame, &mut m, &i.args)?,
        };
        self.push(guard, op, kind, i.place);
        Ok(())
    }

    /// The callee in place of the call.
    fn call(&mut self, frame: &mut Frame, guard: Option<Pred>, i: &Instruction) -> Result<()> {
        let (results, name, params): (&[Operand], _, &[Operand]) = match i.args.as_slice() {
            [Operand::List(results), Operand::Symbol(name), Operand::List(params)] => (results, name, params),
            [Operand::Symbol(name), Operand::List(params)] => (&[], name, params),
            [Operand::List(results), Operand::Symbol(name)] => (results, name, &[]),
            [Operand::Symbol(name)] => (&[], name, &[]),
            _ => return Err(Error::at(0, "a call through a pointer is not supported")),
        };
        let module = self.module;
        let callee = module.functions.iter().find(|f| f.name == *name && f.defined);
        let callee = callee.ok_or_else(|| Error::at(0, format!("function {name} has no body here")))?;
        if self.depth >= MAX_DEPTH {
            return Err(Error::at(0, format!("calls of {name} are nested too deeply, or recursive")));
        }
        let formals = callee.results.iter().chain(&callee.params);
        let actual: Vec<&Operand> = results.iter().chain(params).collect();
        if actual.len() != callee.results.len() + callee.params.len() {
            return Err(Error::at(0, format!("a call of {name} with another number of parameters")));
        }
        let mut names = HashMap::new();
        for (formal, actual) in formals.zip(actual) {
            let Operand::Symbol(actual) = actual else { return Err(Error::at(0, "a parameter that is no variable")) };
            names.insert(formal.name.clone(), self.home(frame, actual)?);
        }
        let branch = self.kernel.code.len();
        if let Some(pred) = guard {
            let around = Pred { negated: !pred.negated, ..pred };
            self.push(Some(around), Op::Branch { to: 0, join: flow::NEVER }, Kind::Control, i.place);
        }
        self.depth += 1;
        self.function(callee, names)?;
        self.depth -= 1;
        if guard.is_some() {
            let end = self.kernel.code.len() as u32;
            self.kernel.code[branch].op = Op::Branch { to: end, join: flow::NEVER };
        }
        Ok(())
    }
}

/// How many operands an instruction has, if that does not depend on it.
fn arguments(base: &str) -> Option<usize> {
    Some(match base {
        "ld" | "st" | "mov" | "cvta" | "ldmatrix" | "activemask" | "brx" => 2,
        "selp" | "mma" => 4,
        "bra" => 1,
        "ret" | "exit" | "trap" => 0,
        _ => return None,
    })
}
