//! The name of an instruction, taken apart. What nobody takes is an error, so that no modifier is passed over.
use super::num::Round;
use crate::ptx::{Error, Result, Ty};

pub(crate) struct Mnemonic<'a> {
    pub(crate) base: &'a str,
    words: Vec<&'a str>,
    /// The types named, in order.
    pub(crate) types: Vec<Ty>,
    full: &'a str,
    line: u32,
}

impl<'a> Mnemonic<'a> {
    pub(crate) fn new(full: &'a str, line: u32) -> Self {
        let mut parts = full.split('.');
        let base = parts.next().unwrap_or_default();
        let (mut words, mut types) = (Vec::new(), Vec::new());
        for part in parts {
            match Ty::named(part) {
                Some(ty) => types.push(ty),
                None => words.push(part),
            }
        }
        Self { base, words, types, full, line }
    }

    /// Whether the name has this modifier, which is then dealt with.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let at = self.words.iter().position(|w| *w == word);
        at.map(|i| self.words.remove(i)).is_some()
    }

    /// The first of these modifiers that the name has.
    pub(crate) fn any(&mut self, words: &[&'static str]) -> Option<&'static str> {
        words.iter().copied().find(|word| self.take(word))
    }

    /// The first modifier left.
    pub(crate) fn shift(&mut self) -> Option<&'a str> {
        if self.words.is_empty() { None } else { Some(self.words.remove(0)) }
    }

    /// How a floating-point result is rounded; to the nearest if not said.
    pub(crate) fn round(&mut self) -> Round {
        match self.any(&["rn", "rz", "rm", "rp"]) {
            Some("rz") => Round::Zero,
            Some("rm") => Round::Down,
            Some("rp") => Round::Up,
            _ => Round::Near,
        }
    }

    /// The type, if there is one alone or it is the first.
    pub(crate) fn ty(&self) -> Result<Ty> {
        self.types.first().copied().ok_or_else(|| self.unknown())
    }

    pub(crate) fn unknown(&self) -> Error {
        Error::at(self.line, format!("instruction {} is not supported", self.full))
    }

    /// An error if a modifier is left.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.words.is_empty() { Ok(()) } else { Err(self.unknown()) }
    }
}
