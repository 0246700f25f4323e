//! Arithmetic, comparisons, copies and conversions, in the form that is run.
use super::alu;
use super::convert::{self, Convert};
use super::lower::{Frame, Lower};
use super::mnemonic::Mnemonic;
use super::op::{Logic, Op, Pred};
use crate::count::Kind;
use crate::ptx::{Error, Operand, Result, Ty};

impl Lower<'_> {
    pub(super) fn arithmetic(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let alu = alu::select(m)?;
        if args.len() != alu.src.len() + 1 {
            return Err(Error::at(0, format!("{} with {} operands", m.base, args.len())));
        }
        let mut src = [0; 4];
        for (row, (operand, ty)) in src.iter_mut().zip(args[1..].iter().zip(&alu.src)) {
            *row = self.src(frame, operand, *ty)?;
        }
        Ok((Op::Alu { run: alu.run, dst: self.exact(frame, &args[0], alu.dst)?, src }, alu.kind))
    }

    pub(super) fn mov(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<Op> {
        let ty = m.ty()?;
        if let Operand::Vector(parts) = &args[0] {
            let bits = ty.bits() / parts.len().max(1) as u32;
            let part = Ty::B(bits as u8);
            let to = |p: &Operand| if *p == Operand::Sink { Ok(None) } else { self.exact(frame, p, part).map(Some) };
            let dst = parts.iter().map(to).collect::<Result<_>>()?;
            return Ok(Op::Unpack { dst, bits, src: self.src(frame, &args[1], ty)?, wide: ty.bits() == 64 });
        }
        if let Operand::Vector(parts) = &args[1] {
            let bits = ty.bits() / parts.len().max(1) as u32;
            let src = parts.iter().map(|p| self.src(frame, p, Ty::B(bits as u8))).collect::<Result<_>>()?;
            return Ok(Op::Pack { dst: self.exact(frame, &args[0], ty)?, bits, src });
        }
        match &args[1] {
            Operand::Special(name) if name.starts_with("%clock") || name == "%globaltimer" => {
                Ok(Op::Clock { dst: self.exact(frame, &args[0], ty)? })
            }
            _ if ty == Ty::Pred => {
                let dst = self.predicate(frame, &args[0])?.index;
                Ok(match &args[1] {
                    Operand::Int(value) => Op::PredSet { dst, value: *value != 0 },
                    src => Op::PredMove { dst, src: self.predicate(frame, src)? },
                })
            }
            _ => Ok(self.arithmetic(frame, m, args)?.0),
        }
    }

    pub(super) fn logic(&mut self, frame: &Frame, m: &Mnemonic<'_>, args: &[Operand]) -> Result<Op> {
        let dst = self.predicate(frame, &args[0])?.index;
        let first = self.predicate(frame, &args[1])?;
        let logic = match m.base {
            "and" => Logic::And,
            "or" => Logic::Or,
            "xor" => Logic::Xor,
            _ => return Ok(Op::PredMove { dst, src: Pred { negated: !first.negated, ..first } }),
        };
        let second = args.get(2).ok_or_else(|| m.unknown())?;
        Ok(Op::PredLogic { logic, dst, src: [first, self.predicate(frame, second)?] })
    }

    pub(super) fn compare(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<Op> {
        let ty = m.ty()?;
        let logic = match m.any(&["and", "or", "xor"]) {
            Some("and") => Some(Logic::And),
            Some("or") => Some(Logic::Or),
            Some(_) => Some(Logic::Xor),
            None => None,
        };
        let ftz = m.take("ftz");
        let name = m.shift().ok_or_else(|| m.unknown())?;
        let run = alu::compare(name, ty, ftz).ok_or_else(|| m.unknown())?;
        m.finish()?;
        if args.len() != 3 + usize::from(logic.is_some()) {
            return Err(m.unknown());
        }
        let (dst, not) = match &args[0] {
            Operand::Pair(p, q) => (self.predicate(frame, p)?.index, Some(self.predicate(frame, q)?.index)),
            p => (self.predicate(frame, p)?.index, None),
        };
        let src = [self.src(frame, &args[1], ty)?, self.src(frame, &args[2], ty)?];
        let with = match logic {
            Some(logic) => Some((logic, self.predicate(frame, &args[3])?)),
            None => None,
        };
        Ok(Op::Compare { run, dst, not, src, with })
    }

    pub(super) fn select(&mut self, frame: &Frame, m: &Mnemonic<'_>, args: &[Operand]) -> Result<Op> {
        let ty = m.ty()?;
        m.finish()?;
        let src = [self.src(frame, &args[1], ty)?, self.src(frame, &args[2], ty)?];
        Ok(Op::Select { dst: self.exact(frame, &args[0], ty)?, src, by: self.predicate(frame, &args[3])? })
    }

    pub(super) fn convert(&mut self, frame: &Frame, m: &mut Mnemonic<'_>, args: &[Operand]) -> Result<(Op, Kind)> {
        let ty = m.ty()?;
        if let [dst, a, b] = args {
            let run = convert::pair(m).ok_or_else(|| m.unknown())?;
            let src = [self.src(frame, a, Ty::F32)?, self.src(frame, b, Ty::F32)?, 0, 0];
            return Ok((Op::Alu { run, dst: self.exact(frame, dst, ty)?, src }, Kind::Convert));
        }
        let [dst, src] = args else { return Err(m.unknown()) };
        let convert = Convert::select(m)?;
        // A register may be wider than what is read of it.
        let from = match (src, m.types[1]) {
            (Operand::Reg(reg), ty) if frame.types[*reg as usize].bits() == 64 && ty.bits() < 64 => Ty::B(64),
            (_, ty) => ty,
        };
        let src = self.src(frame, src, from)?;
        Ok((Op::Convert { convert, dst: self.dst(frame, dst, ty)?, src }, Kind::Convert))
    }
}
