//! The text of a grammar, as rules.

use super::{Class, Grammar, Part};
use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

/// Groups within one another, at most.
const MOST_DEPTH: usize = 256;
/// Times that a part may be asked for at least, as in llama.cpp. More at most are without end, as there.
const MOST_TIMES: u32 = 2000;
/// Repetitions one behind the other, such as `x+?`, and ranges of a class, at most.
const MOST_REPEATED: usize = 4;
const MOST_RANGES: usize = 256;
const LAST_CHAR: u32 = char::MAX as u32;
/// What is between these is no character.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

/// Reads a grammar.
pub(super) fn parse(text: &str) -> Result<Grammar, String> {
    let mut parser = Parser { rest: text.chars().peekable(), line: 1, numbers: HashMap::new(), names: Vec::new() };
    let mut rules: Vec<Option<Part>> = Vec::new();
    let found = parser.rules(&mut rules);
    found.map_err(|why| format!("line {}: {why}", parser.line))?;
    rules.resize(parser.names.len(), None);
    let mut all = Vec::new();
    for (rule, name) in rules.into_iter().zip(&parser.names) {
        all.push(rule.ok_or_else(|| format!("there is no rule '{name}'"))?);
    }
    let root = *parser.numbers.get("root").ok_or("there is no rule 'root'")?;
    Ok(Grammar { rules: all, root })
}

/// Whether a line of this kind may end within what is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    One,
    Many,
}

struct Parser<'t> {
    rest: Peekable<Chars<'t>>,
    line: usize,
    numbers: HashMap<String, usize>,
    names: Vec<String>,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.next();
        self.line += usize::from(c == Some('\n'));
        c
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn takes(&mut self, wanted: char) -> bool {
        let takes = self.peek() == Some(wanted);
        if takes {
            self.next();
        }
        takes
    }

    /// Takes blanks and comments, and ends of lines where many are wanted, or where the next one goes on with an alternative.
    fn blanks(&mut self, mut lines: Lines) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\r') => drop(self.next()),
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                Some('\n') if lines == Lines::Many || self.goes_on() => {
                    lines = Lines::Many;
                    self.next();
                }
                _ => return,
            }
        }
    }

    /// Whether the next line that has something begins with `|`.
    fn goes_on(&self) -> bool {
        let mut ahead = self.rest.clone();
        while let Some(c) = ahead.next() {
            match c {
                ' ' | '\t' | '\r' | '\n' => {}
                '#' => drop(ahead.by_ref().find(|c| *c == '\n')),
                c => return c == '|',
            }
        }
        false
    }

    fn rules(&mut self, rules: &mut Vec<Option<Part>>) -> Result<(), String> {
        loop {
            self.blanks(Lines::Many);
            if self.peek().is_none() {
                return Ok(());
            }
            let name = self.name()?;
            self.blanks(Lines::One);
            for c in "::=".chars() {
                if !self.takes(c) {
                    return Err(format!("'::=' is missing behind '{name}'"));
                }
            }
            self.blanks(Lines::Many);
            let rule = self.any(0)?;
            if !matches!(self.peek(), None | Some('\n')) {
                return Err(format!("'{}' is not expected here", self.peek().unwrap_or_default()));
            }
            let number = self.number(&name);
            rules.resize(self.names.len().max(rules.len()), None);
            if rules[number].replace(rule).is_some() {
                return Err(format!("there are two rules '{name}'"));
            }
        }
    }

    /// The number of a rule.
    fn number(&mut self, name: &str) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.names.push(name.to_owned());
        }
        number
    }

    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            name.push(c);
            self.next();
        }
        if name.is_empty() {
            return Err(match self.peek() {
                Some('<' | '!') => "tokens (<[1]>, <think>) are not taken here".into(),
                Some(c) => format!("the name of a rule is expected, not '{c}'"),
                None => "the name of a rule is missing".into(),
            });
        }
        Ok(name)
    }

    /// Alternatives. Within a group they may be on many lines.
    fn any(&mut self, depth: usize) -> Result<Part, String> {
        if depth > MOST_DEPTH {
            return Err(format!("more than {MOST_DEPTH} groups are within one another"));
        }
        let mut options = vec![self.sequence(depth)?];
        while self.takes('|') {
            self.blanks(Lines::Many);
            options.push(self.sequence(depth)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Part::Choice(options) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Part, String> {
        let lines = if depth > 0 { Lines::Many } else { Lines::One };
        let mut parts = Vec::new();
        loop {
            self.blanks(lines);
            let part = match self.peek() {
                None | Some('|' | ')' | '\n') => break,
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.next();
                    Part::Chars(others(Vec::new()))
                }
                Some('(') => {
                    self.next();
                    let group = self.any(depth + 1)?;
                    if !self.takes(')') {
                        return Err("')' is missing".into());
                    }
                    group
                }
                Some(_) => {
                    let name = self.name()?;
                    Part::Rule(self.number(&name))
                }
            };
            parts.push(self.repeated(part, lines)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Part::Sequence(parts) })
    }

    fn repeated(&mut self, mut part: Part, lines: Lines) -> Result<Part, String> {
        for _ in 0..=MOST_REPEATED {
            self.blanks(lines);
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.times()?,
                _ => return Ok(part),
            };
            self.next();
            part = match most {
                Some(0) => Part::empty(),
                Some(1) if least == 1 => part,
                most => Part::Repeat(Box::new(part), least, most),
            };
        }
        Err(format!("more than {MOST_REPEATED} repetitions are one behind the other"))
    }

    /// `{2}`, `{2,}` or `{2,4}`, up to its last character.
    fn times(&mut self) -> Result<(u32, Option<u32>), String> {
        self.next();
        let least = self.count()?.ok_or("a number is missing behind '{'")?;
        if least > MOST_TIMES {
            return Err(format!("{least} times are more than {MOST_TIMES}"));
        }
        let most = if self.takes(',') { self.count()? } else { Some(least) };
        let most = most.filter(|most| *most <= MOST_TIMES);
        if self.peek() != Some('}') {
            return Err("'}' is missing".into());
        }
        if most.is_some_and(|most| most < least) {
            return Err("the second number of '{,}' is smaller than the first".into());
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<Option<u32>, String> {
        self.blanks(Lines::One);
        let mut digits = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            digits.push(c);
            self.next();
        }
        self.blanks(Lines::One);
        if digits.is_empty() {
            return Ok(None);
        }
        // Whatever is too large for a number is too many.
        Ok(Some(digits.parse().unwrap_or(u32::MAX)))
    }

    fn literal(&mut self) -> Result<Part, String> {
        self.next();
        let mut parts = Vec::new();
        while !self.takes('"') {
            let c = self.char("'\"'")?;
            parts.push(Part::Chars(vec![(c, c)]));
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Part::Sequence(parts) })
    }

    fn class(&mut self) -> Result<Part, String> {
        self.next();
        let is_negated = self.takes('^');
        let mut ranges = Vec::new();
        while !self.takes(']') {
            let first = self.char("']'")?;
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
            let last = if is_range {
                self.next();
                self.char("']'")?
            } else {
                first
            };
            if last < first {
                return Err("the end of a range is before its beginning".into());
            }
            ranges.push((first, last));
        }
        let class = if is_negated { others(ranges) } else { others(others(ranges)) };
        match class.len() {
            0 => Err("no character is in '[]'".into()),
            1..=MOST_RANGES => Ok(Part::Chars(class)),
            n => Err(format!("'[]' has {n} ranges, and {MOST_RANGES} are the most")),
        }
    }

    /// A character of a literal or a class, which ends with `end`.
    fn char(&mut self, end: &str) -> Result<u32, String> {
        match self.next() {
            None => Err(format!("{end} is missing")),
            Some('\\') => self.escaped(),
            Some(c) => Ok(c.into()),
        }
    }

    fn escaped(&mut self) -> Result<u32, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'.into()),
            Some('r') => return Ok('\r'.into()),
            Some('t') => return Ok('\t'.into()),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return Ok(c.into()),
            Some(c) => return Err(format!("'\\{c}' is not known")),
            None => return Err("the grammar ends behind '\\'".into()),
        };
        let mut code = 0;
        for _ in 0..digits {
            let digit = self
                .next()
                .and_then(|c| c.to_digit(16))
                .ok_or_else(|| format!("{digits} hexadecimal digits are missing"))?;
            code = code << 4 | digit;
        }
        match char::from_u32(code) {
            Some(c) => Ok(c.into()),
            None => Err(format!("{code:X} is no character")),
        }
    }
}

/// All other characters.
fn others(mut ranges: Class) -> Class {
    ranges.push(SURROGATES);
    ranges.sort_unstable();
    let (mut others, mut next) = (Vec::new(), 0);
    for (first, last) in ranges {
        if first > next {
            others.push((next, first - 1));
        }
        next = next.max(last + 1);
    }
    if next <= LAST_CHAR {
        others.push((next, LAST_CHAR));
    }
    others
}
