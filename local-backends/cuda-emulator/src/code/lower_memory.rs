//! Instructions that touch memory, in the form that is run.
use super::lanes::lanes;
use super::lower::{Frame, Home, LOCAL_WINDOW, Lower, SHARED_WINDOW};
use super::mnemonic::Mnemonic;
use super::op::{Address, AtomOp, Op, Space};
use crate::count::Kind;
use crate::ptx::{Error, Operand, Result, Ty};

/// What is said of caches and of the order of accesses: nothing here depends on it.
const ORDER: &[&str] = &[
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "weak",
    "sys",
    "gpu",
    "cta",
    "nc",
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "noftz",
];

impl Mnemonic<'_> {
    fn order(&mut self) {
        while self.any(ORDER).is_some() {}
    }

    fn space(&mut self) -> Space {
        match self.any(&["global", "const", "shared", "shared::cta", "local", "param"]) {
            Some("global" | "const") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some(_) => Space::Param,
            None => Space::Generic,
        }
    }
}

impl Lower<'_> {
    pub(super) fn memory(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        match m.base {
            "ld" => self.load(frame, m, args),
            "st" => self.store(frame, m, args),
            "atom" | "red" => self.atomic(frame, m, args),
            "ldmatrix" => self.load_matrix(frame, m, args),
            "cp" => self.copy_async(frame, m, args),
            "prefetch" => Ok((Op::Nop, Kind::Other)),
            _ => self.cvta(frame, m, args),
        }
    }

    /// An address of a space. A name decides for itself whether it is a parameter of a kernel or of a call.
    fn address(&mut self, frame: &Frame, operand: &Operand, space: &mut Space) -> Result<Address> {
        let Operand::Memory(base, offset) = operand else {
            return Err(Error::at(0, format!("{operand:?} as an address")));
        };
        match base.as_ref() {
            Operand::Symbol(name) => {
                let (home, at) = match self.home(frame, name)? {
                    Home::Global(at) => (Space::Global, at as i64),
                    Home::Shared(at) => (Space::Shared, i64::from(at)),
                    Home::Local(at) => (Space::Local, i64::from(at)),
                    Home::Param(at) => (Space::Param, i64::from(at)),
                };
                if home != *space && !(home == Space::Local && *space == Space::Param) {
                    return Err(Error::at(0, format!("{name} is not in the memory that the instruction names")));
                }
                *space = home;
                Ok(Address { base: None, wide: false, offset: at + offset })
            }
            Operand::Int(n) => Ok(Address { base: None, wide: false, offset: n.wrapping_add(*offset) }),
            register => {
                if *space == Space::Param && !Self::in_entry(frame) {
                    *space = Space::Local;
                }
                let wide = self.src(frame, register, Ty::B(64));
                let (row, wide) = match wide {
                    Ok(row) => (row, true),
                    Err(_) => (self.src(frame, register, Ty::B(32))?, false),
                };
                Ok(Address { base: Some(row), wide, offset: *offset })
            }
        }
    }

    fn parts<'a>(m: &mut Mnemonic<'_>, operand: &'a Operand) -> Result<&'a [Operand]> {
        let count = match m.any(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => 1,
        };
        let parts = if let Operand::Vector(parts) = operand { parts } else { std::slice::from_ref(operand) };
        if parts.len() == count { Ok(parts) } else { Err(m.unknown()) }
    }

    fn load(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        m.order();
        let (mut space, ty) = (m.space(), m.ty()?);
        let parts = Self::parts(m, &args[0])?;
        m.finish()?;
        let to = |p: &Operand| if *p == Operand::Sink { Ok(None) } else { self.dst(frame, p, ty).map(Some) };
        let dst = parts.iter().map(to).collect::<Result<_>>()?;
        let from = self.address(frame, &args[1], &mut space)?;
        let kind = if space == Space::Param { Kind::Move } else { Kind::Load };
        Ok((Op::Load { space, ty, dst, from }, kind))
    }

    fn store(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        m.order();
        let (mut space, ty) = (m.space(), m.ty()?);
        let parts = Self::parts(m, &args[1])?;
        m.finish()?;
        // A register may be wider than what is stored of it.
        let mut src = Vec::new();
        for part in parts {
            let narrow = self.src(frame, part, ty);
            src.push(narrow.or_else(|e| if ty.bits() < 64 { self.src(frame, part, Ty::B(64)) } else { Err(e) })?);
        }
        let to = self.address(frame, &args[0], &mut space)?;
        if space == Space::Param {
            return Err(Error::at(0, "a parameter of a kernel cannot be written"));
        }
        Ok((Op::Store { space, ty, src, to }, Kind::Store))
    }

    fn atomic(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        m.order();
        let (mut space, ty) = (m.space(), m.ty()?);
        let op = match m.any(&["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"]) {
            Some("add") => AtomOp::Add,
            Some("min") => AtomOp::Min,
            Some("max") => AtomOp::Max,
            Some("and") => AtomOp::And,
            Some("or") => AtomOp::Or,
            Some("xor") => AtomOp::Xor,
            Some("exch") => AtomOp::Exch,
            Some("cas") => AtomOp::Cas,
            Some("inc") => AtomOp::Inc,
            Some("dec") => AtomOp::Dec,
            _ => return Err(m.unknown()),
        };
        m.finish()?;
        if !crate::exec::atomic_is_known(op, ty) {
            return Err(m.unknown());
        }
        let returns = usize::from(m.base == "atom");
        let sources = if op == AtomOp::Cas { 2 } else { 1 };
        if args.len() != returns + 1 + sources {
            return Err(m.unknown());
        }
        let dst = if returns == 1 && args[0] != Operand::Sink { Some(self.exact(frame, &args[0], ty)?) } else { None };
        let at = self.address(frame, &args[returns], &mut space)?;
        let mut src = [0; 2];
        for (row, operand) in src.iter_mut().zip(&args[returns + 1..]) {
            *row = self.src(frame, operand, ty)?;
        }
        Ok((Op::Atomic { space, ty, op, dst, at, src }, Kind::Atomic))
    }

    fn load_matrix(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let known = m.take("sync") && m.take("aligned") && m.take("m8n8") && m.ty()? == Ty::B(16);
        let count = match m.any(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => 0,
        };
        let transposed = m.take("trans");
        let mut space = m.space();
        m.finish()?;
        let parts = if let Operand::Vector(parts) = &args[0] { parts } else { std::slice::from_ref(&args[0]) };
        if !known || parts.len() != count {
            return Err(m.unknown());
        }
        let dst = parts.iter().map(|p| self.exact(frame, p, Ty::B(32)).map(|d| d.row)).collect::<Result<_>>()?;
        let from = self.address(frame, &args[1], &mut space)?;
        if space != Space::Shared && space != Space::Generic {
            return Err(m.unknown());
        }
        Ok((Op::LoadMatrix { transposed, dst, from, generic: space == Space::Generic }, Kind::LoadMatrix))
    }

    fn copy_async(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        if !m.take("async") {
            return Err(m.unknown());
        }
        let wait = |left| Ok((Op::CopyWait { left }, Kind::CopyAsync));
        match (m.any(&["commit_group", "wait_group", "wait_all"]), args) {
            (Some("commit_group"), []) => return Ok((Op::CopyCommit, Kind::CopyAsync)),
            (Some("wait_group"), [Operand::Int(n)]) => return wait(Some(*n as u32)),
            (Some("wait_all"), []) => return wait(None),
            (None, [_, _, Operand::Int(4 | 8 | 16)] | [_, _, Operand::Int(4 | 8 | 16), _]) => {}
            _ => return Err(m.unknown()),
        }
        let cache_global = m.take("cg");
        m.order();
        // Both spaces are named, the destination first.
        let named = m.any(&["shared", "shared::cta"]).is_some() && m.take("global");
        m.finish()?;
        let Operand::Int(bytes) = args[2] else { return Err(m.unknown()) };
        if !named || (cache_global && bytes != 16) {
            return Err(m.unknown());
        }
        let to = self.address(frame, &args[0], &mut Space::Shared)?;
        let from = self.address(frame, &args[1], &mut Space::Global)?;
        let source = match args.get(3) {
            Some(operand) => Some(self.src(frame, operand, Ty::U(32))?),
            None => None,
        };
        Ok((Op::CopyAsync { to, from, bytes: bytes as u32, source }, Kind::CopyAsync))
    }

    /// Between generic addresses and those of a space: a window is added or taken away.
    fn cvta(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let (ty, to) = (m.ty()?, m.take("to"));
        let window = match m.space() {
            Space::Global => 0,
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param | Space::Generic => return Err(m.unknown()),
        };
        m.finish()?;
        if ty.bits() != 64 {
            return Err(m.unknown());
        }
        let add = if to { window.wrapping_neg() } else { window };
        let src = [self.src(frame, &args[1], ty)?, self.constant(add, true), 0, 0];
        let dst = self.exact(frame, &args[0], ty)?;
        Ok((Op::Alu { run: lanes!(u64 = |a: u64, b: u64| a.wrapping_add(b)), dst, src }, Kind::Move))
    }
}
