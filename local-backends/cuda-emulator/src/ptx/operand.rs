//! Operands of instructions and initial values of variables.
use super::lex::Kind;
use super::parse::Parser;
use super::{Error, Operand, Result, Ty};

/// Names of registers that the hardware sets.
const SPECIAL: &[&str] = &[
    "%tid.",
    "%ntid.",
    "%ctaid.",
    "%nctaid.",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%lanemask_",
    "%clock",
    "%globaltimer",
    "%smid",
    "%nsmid",
    "%dynamic_smem_size",
    "%total_smem_size",
];

/// The number that a word says.
pub(super) fn number(word: &str) -> Option<Operand> {
    let lower = word.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f") {
        return u32::from_str_radix(hex, 16).ok().map(Operand::F32);
    }
    if let Some(hex) = lower.strip_prefix("0d") {
        return u64::from_str_radix(hex, 16).ok().map(Operand::F64);
    }
    let digits = lower.trim_end_matches('u');
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(Operand::Int(value as i64))
}

impl Parser {
    /// One operand.
    pub(super) fn operand(&mut self) -> Result<Operand> {
        let first = self.simple()?;
        if !self.accept('|') {
            return Ok(first);
        }
        let second = self.simple()?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn simple(&mut self) -> Result<Operand> {
        let line = self.line();
        match self.next()? {
            Kind::Sign('{') => Ok(Operand::Vector(self.operands_until('}')?)),
            Kind::Sign('(') => Ok(Operand::List(self.operands_until(')')?)),
            Kind::Sign('[') => self.memory(),
            Kind::Sign('!') => match self.simple()? {
                Operand::Reg(reg) => Ok(Operand::Not(reg)),
                _ => Err(Error::at(line, "! before something that is no predicate")),
            },
            Kind::Sign('-') => match self.simple()? {
                Operand::Int(n) => Ok(Operand::Int(n.wrapping_neg())),
                _ => Err(Error::at(line, "- before something that is no number")),
            },
            Kind::Word(word) => self.word_operand(&word, line),
            other => Err(Error::at(line, format!("{other:?} where an operand should be"))),
        }
    }

    fn word_operand(&mut self, word: &str, line: u32) -> Result<Operand> {
        if word == "_" {
            return Ok(Operand::Sink);
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return number(word).ok_or_else(|| Error::at(line, format!("{word} is no number")));
        }
        if let Some(found) = self.lookup(word) {
            return Ok(found);
        }
        if SPECIAL.iter().any(|s| word.starts_with(s)) {
            return Ok(Operand::Special(word.to_owned()));
        }
        if word.starts_with('%') {
            return Err(Error::at(line, format!("register {word} is not declared")));
        }
        Ok(Operand::Symbol(word.to_owned()))
    }

    fn operands_until(&mut self, end: char) -> Result<Vec<Operand>> {
        let mut found = Vec::new();
        while !self.accept(end) {
            found.push(self.operand()?);
            self.accept(',');
        }
        Ok(found)
    }

    fn memory(&mut self) -> Result<Operand> {
        let line = self.line();
        let base = self.simple()?;
        let mut offset = 0i64;
        while !self.accept(']') {
            let negative = self.accept('-');
            if !negative {
                self.expect('+')?;
            }
            match self.simple()? {
                Operand::Int(n) => offset = offset.wrapping_add(if negative { n.wrapping_neg() } else { n }),
                other => return Err(Error::at(line, format!("an offset that is no number: {other:?}"))),
            }
        }
        Ok(Operand::Memory(Box::new(base), offset))
    }

    /// The bytes behind `=`.
    pub(super) fn initial(&mut self, ty: Ty, out: &mut Vec<u8>) -> Result<()> {
        if self.accept('{') {
            while !self.accept('}') {
                self.initial(ty, out)?;
                self.accept(',');
            }
            return Ok(());
        }
        let line = self.line();
        let bits = match self.operand()? {
            Operand::Int(n) => n as u64,
            Operand::F32(bits) => u64::from(bits),
            Operand::F64(bits) => bits,
            other => return Err(Error::at(line, format!("an initial value that is no number: {other:?}"))),
        };
        out.extend_from_slice(&bits.to_le_bytes()[..ty.bytes() as usize]);
        Ok(())
    }
}
