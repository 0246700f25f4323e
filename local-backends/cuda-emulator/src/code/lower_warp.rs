//! Instructions that concern more than one lane - branches, barriers, exchanges between lanes, matrices - in the form that is run.
use super::flow::NEVER;
use super::lower::{Frame, Lower};
use super::mnemonic::Mnemonic;
use super::op::{AtomOp, Element, MmaShape, Op, Shuffle, Vote};
use crate::count::Kind;
use crate::ptx::{Error, Operand, Result, Ty};

fn number(operand: Option<&Operand>) -> Result<u32> {
    match operand {
        Some(Operand::Int(n)) => Ok(*n as u32),
        other => Err(Error::at(0, format!("{other:?} where only a number is supported"))),
    }
}

fn symbol(operand: &Operand) -> Result<&String> {
    match operand {
        Operand::Symbol(name) => Ok(name),
        other => Err(Error::at(0, format!("{other:?} as a target"))),
    }
}

impl Lower<'_> {
    pub(super) fn warp(&mut self, frame: &mut Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let control = |op| Ok((op, Kind::Control));
        match m.base {
            "bra" => {
                m.take("uni");
                m.finish()?;
                frame.pending.push((self.kernel.code.len(), vec![symbol(&args[0])?.clone()]));
                control(Op::Branch { to: 0, join: NEVER })
            }
            "brx" => {
                m.take("uni");
                if !m.take("idx") {
                    return Err(m.unknown());
                }
                let table = frame.tables.get(symbol(&args[1])?).cloned();
                let table = table.filter(|t| !t.is_empty()).ok_or_else(|| m.unknown())?;
                frame.pending.push((self.kernel.code.len(), table));
                control(Op::Switch { to: Vec::new(), index: self.src(frame, &args[0], Ty::U(32))?, join: NEVER })
            }
            "ret" if !Self::in_entry(frame) => {
                frame.pending.push((self.kernel.code.len(), vec![String::new()]));
                control(Op::Branch { to: 0, join: NEVER })
            }
            "ret" | "exit" => control(Op::Exit),
            "trap" => control(Op::Trap),
            "membar" | "fence" | "nanosleep" => Ok((Op::Nop, Kind::Other)),
            "bar" | "barrier" => self.barrier(frame, m, args),
            "shfl" => self.shuffle(frame, m, args),
            "vote" => self.vote(frame, m, args),
            "match" => self.matching(frame, m, args),
            "activemask" => Ok((Op::ActiveMask { dst: self.exact(frame, &args[0], Ty::B(32))?.row }, Kind::Vote)),
            "redux" => self.reduce(frame, m, args),
            _ => self.mma(frame, m, args),
        }
    }

    fn barrier(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        if m.take("warp") {
            return match (m.take("sync"), args) {
                (true, [mask]) => Ok((Op::WarpBarrier { mask: self.src(frame, mask, Ty::B(32))? }, Kind::Barrier)),
                _ => Err(m.unknown()),
            };
        }
        m.take("cta");
        m.take("aligned");
        let wait = match m.any(&["sync", "arrive"]) {
            Some("sync") => true,
            Some(_) => false,
            None => return Err(m.unknown()),
        };
        m.finish()?;
        let id = number(args.first())?;
        let threads = if args.len() > 1 { Some(number(args.get(1))?) } else { None };
        if id > 15 || threads.is_some_and(|t| t == 0 || t % 32 != 0) || (!wait && threads.is_none()) {
            return Err(m.unknown());
        }
        Ok((Op::Barrier { id, threads, wait }, Kind::Barrier))
    }

    fn shuffle(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let sync = m.take("sync");
        let mode = match m.any(&["up", "down", "bfly", "idx"]) {
            Some("up") => Shuffle::Up,
            Some("down") => Shuffle::Down,
            Some("bfly") => Shuffle::Butterfly,
            Some(_) => Shuffle::Index,
            None => return Err(m.unknown()),
        };
        m.finish()?;
        let [to, src, by, clamp, mask] = args else { return Err(m.unknown()) };
        if !sync {
            return Err(m.unknown());
        }
        let (dst, valid) = match to {
            Operand::Pair(dst, valid) => (dst.as_ref(), Some(self.predicate(frame, valid)?.index)),
            dst => (dst, None),
        };
        let ty = Ty::B(32);
        let op = Op::Shuffle {
            mode,
            dst: self.exact(frame, dst, ty)?.row,
            valid,
            src: self.src(frame, src, ty)?,
            by: self.src(frame, by, ty)?,
            clamp: self.src(frame, clamp, ty)?,
            mask: self.src(frame, mask, ty)?,
        };
        Ok((op, Kind::Shuffle))
    }

    fn vote(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let sync = m.take("sync");
        let vote = match m.any(&["all", "any", "uni", "ballot"]) {
            Some("all") => Vote::All,
            Some("any") => Vote::Any,
            Some("uni") => Vote::Uniform,
            Some(_) => Vote::Ballot,
            None => return Err(m.unknown()),
        };
        m.finish()?;
        let [to, src, mask] = args else { return Err(m.unknown()) };
        if !sync {
            return Err(m.unknown());
        }
        let dst = match vote {
            Vote::Ballot => self.exact(frame, to, Ty::B(32))?.row,
            _ => self.predicate(frame, to)?.index,
        };
        Ok((
            Op::Vote { vote, dst, src: self.predicate(frame, src)?, mask: self.src(frame, mask, Ty::B(32))? },
            Kind::Vote,
        ))
    }

    fn matching(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let (sync, ty) = (m.take("sync"), m.ty()?);
        let [to, src, mask] = args else { return Err(m.unknown()) };
        let (dst, all) = match (m.any(&["any", "all"]), to) {
            (Some("any"), dst) => (dst, None),
            (Some(_), Operand::Pair(dst, pred)) => (dst.as_ref(), Some(Some(self.predicate(frame, pred)?.index))),
            (Some(_), dst) => (dst, Some(None)),
            _ => return Err(m.unknown()),
        };
        m.finish()?;
        if !sync {
            return Err(m.unknown());
        }
        let dst = self.exact(frame, dst, Ty::B(32))?.row;
        let (src, mask) = (self.src(frame, src, ty)?, self.src(frame, mask, Ty::B(32))?);
        Ok((Op::Match { dst, src, wide: ty.bits() == 64, all, mask }, Kind::Vote))
    }

    fn reduce(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let (sync, ty) = (m.take("sync"), m.ty()?);
        let op = match m.any(&["add", "min", "max", "and", "or", "xor"]) {
            Some("add") => AtomOp::Add,
            Some("min") => AtomOp::Min,
            Some("max") => AtomOp::Max,
            Some("and") => AtomOp::And,
            Some("or") => AtomOp::Or,
            Some(_) => AtomOp::Xor,
            None => return Err(m.unknown()),
        };
        m.finish()?;
        let [dst, src, mask] = args else { return Err(m.unknown()) };
        if !sync || ty.bits() != 32 {
            return Err(m.unknown());
        }
        let dst = self.exact(frame, dst, ty)?.row;
        let (src, mask) = (self.src(frame, src, ty)?, self.src(frame, mask, Ty::B(32))?);
        Ok((Op::Reduce { op, signed: ty == Ty::S(32), dst, src, mask }, Kind::Shuffle))
    }

    fn mma(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        if !(m.take("sync") && m.take("aligned") && m.take("row") && m.take("col")) {
            return Err(m.unknown());
        }
        let name = m.any(&["m16n8k16", "m16n8k8", "m16n8k32", "m8n8k16"]).ok_or_else(|| m.unknown())?;
        let shape = match (name, m.types.as_slice()) {
            ("m16n8k16", [Ty::F32, Ty::F16, Ty::F16, Ty::F32]) => {
                MmaShape { m: 16, k: 16, a: Element::F16, b: Element::F16 }
            }
            ("m16n8k16", [Ty::F32, Ty::Bf16, Ty::Bf16, Ty::F32]) => {
                MmaShape { m: 16, k: 16, a: Element::Bf16, b: Element::Bf16 }
            }
            ("m16n8k8", [Ty::F32, Ty::F16, Ty::F16, Ty::F32]) => {
                MmaShape { m: 16, k: 8, a: Element::F16, b: Element::F16 }
            }
            ("m16n8k8", [Ty::F32, Ty::Bf16, Ty::Bf16, Ty::F32]) => {
                MmaShape { m: 16, k: 8, a: Element::Bf16, b: Element::Bf16 }
            }
            (_, [Ty::S(32), a, b, Ty::S(32)]) if name != "m16n8k8" => {
                let element = |ty: &Ty| match ty {
                    Ty::S(8) => Ok(Element::S8),
                    Ty::U(8) => Ok(Element::U8),
                    _ => Err(m.unknown()),
                };
                let rows = if name == "m8n8k16" { 8 } else { 16 };
                MmaShape { m: rows, k: if name == "m16n8k32" { 32 } else { 16 }, a: element(a)?, b: element(b)? }
            }
            _ => return Err(m.unknown()),
        };
        m.finish()?;
        let bytes = if matches!(shape.a, Element::F16 | Element::Bf16) { 2 } else { 1 };
        let registers = |rows: usize| rows * shape.k * bytes / 128;
        let mut dst = Vec::new();
        for part in vector(&args[0], shape.m * 8 / 32)? {
            dst.push(self.exact(frame, part, Ty::B(32))?.row);
        }
        let a = self.fragment(frame, &args[1], registers(shape.m))?;
        let b = self.fragment(frame, &args[2], registers(8))?;
        let c = self.fragment(frame, &args[3], shape.m * 8 / 32)?;
        Ok((Op::Mma { shape, dst, a, b, c }, Kind::Mma))
    }

    fn fragment(&mut self, frame: &Frame, operand: &Operand, count: usize) -> Result<Vec<u32>> {
        vector(operand, count)?.iter().map(|p| self.src(frame, p, Ty::B(32))).collect()
    }
}

fn vector(operand: &Operand, count: usize) -> Result<&[Operand]> {
    let parts = if let Operand::Vector(parts) = operand { parts } else { std::slice::from_ref(operand) };
    if parts.len() == count {
        Ok(parts)
    } else {
        Err(Error::at(0, format!("{} registers where {count} should be", parts.len())))
    }
}
