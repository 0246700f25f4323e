//! GBNF, the grammars of llama.cpp (its grammars/README.md), as llguidance's Lark.
//!
//! llguidance cuts a text into lexemes, each as long as it can be, and has a parser for what they make up. A grammar of GBNF has no lexemes: here its largest
//! regular parts become them, because thousands of tokens are then told apart within one lexeme. Where the longest one could be the wrong one,
//! which [`lexemes`] finds out, a lexeme is taken apart, down to single characters if need be: no text of the grammar is excluded.

mod lexemes;
mod parse;
#[cfg(test)]
mod tests;

use lexemes::Steps;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Parts of a grammar, at most, with what lexemes refer to written out.
const MOST_PARTS: usize = 20_000;

/// Lexemes that are taken apart, at most.
const MOST_SPLIT: usize = 200;

/// Characters, as ranges that do not meet, the lowest first.
type Class = Vec<(u32, u32)>;

/// What a part of a rule stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// One character of these.
    Chars(Class),
    /// One behind the other.
    Sequence(Vec<Part>),
    /// One of these.
    Choice(Vec<Part>),
    /// So many times, without end where there is no second number.
    Repeat(Box<Part>, u32, Option<u32>),
    /// What the rule with this number is.
    Rule(usize),
}

impl Part {
    fn empty() -> Part {
        Part::Sequence(Vec::new())
    }
}

/// A grammar: its rules, and the number of the one that a text is of.
struct Grammar {
    rules: Vec<Part>,
    root: usize,
}

/// The same grammar in Lark. Fails with what is wrong with it.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let grammar = parse::parse(text)?;
    let (mut must_split, mut steps) = (HashSet::new(), Steps::default());
    while must_split.len() <= MOST_SPLIT {
        let mut lowering = Lowering::new(&grammar, &must_split);
        lowering.lower_rules()?;
        steps.spend(lowering.parts + lowering.productions.len())?;
        match lexemes::find_overlong(&lowering, &mut steps)? {
            None => return Ok(lowering.lark()),
            Some(lexeme) => {
                let part = lowering.lexemes.swap_remove(lexeme);
                must_split.insert(part);
            }
        }
    }
    Err(format!("what ends a repetition may be a part of it in more than {MOST_SPLIT} places"))
}

/// What a rule is made of, once lexemes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Lexeme(usize),
    Rule(usize),
}

/// A rule over lexemes.
#[derive(Clone, Debug)]
enum Production {
    /// One of these sequences.
    Choice(Vec<Vec<Symbol>>),
    Repeat(Symbol, u32, Option<u32>),
}

/// A grammar on its way to lexemes and rules over them.
struct Lowering<'g> {
    grammar: &'g Grammar,
    /// Of each rule whether it is regular: it does not come back to itself, and neither does what it refers to.
    regular: Vec<bool>,
    /// Those of the grammar come first.
    productions: Vec<Production>,
    /// Each without references.
    lexemes: Vec<Part>,
    known: HashMap<Part, usize>,
    /// Parts that are not to be lexemes.
    must_split: &'g HashSet<Part>,
    /// Parts that have been written out.
    parts: usize,
}

impl<'g> Lowering<'g> {
    fn new(grammar: &'g Grammar, must_split: &'g HashSet<Part>) -> Lowering<'g> {
        let mut states = vec![Visit::New; grammar.rules.len()];
        for rule in 0..grammar.rules.len() {
            visit(grammar, rule, &mut states);
        }
        let regular = states.iter().map(|state| *state == Visit::Regular).collect();
        let productions = vec![Production::Choice(Vec::new()); grammar.rules.len()];
        Lowering { grammar, regular, productions, lexemes: Vec::new(), known: HashMap::new(), must_split, parts: 0 }
    }

    fn lower_rules(&mut self) -> Result<(), String> {
        let grammar = self.grammar;
        for (i, rule) in grammar.rules.iter().enumerate() {
            if self.productions.len() > MOST_PARTS {
                return Err(format!("it has more than {MOST_PARTS} groups and repetitions"));
            }
            // Others are written out where they are used.
            if !self.regular[i] || i == grammar.root {
                self.productions[i] = match rule {
                    Part::Choice(options) => self.any(options)?,
                    rule => Production::Choice(vec![self.sequence(std::slice::from_ref(rule))?]),
                };
            }
        }
        Ok(())
    }

    fn is_regular(&self, part: &Part) -> bool {
        match part {
            Part::Chars(_) => true,
            Part::Sequence(parts) | Part::Choice(parts) => parts.iter().all(|part| self.is_regular(part)),
            Part::Repeat(part, ..) => self.is_regular(part),
            Part::Rule(rule) => self.regular[*rule],
        }
    }

    fn any(&mut self, options: &[Part]) -> Result<Production, String> {
        let sequences = options.iter().map(|option| self.sequence(std::slice::from_ref(option)));
        Ok(Production::Choice(sequences.collect::<Result<_, _>>()?))
    }

    /// Parts one behind the other: those that are regular are one lexeme as long as they follow one another.
    fn sequence(&mut self, parts: &[Part]) -> Result<Vec<Symbol>, String> {
        let mut flat = Vec::new();
        flatten(parts, &mut flat);
        let (mut symbols, mut regular) = (Vec::new(), Vec::new());
        for part in flat {
            if self.is_regular(part) {
                regular.push(self.written_out(part)?);
                continue;
            }
            self.lexeme(std::mem::take(&mut regular), &mut symbols);
            let symbol = match part {
                Part::Rule(rule) => Symbol::Rule(*rule),
                Part::Choice(options) => {
                    let production = self.any(options)?;
                    self.add(production)
                }
                Part::Repeat(part, least, most) => {
                    let of = self.sequence(std::slice::from_ref(part))?;
                    let of = match of[..] {
                        [one] => one,
                        _ => self.add(Production::Choice(vec![of])),
                    };
                    self.add(Production::Repeat(of, *least, *most))
                }
                Part::Chars(_) | Part::Sequence(_) => return Err("it could not be read".into()),
            };
            symbols.push(symbol);
        }
        self.lexeme(regular, &mut symbols);
        Ok(symbols)
    }

    fn add(&mut self, production: Production) -> Symbol {
        self.productions.push(production);
        Symbol::Rule(self.productions.len() - 1)
    }

    /// Adds regular parts as a lexeme, or as several. One that may be empty may also be left out, and is of one character at least where it is not:
    /// llguidance has no others.
    fn lexeme(&mut self, mut parts: Vec<Part>, to: &mut Vec<Symbol>) {
        let part = if parts.len() == 1 { parts.remove(0) } else { Part::Sequence(parts) };
        if is_empty(&part) {
            return;
        }
        if self.must_split.contains(&part) {
            return self.split(part, to);
        }
        let (is_nullable, next) = (is_nullable(&part), self.lexemes.len());
        let number = *self.known.entry(part.clone()).or_insert(next);
        if number == next {
            self.lexemes.push(part);
        }
        let lexeme = Symbol::Lexeme(number);
        to.push(if is_nullable { self.add(Production::Choice(vec![vec![lexeme], Vec::new()])) } else { lexeme });
    }

    /// Adds what a regular part is made of. Of a sequence the last one is on its own then: it is the end that is cut in more than one way.
    fn split(&mut self, part: Part, to: &mut Vec<Symbol>) {
        match part {
            Part::Sequence(mut parts) => {
                let last = parts.pop();
                self.lexeme(parts, to);
                self.lexeme(last.into_iter().collect(), to);
            }
            Part::Choice(options) => {
                let option = |option: Part| {
                    let mut symbols = Vec::new();
                    self.lexeme(vec![option], &mut symbols);
                    symbols
                };
                let production = Production::Choice(options.into_iter().map(option).collect());
                to.push(self.add(production));
            }
            Part::Repeat(part, least, most) => {
                let mut of = Vec::new();
                self.lexeme(vec![*part], &mut of);
                let of = self.add(Production::Choice(vec![of]));
                to.push(self.add(Production::Repeat(of, least, most)));
            }
            // They are of one character, or not there.
            Part::Chars(_) | Part::Rule(_) => {}
        }
    }

    /// A regular part without references.
    fn written_out(&mut self, part: &Part) -> Result<Part, String> {
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(format!("it comes to more than {MOST_PARTS} parts with its rules written out"));
        }
        let all = |this: &mut Self, parts: &[Part]| -> Result<Vec<Part>, String> {
            parts.iter().map(|part| this.written_out(part)).collect()
        };
        Ok(match part {
            Part::Chars(class) => Part::Chars(class.clone()),
            Part::Sequence(parts) => Part::Sequence(all(self, parts)?),
            Part::Choice(parts) => Part::Choice(all(self, parts)?),
            Part::Repeat(part, least, most) => Part::Repeat(Box::new(self.written_out(part)?), *least, *most),
            Part::Rule(rule) => {
                let grammar = self.grammar;
                self.written_out(&grammar.rules[*rule])?
            }
        })
    }

    fn lark(&self) -> String {
        let mut text = format!("start: r{}\n", self.grammar.root);
        let name = |symbol: &Symbol| match symbol {
            Symbol::Lexeme(i) => format!("T{i}"),
            Symbol::Rule(i) => format!("r{i}"),
        };
        for (i, production) in self.productions.iter().enumerate() {
            let body = match production {
                // Written out elsewhere.
                Production::Choice(options) if options.is_empty() => continue,
                Production::Choice(options) => {
                    let option = |symbols: &Vec<Symbol>| match &symbols[..] {
                        [] => "\"\"".to_owned(),
                        some => some.iter().map(name).collect::<Vec<_>>().join(" "),
                    };
                    options.iter().map(option).collect::<Vec<_>>().join(" | ")
                }
                Production::Repeat(of, least, most) => format!("{}{}", name(of), times(*least, *most)),
            };
            let _ = writeln!(text, "r{i}: {body}");
        }
        for (i, lexeme) in self.lexemes.iter().enumerate() {
            let mut regex = String::new();
            write_regex(lexeme, &mut regex);
            let _ = writeln!(text, "T{i}: /{regex}/");
        }
        text
    }
}

fn flatten<'p>(parts: &'p [Part], to: &mut Vec<&'p Part>) {
    for part in parts {
        match part {
            Part::Sequence(parts) => flatten(parts, to),
            part => to.push(part),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    UnderWay,
    Regular,
    Recursive,
}

/// Finds out whether a rule is regular.
fn visit(grammar: &Grammar, rule: usize, states: &mut [Visit]) -> bool {
    match states[rule] {
        Visit::New => {}
        Visit::Regular => return true,
        Visit::UnderWay | Visit::Recursive => {
            states[rule] = Visit::Recursive;
            return false;
        }
    }
    states[rule] = Visit::UnderWay;
    let is_regular = visit_part(grammar, &grammar.rules[rule], states) && states[rule] == Visit::UnderWay;
    states[rule] = if is_regular { Visit::Regular } else { Visit::Recursive };
    is_regular
}

fn visit_part(grammar: &Grammar, part: &Part, states: &mut [Visit]) -> bool {
    match part {
        Part::Chars(_) => true,
        Part::Sequence(parts) | Part::Choice(parts) => parts.iter().all(|part| visit_part(grammar, part, states)),
        Part::Repeat(part, ..) => visit_part(grammar, part, states),
        Part::Rule(rule) => visit(grammar, *rule, states),
    }
}

/// Whether a part without references may be empty.
fn is_nullable(part: &Part) -> bool {
    match part {
        Part::Chars(_) | Part::Rule(_) => false,
        Part::Sequence(parts) => parts.iter().all(is_nullable),
        Part::Choice(parts) => parts.iter().any(is_nullable),
        Part::Repeat(part, least, _) => *least == 0 || is_nullable(part),
    }
}

/// Whether a part without references is always empty.
fn is_empty(part: &Part) -> bool {
    match part {
        Part::Chars(_) | Part::Rule(_) => false,
        Part::Sequence(parts) | Part::Choice(parts) => parts.iter().all(is_empty),
        Part::Repeat(part, ..) => is_empty(part),
    }
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

fn write_regex(part: &Part, to: &mut String) {
    match part {
        Part::Chars(class) => match class[..] {
            [(a, b)] if a == b => write_char(a, to),
            _ => {
                to.push('[');
                for &(first, last) in class {
                    write_char(first, to);
                    if last > first {
                        to.push('-');
                        write_char(last, to);
                    }
                }
                to.push(']');
            }
        },
        Part::Sequence(parts) => parts.iter().for_each(|part| write_regex(part, to)),
        Part::Choice(parts) => {
            to.push_str("(?:");
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    to.push('|');
                }
                write_regex(part, to);
            }
            to.push(')');
        }
        Part::Repeat(part, least, most) => {
            to.push_str("(?:");
            write_regex(part, to);
            let _ = write!(to, "){}", times(*least, *most));
        }
        // Lexemes are without references.
        Part::Rule(_) => {}
    }
}

fn write_char(c: u32, to: &mut String) {
    match char::from_u32(c) {
        Some(c) if c.is_ascii_alphanumeric() => to.push(c),
        _ => drop(write!(to, "\\x{{{c:X}}}")),
    }
}
