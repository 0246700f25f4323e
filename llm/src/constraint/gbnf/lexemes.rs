//! Whether the longest lexeme is the right one wherever it is cut.
//!
//! Two lexemes that may begin at the same place are run side by side, as automata of their characters (Glushkov, 1961). If one of them may end where the other
//! one can go on with a character that may also follow the first, the longest is not the only right one. That is found from above: what may follow
//! a lexeme anywhere counts everywhere; those that may match the same text are followed by what may follow any of them; and characters count as the same if
//! their first bytes are, because llguidance goes on byte by byte.

use super::{Class, Lowering, Part, Production, Symbol};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Positions in lexemes at most.
const MOST_POSITIONS: usize = 8000;
/// Steps that are taken to compare lexemes at most.
const MOST_STEPS: usize = 20_000_000;

/// A lexeme that may be longer than is right; `None` if there is none.
pub(super) fn find_overlong(grammar: &Lowering<'_>, steps: &mut Steps) -> Result<Option<usize>, String> {
    let mut order = Order::of(grammar, steps)?;
    if order.follow.iter().all(BTreeSet::is_empty) {
        // All of a text is one lexeme.
        return Ok(None);
    }
    let positions: usize = grammar.lexemes.iter().map(count_positions).sum();
    if positions > MOST_POSITIONS {
        return Err(format!(
            "it has {positions} characters and classes with its rules written out, and {MOST_POSITIONS} are the most"
        ));
    }
    let automata: Vec<Automaton> =
        grammar.lexemes.iter().map(|lexeme| Automaton::of(lexeme, steps)).collect::<Result<_, _>>()?;
    order.merge(&automata, steps)?;
    for begins in order.start_sets() {
        for &a in begins {
            steps.spend(order.follow[a].len())?;
            let follows = order.follow[a].iter().fold(Bytes::default(), |bytes, &b| bytes.with(automata[b].begins));
            for &b in begins {
                if side_by_side(&automata[a], &automata[b], steps)?.goes_on.meets(follows) {
                    return Ok(Some(b));
                }
            }
        }
    }
    Ok(None)
}

/// Steps that were taken to compare lexemes.
#[derive(Debug, Default)]
pub(super) struct Steps(usize);

impl Steps {
    /// Counts so many more. Fails if there are too many.
    pub(super) fn spend(&mut self, more: usize) -> Result<(), String> {
        self.0 = self.0.saturating_add(more);
        if self.0 > MOST_STEPS { Err("it takes too long to find out whether it is ambiguous".into()) } else { Ok(()) }
    }
}

/// First bytes of characters, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes([u128; 2]);

impl Bytes {
    fn of(class: &Class) -> Bytes {
        let first_byte = |c: u32| match c {
            0..0x80 => c,
            0x80..0x800 => 0xc0 | c >> 6,
            0x800..0x10000 => 0xe0 | c >> 12,
            _ => 0xf0 | c >> 18,
        };
        let mut bytes = Bytes::default();
        for &(first, last) in class {
            // The first bytes of characters follow their order.
            for byte in first_byte(first)..=first_byte(last) {
                bytes.0[byte as usize / 128] |= 1 << (byte % 128);
            }
        }
        bytes
    }

    fn with(self, other: Bytes) -> Bytes {
        Bytes([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    fn meets(self, other: Bytes) -> bool {
        self.0[0] & other.0[0] != 0 || self.0[1] & other.0[1] != 0
    }
}

/// What two lexemes do over the same text.
struct SideBySide {
    /// With what the second one goes on where the first one may end.
    goes_on: Bytes,
    /// Whether both may end.
    end_together: bool,
}

/// Characters and classes of a lexeme.
fn count_positions(part: &Part) -> usize {
    match part {
        Part::Chars(_) => 1,
        Part::Sequence(parts) | Part::Choice(parts) => parts.iter().map(count_positions).sum(),
        Part::Repeat(part, ..) => count_positions(part),
        Part::Rule(_) => 0,
    }
}

/// Whether there is a character of both.
fn have_common(a: &Class, b: &Class) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.0.max(b.0) <= a.1.min(b.1)))
}

fn side_by_side(a: &Automaton, b: &Automaton, steps: &mut Steps) -> Result<SideBySide, String> {
    let mut found = SideBySide { goes_on: Bytes::default(), end_together: false };
    let mut seen: HashSet<(usize, usize)> = HashSet::new();
    let mut next = Vec::new();
    let mut meet = |from: &[usize], to: &[usize], next: &mut Vec<(usize, usize)>| {
        for &p in from {
            for &q in to {
                let (p_class, q_class) = (&a.classes[p], &b.classes[q]);
                steps.spend(p_class.len() * q_class.len())?;
                if have_common(p_class, q_class) && seen.insert((p, q)) {
                    next.push((p, q));
                }
            }
        }
        Ok::<_, String>(())
    };
    meet(&a.first, &b.first, &mut next)?;
    while let Some((p, q)) = next.pop() {
        if a.last[p] {
            found.goes_on = found.goes_on.with(b.goes_on[q]);
            found.end_together |= b.last[q];
        }
        meet(&a.follow[p], &b.follow[q], &mut next)?;
    }
    Ok(found)
}

/// The positions of a lexeme's characters: which come first and last, and which follow which. Repetitions are without end.
#[derive(Default)]
struct Automaton {
    classes: Vec<Class>,
    first: Vec<usize>,
    last: Vec<bool>,
    follow: Vec<Vec<usize>>,
    /// What it begins with, and what follows each position.
    begins: Bytes,
    goes_on: Vec<Bytes>,
}

/// First and last positions of a part, and whether it may be empty.
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    fn of(lexeme: &Part, steps: &mut Steps) -> Result<Automaton, String> {
        let mut automaton = Automaton::default();
        let ends = automaton.add(lexeme, steps)?;
        automaton.last = vec![false; automaton.classes.len()];
        ends.last.into_iter().for_each(|position| automaton.last[position] = true);
        automaton.first = ends.first;
        let bytes: Vec<Bytes> = automaton.classes.iter().map(Bytes::of).collect();
        let all = |positions: &Vec<usize>| positions.iter().fold(Bytes::default(), |all, &at| all.with(bytes[at]));
        (automaton.begins, automaton.goes_on) = (all(&automaton.first), automaton.follow.iter().map(all).collect());
        Ok(automaton)
    }

    fn add(&mut self, part: &Part, steps: &mut Steps) -> Result<Ends, String> {
        Ok(match part {
            Part::Chars(class) => {
                let position = self.classes.len();
                self.classes.push(class.clone());
                self.follow.push(Vec::new());
                Ends { first: vec![position], last: vec![position], is_nullable: false }
            }
            Part::Sequence(parts) => {
                let mut all = Ends { first: Vec::new(), last: Vec::new(), is_nullable: true };
                for part in parts {
                    let next = self.add(part, steps)?;
                    self.link(&all.last, &next.first, steps)?;
                    if all.is_nullable {
                        all.first.extend(&next.first);
                    }
                    if !next.is_nullable {
                        all.last.clear();
                    }
                    steps.spend(all.last.len())?;
                    all.last.extend(next.last);
                    all.is_nullable &= next.is_nullable;
                }
                all
            }
            Part::Choice(parts) => {
                let mut all = Ends { first: Vec::new(), last: Vec::new(), is_nullable: false };
                for part in parts {
                    let next = self.add(part, steps)?;
                    all.first.extend(next.first);
                    all.last.extend(next.last);
                    all.is_nullable |= next.is_nullable;
                }
                all
            }
            Part::Repeat(part, least, most) => {
                let mut ends = self.add(part, steps)?;
                if *most != Some(1) {
                    self.link(&ends.last, &ends.first, steps)?;
                }
                ends.is_nullable |= *least == 0;
                ends
            }
            // Lexemes are without references.
            Part::Rule(_) => Ends { first: Vec::new(), last: Vec::new(), is_nullable: true },
        })
    }

    fn link(&mut self, from: &[usize], to: &[usize], steps: &mut Steps) -> Result<(), String> {
        steps.spend(from.len() * to.len())?;
        from.iter().for_each(|&position| self.follow[position].extend(to));
        Ok(())
    }
}

/// Which lexemes come first in each rule, and which follow which.
struct Order {
    start: BTreeSet<usize>,
    follow: Vec<BTreeSet<usize>>,
}

impl Order {
    /// Sets of lexemes that may begin at the same place.
    fn start_sets(&self) -> impl Iterator<Item = &BTreeSet<usize>> {
        std::iter::once(&self.start).chain(&self.follow)
    }

    fn of(grammar: &Lowering<'_>, steps: &mut Steps) -> Result<Order, String> {
        let rules = &grammar.productions;
        let mut first = vec![BTreeSet::new(); rules.len()];
        let mut nullable = vec![false; rules.len()];
        until_nothing_changes(|| {
            let mut changed = false;
            for (i, rule) in rules.iter().enumerate() {
                steps.spend(size(rule, &first))?;
                let (found, is_nullable) = first_of_rule(rule, &first, &nullable);
                let before = (first[i].len(), nullable[i]);
                first[i].extend(found);
                nullable[i] |= is_nullable;
                changed |= before != (first[i].len(), nullable[i]);
            }
            Ok(changed)
        })?;
        let mut of_rules = vec![BTreeSet::new(); rules.len()];
        let mut follow = vec![BTreeSet::new(); grammar.lexemes.len()];
        until_nothing_changes(|| {
            let mut changed = false;
            for (i, rule) in rules.iter().enumerate() {
                for sequence in sequences(rule) {
                    let mut behind = of_rules[i].clone();
                    for symbol in sequence.iter().rev() {
                        let (to, mine, is_nullable) = match symbol {
                            Symbol::Lexeme(lexeme) => (&mut follow[*lexeme], BTreeSet::from([*lexeme]), false),
                            Symbol::Rule(rule) => (&mut of_rules[*rule], first[*rule].clone(), nullable[*rule]),
                        };
                        steps.spend(1 + behind.len() + mine.len())?;
                        let before = to.len();
                        to.extend(&behind);
                        changed |= to.len() > before;
                        if !is_nullable {
                            behind.clear();
                        }
                        behind.extend(mine);
                    }
                }
            }
            Ok(changed)
        })?;
        Ok(Order { start: first[grammar.grammar.root].clone(), follow })
    }

    /// Lexemes that may match the same text at the same place are followed by what may follow any of them.
    fn merge(&mut self, automata: &[Automaton], steps: &mut Steps) -> Result<(), String> {
        let mut known: HashMap<(usize, usize), bool> = HashMap::new();
        until_nothing_changes(|| {
            let sets: HashSet<BTreeSet<usize>> = self.start_sets().cloned().collect();
            let mut changed = false;
            for set in &sets {
                steps.spend(set.len() * set.len())?;
                for (&a, &b) in set.iter().flat_map(|a| set.range(a + 1..).map(move |b| (a, b))) {
                    let end_together = match known.get(&(a, b)) {
                        Some(known) => *known,
                        None => side_by_side(&automata[a], &automata[b], steps)?.end_together,
                    };
                    known.insert((a, b), end_together);
                    if end_together && self.follow[a] != self.follow[b] {
                        let all: BTreeSet<usize> = self.follow[a].union(&self.follow[b]).copied().collect();
                        steps.spend(all.len())?;
                        (self.follow[a], self.follow[b]) = (all.clone(), all);
                        changed = true;
                    }
                }
            }
            Ok(changed)
        })
    }
}

fn until_nothing_changes(mut step: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    while step()? {}
    Ok(())
}

/// What it takes to look at a rule once.
fn size(rule: &Production, first: &[BTreeSet<usize>]) -> usize {
    let of = |symbol: &Symbol| match symbol {
        Symbol::Lexeme(_) => 1,
        Symbol::Rule(rule) => 1 + first[*rule].len(),
    };
    match rule {
        Production::Choice(options) => options.iter().flatten().map(of).sum::<usize>() + 1,
        Production::Repeat(symbol, ..) => 2 * of(symbol),
    }
}

/// The sequences that a rule stands for: of a repetition one and two.
fn sequences(rule: &Production) -> Vec<Vec<Symbol>> {
    match rule {
        Production::Choice(options) => options.clone(),
        Production::Repeat(of, _, Some(1)) => vec![vec![*of]],
        Production::Repeat(of, ..) => vec![vec![*of, *of]],
    }
}

fn first_of_rule(rule: &Production, first: &[BTreeSet<usize>], nullable: &[bool]) -> (BTreeSet<usize>, bool) {
    let mut found = BTreeSet::new();
    let mut is_nullable = matches!(rule, Production::Repeat(_, 0, _));
    for sequence in sequences(rule) {
        let mut ends = true;
        for symbol in sequence {
            match symbol {
                Symbol::Lexeme(lexeme) => {
                    found.insert(lexeme);
                    ends = false;
                }
                Symbol::Rule(rule) => {
                    found.extend(&first[rule]);
                    ends = nullable[rule];
                }
            }
            if !ends {
                break;
            }
        }
        is_nullable |= ends;
    }
    (found, is_nullable)
}
